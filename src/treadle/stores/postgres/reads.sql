-- name: list_tasks
-- Live and finished tasks, newest first; each of $1 ids, $2 shown states, $3-$6 lane, $7 run, $8 id bound may be null for any.
with wanted as materialized (
  select id
  from lanes
  where ($3::text is null or namespace = $3) and ($4::text is null or kind = $4)
    and ($5::text is null or task_list = $5) and ($6::text is null or name = $6)
), found as (
  (
    select id, lane_id, namespace, priority, state, hold, due_at, wake_at, owner_id, claim_version, claimed_at, heartbeat_at,
      attempt, failures, takeovers, version, created_at, deadline_at, timeout_for, progress_for, progress_at, progress, run_id,
      step_id, flow_id, scope, root_id, trace_id, limit_key, unique_key, policy, payload, checkpoint, error,
      null::bigint as seq, null as move, null as from_state, null as actor, null::bigint as finished_at, null as result,
      null as error_code, null as fingerprint
    from tasks
    where ($1::uuid[] is null or id = any ($1))
      and ($2::text[] is null
        or case when hold & ~1 <> 0 then 'paused' when owner_id is not null and state = 'pending' then 'running' else state end
          = any ($2))
      and lane_id in (select id from wanted)
      and ($7::uuid is null or run_id = $7)
      and ($8::uuid is null or id < $8)
    order by id desc
    limit $9::bigint
  )
  union all
  (
    select id, lane_id, namespace, priority, state, 0, due_at, null, owner_id, claim_version, claimed_at, null,
      attempt, failures, takeovers, version, created_at, deadline_at, timeout_for, progress_for, null, progress, run_id,
      step_id, flow_id, scope, root_id, trace_id, limit_key, unique_key, policy, payload, checkpoint, error,
      seq, move, from_state, actor, finished_at, result,
      error_code, fingerprint
    from finished
    where ($1::uuid[] is null or id = any ($1))
      and ($2::text[] is null or state = any ($2))
      and lane_id in (select id from wanted)
      and ($7::uuid is null or run_id = $7)
      and ($8::uuid is null or id < $8)
    order by id desc
    limit $9::bigint
  )
)
select found.*, lanes.kind, lanes.task_list, lanes.name
from found
join lanes on lanes.id = found.lane_id
order by found.id desc
limit $9::bigint;

-- name: find_finished
-- The finished ones among $1.
select finished.*, lanes.kind, lanes.task_list, lanes.name
from unnest($1::uuid[]) as given (id)
join finished on finished.id = given.id
join lanes on lanes.id = finished.lane_id;

-- name: list_depths
-- How many live tasks each lane has, by what they wait for.
select depth.*, lanes.namespace, lanes.kind, lanes.task_list, lanes.name
from (
  select lane_id,
    count(*) filter (where owner_id is null and hold = 0 and wake_at is null) as ready,
    count(*) filter (where owner_id is not null) as running,
    count(*) filter (where owner_id is null and hold & ~1 = 0 and wake_at is not null) as waiting,
    count(*) filter (where owner_id is null and hold <> 0 and (hold <> 1 or wake_at is null)) as held,
    min(due_at) filter (where owner_id is null and hold = 0 and wake_at is null) as oldest_due_at
  from tasks
  group by lane_id
) as depth
join lanes on lanes.id = depth.lane_id
order by depth.lane_id;

-- name: count_finished
-- Finished tasks by state.
select state, count(*) as count from finished group by state;

-- name: list_moves
-- The moves of the entity $1; the end of a finished task is its last.
select seq, at, entity, entity_id, version, move, from_state, to_state, actor, claim_version, run_id, root_id, trace_id, data
from log
where entity_id = $1::uuid
union all
select seq, finished_at, 'task', id, version, move, from_state, state, actor, claim_version, run_id, root_id, trace_id, error
from finished
where id = $1::uuid
order by version;

-- name: list_histories
-- The first $2 entities after the id $1, each with its moves or a single row without one.
with page as materialized (
  select entity, id, state, version
  from (
    (select 'task' as entity, id, state, version from tasks where $1::uuid is null or id > $1 order by id limit $2::bigint)
    union all
    (select 'task', id, state, version from finished where $1::uuid is null or id > $1 order by id limit $2::bigint)
    union all
    (select 'run', id, state, moves from runs where $1::uuid is null or id > $1 order by id limit $2::bigint)
    union all
    (select entity, id, state, moves from records where $1::uuid is null or id > $1 order by id limit $2::bigint)
  ) as either
  order by id
  limit $2::bigint
), moves as (
  select log.*
  from log
  where entity_id in (select id from page)
  union all
  select seq, finished_at, 'task', id, version, move, from_state, state, actor, claim_version, run_id, root_id, trace_id, error
  from finished
  where id in (select id from page)
)
select page.entity as row_entity, page.id as row_id, page.state as row_state, page.version as row_version, moves.*
from page
left join moves on moves.entity_id = page.id
order by page.id, moves.version;

-- name: list_servers
-- All servers, newest first.
select * from servers order by started_at desc, id desc;

-- name: append_lines
-- Store lines that handlers wrote.
insert into lines (task_id, at, level, message, details, run_id, step_id)
select *
from unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::uuid[]);

-- name: list_lines
-- The last $2 lines of the task $1, oldest first.
select task_id, at, level, message, details, run_id, step_id
from (select * from lines where task_id = $1::uuid order by id desc limit $2::bigint) as newest
order by id;

-- name: list_run_lines
-- The last $2 lines about the run $1, oldest first.
select task_id, at, level, message, details, run_id, step_id
from (select * from lines where run_id = $1::uuid order by id desc limit $2::bigint) as newest
order by id;

-- name: list_run_lines_before
-- The last $2 lines about the run $1 before the number $3, the last one first.
select id, task_id, at, level, message, details, run_id, step_id
from lines
where run_id = $1::uuid and ($3::bigint is null or id < $3::bigint)
order by id desc
limit $2::bigint;

-- name: list_run_lines_after
-- The first $2 lines about the run $1 after the number $3.
select id, task_id, at, level, message, details, run_id, step_id
from lines
where run_id = $1::uuid and id > $3::bigint
order by id
limit $2::bigint;

-- name: describe
-- The server's version, sizes in bytes, and how many rows there are about.
select current_setting('server_version') as server_version,
  current_database() as database,
  pg_database_size(current_database()) as database_bytes,
  pg_total_relation_size('tasks') as live_bytes,
  pg_total_relation_size('finished') as finished_bytes,
  pg_total_relation_size('log') as log_bytes,
  (select n_live_tup from pg_stat_all_tables where relid = 'tasks'::regclass) as live_estimate,
  (select n_live_tup from pg_stat_all_tables where relid = 'finished'::regclass) as finished_estimate;
