-- name: list_transitions(ids) on lists
-- List the transitions of the entities $1, each in order of version.
select transitions.*
from unnest($1::uuid[]) as given (id)
cross join lateral (
  select seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id, trace_id,
    data
  from log
  where entity_id = given.id
  union all
  select seq, finished_at, 'task', id, version, transition, from_state, state, actor, claim_version, run_id, root_id, trace_id,
    error
  from finished
  where id = given.id
) as transitions
order by transitions.entity_id, transitions.version;

-- name: list_takeovers(run_id, limit) on lists
-- List the last $2 expiries of leases on tasks of the run $1.
with found as (
  select seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id, trace_id,
    data
  from log
  where run_id = $1::uuid and transition = 'expire'
  order by seq desc
  limit $2::bigint
)
select * from found order by seq;

-- name: list_histories(after_id, limit) on lists
-- List the first $2 entities after the id $1, each with its transitions as JSON.
with page as materialized (
  select entity, id, state, version
  from (
    (select 'task' as entity, id, state, version from tasks where id > $1::uuid order by id limit $2::bigint)
    union all
    (select 'task', id, state, version from finished where id > $1::uuid order by id limit $2::bigint)
    union all
    (select 'run', id, state, transitions from runs where id > $1::uuid order by id limit $2::bigint)
    union all
    (select entity, id, state, transitions from records where id > $1::uuid order by id limit $2::bigint)
  ) as either
  order by id
  limit $2::bigint
)
select page.entity, page.id::text, page.state, page.version, (
  select coalesce(json_agg(transitions order by transitions.version), '[]')::text
  from (
    select log.*
    from log
    where entity_id = page.id
    union all
    select seq, finished_at, 'task', id, version, transition, from_state, state, actor, claim_version, run_id, root_id, trace_id,
      error
    from finished
    where id = page.id
  ) as transitions
)
from page
order by page.id;

-- name: list_events(after_seq, until_seq, limit) on hot
-- List up to $3 transitions after the seq $1 and up to $2 as JSON, in order, with the namespaces of their entities.
select coalesce(found.namespace, tasks.namespace, finished.namespace, runs.namespace, records.namespace), row_to_json(found)::text
from (
  select *
  from (
    (
      select null as namespace, seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id,
        root_id,
        trace_id, data
      from log
      where seq > $1::bigint and seq <= $2::bigint
      order by seq
      limit $3::bigint
    )
    union all
    (
      select namespace, seq, finished_at, 'task', id, version, transition, from_state, state, actor, claim_version, run_id, root_id,
        trace_id, error
      from finished
      where seq > $1::bigint and seq <= $2::bigint
      order by seq
      limit $3::bigint
    )
  ) as either
  order by seq
  limit $3::bigint
) as found
left join tasks on found.namespace is null and tasks.id = any (array[found.entity_id])
left join finished on found.namespace is null and finished.id = any (array[found.entity_id])
left join runs on found.namespace is null and runs.id = any (array[found.entity_id])
left join records on found.namespace is null and records.id = found.entity_id
order by found.seq;

-- name: list_changes(before_seq, actor, since, until, limit) on lists
-- List the last $5 changes by operators, by the actor $2 and between two instants, before the seq $1 as JSON, the last one first.
select coalesce(tasks.namespace, finished.namespace, runs.namespace, records.namespace), row_to_json(changes)::text, records.name
from (
  select *
  from (
    (
      select seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id, trace_id,
        data
      from log
      where actor not like '________-____-____-____-____________' and transition <> 'start'
        and (entity <> 'task' or transition not in ('approve', 'deny'))
        and seq < $1::bigint and at >= $3::bigint and at < $4::bigint and ($2::text is null or actor = $2::text)
      order by seq desc
      limit $5::bigint
    )
    union all
    (
      select seq, finished_at, 'task', id, version, transition, from_state, state, actor, claim_version, run_id, root_id, trace_id,
        error
      from finished
      where actor not like '________-____-____-____-____________' and transition not in ('approve', 'deny')
        and seq < $1::bigint and finished_at >= $3::bigint and finished_at < $4::bigint and ($2::text is null or actor = $2::text)
        and queue_id not in (select id from queues where task_list = 'engine')
      order by seq desc
      limit $5::bigint
    )
  ) as either
  order by seq desc
  limit $5::bigint
) as changes
left join tasks on tasks.id = any (array[changes.entity_id])
left join finished on finished.id = any (array[changes.entity_id])
left join runs on runs.id = any (array[changes.entity_id])
left join records on records.id = changes.entity_id
order by changes.seq desc;

-- name: find_last_seq() on hot
-- Return the last assigned seq, committed or not.
select case when is_called then last_value else 0 end from treadle_seq;

-- name: append_lines(*rows)
-- Insert log lines.
insert into lines (task_id, at, level, message, details, run_id, step_id)
select *
from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::uuid[]);

-- name: list_lines(task_id, limit)
-- List the last $2 lines of the task $1, oldest first.
select task_id, at, level, message, details, run_id, step_id
from (select * from lines where task_id = $1::uuid order by id desc limit $2::bigint) as newest
order by id;

-- name: list_run_lines_before(run_id, limit, before)
-- List the last $2 lines of the run $1 before the number $3, the last one first.
select id, task_id::text, at, level, message, details, run_id::text, step_id::text
from lines
where run_id = $1::uuid and ($3::bigint is null or id < $3::bigint)
order by id desc
limit $2::bigint;

-- name: list_run_lines_after(run_id, limit, after)
-- List the first $2 lines of the run $1 after the number $3.
select id, task_id::text, at, level, message, details, run_id::text, step_id::text
from lines
where run_id = $1::uuid and id > $3::bigint
order by id
limit $2::bigint;
