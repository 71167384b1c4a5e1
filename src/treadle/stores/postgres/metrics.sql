-- name: find_metrics_cursor() on hot
-- Return the seq up to which transitions are in the roll-ups.
select seq from metrics_cursor;

-- name: find_page(after_seq, limit, settle_for) on hot
-- Find the next transitions: the seq and the time of the last one that is old enough, and their number.
select
  max(seq) filter (where at <= (select treadle_now()) - $3::bigint),
  max(at) filter (where at <= (select treadle_now()) - $3::bigint),
  count(*)
from (
  select seq, at
  from (
    (select seq, finished_at as at from finished where seq > $1::bigint order by seq limit $2::bigint)
    union all
    (select seq, at from log where seq > $1::bigint order by seq limit $2::bigint)
  ) as either
  order by seq
  limit $2::bigint
) as page;

-- name: tally(after_seq, until_seq) on hot
-- Count transitions by minute, series, outcome, and duration and wait with two digits; the cost of a task counts at its end.
with ended as materialized (
  select id, seq, queue_id, run_id, owner_id, state, from_state, transition, claim_version, created_at, due_at, claimed_at, finished_at
  from finished
  where seq > $1::bigint and seq <= $2::bigint
), events as materialized (
  select ended.finished_at as at, l.namespace, l.kind, l.task_list, l.name, ended.owner_id, ended.state as outcome,
    case
      when l.kind = 'function' then ended.created_at
      when ended.from_state = 'pending' and ended.transition in ('succeed', 'fail') then ended.claimed_at
    end as began_at,
    case
      when ended.claim_version = 1 and ended.from_state = 'pending' and ended.transition in ('succeed', 'fail')
        then greatest(ended.claimed_at - ended.due_at, 0)
    end as waited
  from ended join queues as l on l.id = ended.queue_id
  union all
  select g.at, l.namespace, l.kind, l.task_list, l.name, g.actor,
    case when g.transition in ('retry', 'expire') then g.transition else g.to_state end,
    null::bigint, null::bigint
  from log as g
    left join tasks as t on t.id = any (array[g.entity_id])
    left join finished as f on f.id = any (array[g.entity_id])
    join queues as l on l.id = coalesce(t.queue_id, f.queue_id)
  where g.seq > $1::bigint and g.seq <= $2::bigint and g.entity = 'task'
    and (g.transition in ('retry', 'expire') or g.to_state in ('completed', 'failed', 'canceled', 'ignored'))
  union all
  select g.at, r.namespace, r.kind, r.task_list, r.workflow, null,
    case when g.transition = 'start' then g.transition else g.to_state end,
    case when g.transition <> 'start' then r.created_at end, null
  from log as g join runs as r on r.id = any (array[g.entity_id])
  where g.seq > $1::bigint and g.seq <= $2::bigint and g.entity = 'run' and r.kind = 'workflow'
    and (g.transition = 'start' or g.to_state in ('completed', 'failed', 'canceled'))
)
select g.began_at, g.at, g.namespace, g.kind, g.task_list, g.name, coalesce(s.release, ''), g.outcome, g.took, g.waited, g.times,
  g.waited_for, g.cost_micros, g.tokens
from (
  select e.began_at / 60000 * 60000 as began_at, e.at / 60000 * 60000 as at, e.namespace, e.kind, e.task_list, e.name, e.owner_id,
    e.outcome,
    (greatest(e.at, e.began_at) - e.began_at) - (greatest(e.at, e.began_at) - e.began_at) % case
      when e.at - e.began_at < 100 then 1 when e.at - e.began_at < 1000 then 10 when e.at - e.began_at < 10000 then 100
      when e.at - e.began_at < 100000 then 1000 when e.at - e.began_at < 1000000 then 10000 else 100000
    end as took,
    e.waited - e.waited % case
      when e.waited < 100 then 1 when e.waited < 1000 then 10 when e.waited < 10000 then 100 when e.waited < 100000 then 1000
      when e.waited < 1000000 then 10000 else 100000
    end as waited,
    count(*) as times, max(e.waited) as waited_for, 0::bigint as cost_micros, 0::bigint as tokens
  from events as e
  group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
  union all
  select null::bigint, ended.finished_at / 60000 * 60000, l.namespace, l.kind, l.task_list, l.name, ended.owner_id, 'usage',
    null::bigint, null::bigint, count(*), null::bigint,
    sum(u.cost_micros)::bigint, sum(u.input_tokens + u.output_tokens + u.cache_write_tokens + u.cache_read_tokens)::bigint
  from ended
    join queues as l on l.id = ended.queue_id
    join llm_usage as u on u.task_id = ended.id
  where ended.run_id is not null and u.state = 'settled'
    and not exists (
      select 1 from log as g
      where g.entity_id = u.task_id and g.to_state in ('completed', 'failed', 'canceled') and g.at >= u.at and g.seq < ended.seq
    )
  group by 2, 3, 4, 5, 6, 7
) as g left join registered_servers as s on s.id = g.owner_id;

-- name: advance_metrics(after_seq, until_seq)
-- Record that transitions up to a seq are in the roll-ups, unless others have done so.
insert into metrics_cursor (id, seq) values (1, $2::bigint)
on conflict (id) do update set seq = excluded.seq where metrics_cursor.seq = $1::bigint;

-- name: add_metrics(*rows)
-- Add counts to those of their step and series; depths and ages are the greatest ones.
insert into metrics as known (step_for, at, namespace, kind, task_list, name, release, started, completed, failed, canceled, retried,
  taken_over, waited_for, depth, oldest_for, cost_micros, tokens, durations, waits)
select *
from unnest(
  $1::bigint[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bigint[], $9::bigint[],
  $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[],
  $18::bigint[], $19::text[], $20::text[]
)
on conflict (step_for, at, namespace, kind, task_list, name, release) do update
set started = known.started + excluded.started, completed = known.completed + excluded.completed,
  failed = known.failed + excluded.failed,
  canceled = known.canceled + excluded.canceled, retried = known.retried + excluded.retried,
  taken_over = known.taken_over + excluded.taken_over,
  waited_for = greatest(known.waited_for, excluded.waited_for), depth = greatest(known.depth, excluded.depth),
  oldest_for = greatest(known.oldest_for, excluded.oldest_for), cost_micros = known.cost_micros + excluded.cost_micros,
  tokens = known.tokens + excluded.tokens,
  durations = (
    select coalesce(jsonb_object_agg(key, total), jsonb_build_object())::text
    from (
      select key, sum(value::bigint) as total
      from (
        select * from jsonb_each_text(known.durations::jsonb) union all select * from jsonb_each_text(excluded.durations::jsonb)
      ) as entries
      group by key
    ) as sums
  ),
  waits = (
    select coalesce(jsonb_object_agg(key, total), jsonb_build_object())::text
    from (
      select key, sum(value::bigint) as total
      from (
        select * from jsonb_each_text(known.waits::jsonb) union all select * from jsonb_each_text(excluded.waits::jsonb)
      ) as entries
      group by key
    ) as sums
  );

-- name: prune_metrics(step_for, before)
-- Delete the roll-ups of one step that began before an instant.
delete from metrics where step_for = $1::bigint and at < $2::bigint;

-- name: list_metrics(step_for, every, since, until, by, namespace, name, task_list, release)
-- Add up the roll-ups of one step by longer steps and by handler, workflow, queue or release; the histograms as JSON arrays.
select bucket, label, sum(started)::bigint, sum(completed)::bigint, sum(failed)::bigint, sum(canceled)::bigint, sum(retried)::bigint,
  sum(taken_over)::bigint, max(waited_for), max(depth)::bigint, max(oldest_for), sum(cost_micros)::bigint, sum(tokens)::bigint,
  '[' || string_agg(durations, ',') || ']', '[' || string_agg(waits, ',') || ']'
from (
  select at / $2::bigint * $2::bigint as bucket, at,
    case $5::text when 'queue' then task_list when 'release' then release when 'kind' then kind || ' ' || name when 'all' then '' else name
    end as label,
    sum(started) as started, sum(completed) as completed, sum(failed) as failed, sum(canceled) as canceled,
    sum(retried) as retried, sum(taken_over) as taken_over, max(waited_for) as waited_for, sum(depth) as depth,
    max(oldest_for) as oldest_for, sum(cost_micros) as cost_micros, sum(tokens) as tokens,
    string_agg(durations, ',') as durations, string_agg(waits, ',') as waits
  from metrics
  where step_for = $1::bigint and at >= $3::bigint and at < $4::bigint and namespace = $6::text
    and case when $5::text = 'workflow' then kind in ('workflow', 'function') else kind <> 'workflow' end
    and ($7::text is null or name = $7::text) and ($8::text is null or task_list = $8::text)
    and ($9::text is null or release = $9::text)
  group by 1, 2, 3
) as steps
group by bucket, label
order by bucket, label;

-- name: list_releases(step_for, since, until, namespace)
-- List the releases with roll-ups of one step, each with the first of these in a range.
select release, min(at)
from metrics
where step_for = $1::bigint and at >= $2::bigint and at < $3::bigint and namespace = $4::text and release <> ''
group by release
order by 2, 1;
