-- name: find_metrics_cursor
-- Return the seq up to which transitions are in the roll-ups.
select seq from metrics_cursor;

-- name: find_page
-- Find the next transitions: the seq and the time of the last one that is old enough, and their number.
select
  max(seq) filter (where at <= :now - :settle_for),
  max(at) filter (where at <= :now - :settle_for),
  count(*)
from (
  select seq, at
  from (
    select * from (select seq, finished_at as at from finished where seq > :after_seq order by seq limit :limit)
    union all
    select * from (select seq, at from log where seq > :after_seq order by seq limit :limit)
  )
  order by seq
  limit :limit
);

-- name: tally
-- Count transitions by minute, series, outcome, and duration and wait with two digits; the cost of a task counts at its end.
with ended as materialized (
  select id, seq, queue_id, run_id, owner_id, state, from_state, transition, claim_version, created_at, due_at, claimed_at, finished_at
  from finished
  where seq > :after_seq and seq <= :until_seq
), events as materialized (
  select ended.finished_at as at, l.namespace, l.kind, l.task_list, l.name, ended.owner_id, ended.state as outcome,
    case
      when l.kind = 'function' then ended.created_at
      when ended.from_state = 'pending' and ended.transition in ('succeed', 'fail') then ended.claimed_at
    end as began_at,
    case
      when ended.claim_version = 1 and ended.from_state = 'pending' and ended.transition in ('succeed', 'fail')
        then max(ended.claimed_at - ended.due_at, 0)
    end as waited
  from ended cross join queues as l on l.id = ended.queue_id
  union all
  select g.at, l.namespace, l.kind, l.task_list, l.name, g.actor, iif(g.transition in ('retry', 'expire'), g.transition, g.to_state),
    null, null
  from log as g
    cross join queues as l on l.id = coalesce(
      (select t.queue_id from tasks as t where t.id = g.entity_id), (select f.queue_id from finished as f where f.id = g.entity_id))
  where g.seq > :after_seq and g.seq <= :until_seq and g.entity = 'task'
    and (g.transition in ('retry', 'expire') or g.to_state in ('completed', 'failed', 'canceled', 'ignored'))
  union all
  select g.at, r.namespace, r.kind, r.task_list, r.workflow, null, iif(g.transition = 'start', g.transition, g.to_state),
    iif(g.transition = 'start', null, r.created_at), null
  from log as g cross join runs as r on r.id = g.entity_id
  where g.seq > :after_seq and g.seq <= :until_seq and g.entity = 'run' and r.kind = 'workflow'
    and (g.transition = 'start' or g.to_state in ('completed', 'failed', 'canceled'))
)
select g.began_at, g.at, g.namespace, g.kind, g.task_list, g.name, coalesce(s.release, ''), g.outcome, g.took, g.waited, g.times,
  g.waited_for, g.cost_micros, g.tokens
from (
  select e.began_at / 60000 * 60000 as began_at, e.at / 60000 * 60000 as at, e.namespace, e.kind, e.task_list, e.name, e.owner_id,
    e.outcome,
    (max(e.at, e.began_at) - e.began_at) - (max(e.at, e.began_at) - e.began_at) % case
      when e.at - e.began_at < 100 then 1 when e.at - e.began_at < 1000 then 10 when e.at - e.began_at < 10000 then 100
      when e.at - e.began_at < 100000 then 1000 when e.at - e.began_at < 1000000 then 10000 else 100000
    end as took,
    e.waited - e.waited % case
      when e.waited < 100 then 1 when e.waited < 1000 then 10 when e.waited < 10000 then 100 when e.waited < 100000 then 1000
      when e.waited < 1000000 then 10000 else 100000
    end as waited,
    count(*) as times, max(e.waited) as waited_for, 0 as cost_micros, 0 as tokens
  from events as e
  group by 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
  union all
  select null, ended.finished_at / 60000 * 60000, l.namespace, l.kind, l.task_list, l.name, ended.owner_id, 'usage', null,
    null, count(*), null,
    sum(u.cost_micros), sum(u.input_tokens + u.output_tokens + u.cache_write_tokens + u.cache_read_tokens)
  from ended
    cross join queues as l on l.id = ended.queue_id
    cross join llm_usage as u on u.task_id = ended.id
  where ended.run_id is not null and u.state = 'settled'
    and not exists (
      select 1 from log as g
      where g.entity_id = u.task_id and g.to_state in ('completed', 'failed', 'canceled') and g.at >= u.at and g.seq < ended.seq
    )
  group by 2, 3, 4, 5, 6, 7
) as g left join servers as s on s.id = g.owner_id;

-- name: advance_metrics
-- Record that transitions up to a seq are in the roll-ups, unless others have done so.
insert into metrics_cursor (id, seq) values (1, :until_seq)
on conflict (id) do update set seq = excluded.seq where metrics_cursor.seq = :after_seq;

-- name: add_metrics
-- Add counts to those of their step and series; depths and ages are the greatest ones.
insert into metrics (step_for, at, namespace, kind, task_list, name, release, started, completed, failed, canceled, retried, taken_over,
  waited_for, depth, oldest_for, cost_micros, tokens, durations, waits)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, r.value ->> 5, r.value ->> 6, r.value ->> 7,
  r.value ->> 8, r.value ->> 9, r.value ->> 10, r.value ->> 11, r.value ->> 12, r.value ->> 13, r.value ->> 14, r.value ->> 15,
  r.value ->> 16, r.value ->> 17, r.value ->> 18, r.value ->> 19
from jsonb_each(:rows) as r
where true
on conflict (step_for, at, namespace, kind, task_list, name, release) do update
set started = started + excluded.started, completed = completed + excluded.completed, failed = failed + excluded.failed,
  canceled = canceled + excluded.canceled, retried = retried + excluded.retried, taken_over = taken_over + excluded.taken_over,
  waited_for = max(waited_for, excluded.waited_for), depth = max(depth, excluded.depth),
  oldest_for = max(oldest_for, excluded.oldest_for), cost_micros = cost_micros + excluded.cost_micros,
  tokens = tokens + excluded.tokens,
  durations = (
    select json_group_object(key, total)
    from (
      select key, sum(value) as total
      from (select key, value from json_each(metrics.durations) union all select key, value from json_each(excluded.durations))
      group by key
    )
  ),
  waits = (
    select json_group_object(key, total)
    from (
      select key, sum(value) as total
      from (select key, value from json_each(metrics.waits) union all select key, value from json_each(excluded.waits))
      group by key
    )
  );

-- name: prune_metrics
-- Delete the roll-ups of one step that began before an instant.
delete from metrics where step_for = :step_for and at < :before;

-- name: list_metrics
-- Add up the roll-ups of one step by longer steps and by handler, workflow, queue or release; the histograms as JSON arrays.
select bucket, label, sum(started), sum(completed), sum(failed), sum(canceled), sum(retried), sum(taken_over), max(waited_for),
  max(depth), max(oldest_for), sum(cost_micros), sum(tokens), '[' || group_concat(durations) || ']', '[' || group_concat(waits) || ']'
from (
  select at / :every * :every as bucket, at,
    case :by when 'queue' then task_list when 'release' then release when 'kind' then kind || ' ' || name when 'all' then '' else name
    end as label,
    sum(started) as started, sum(completed) as completed, sum(failed) as failed, sum(canceled) as canceled,
    sum(retried) as retried, sum(taken_over) as taken_over, max(waited_for) as waited_for, sum(depth) as depth,
    max(oldest_for) as oldest_for, sum(cost_micros) as cost_micros, sum(tokens) as tokens,
    group_concat(durations) as durations, group_concat(waits) as waits
  from metrics
  where step_for = :step_for and at >= :since and at < :until and namespace = :namespace
    and case when :by = 'workflow' then kind in ('workflow', 'function') else kind <> 'workflow' end
    and (:name is null or name = :name) and (:task_list is null or task_list = :task_list)
    and (:release is null or release = :release)
  group by 1, 2, 3
)
group by bucket, label
order by bucket, label;

-- name: list_releases
-- List the releases with roll-ups of one step, each with the first of these in a range.
select release, min(at)
from metrics
where step_for = :step_for and at >= :since and at < :until and namespace = :namespace and release <> ''
group by release
order by 2, 1;
