-- name: list_trace_roots(namespace, trace_id, limit) on lists
-- List the runs and tasks of the namespace $1 that began a tree in the trace $2, newest first. (`coalesce` leaves only the indexes
-- of traces.)
select id::text
from (
  select id from runs where trace_id = $2 and trace_id <> id::text and root_id = id and namespace = $1
  union
  select id from tasks where trace_id = $2 and root_id = id and namespace = $1
  union
  select coalesce(id) from finished where trace_id = $2 and root_id = id and namespace = $1
) as roots
order by roots.id desc
limit $3::bigint;

-- name: list_tree_runs(roots, limit)
-- List the runs of the trees $1, oldest first.
select *
from (
  select runs.* from runs where id = any ($1::uuid[])
  union all
  select runs.* from runs where root_id = any ($1::uuid[]) and root_id <> id
) as found
order by id
limit $2::bigint;

-- name: list_tree_tasks(roots, limit) on lists
-- List the tasks of the trees $1, live and finished, oldest first.
with found (id, queue_id, run_id, state, running, created_at, claimed_at, finished_at) as (
  select id, queue_id, run_id, state, owner_id is not null, created_at, claimed_at, null::bigint from tasks where id = any
    ($1::uuid[])
  union all
  select id, queue_id, run_id, state, owner_id is not null, created_at, claimed_at, null::bigint
  from tasks where root_id = any ($1::uuid[]) and root_id <> id
  union all
  select f.id, f.queue_id, f.run_id, f.state, false, f.created_at, f.claimed_at, f.finished_at
  from unnest($1::uuid[]) as given (id) join finished as f on f.id = any (array[given.id])
  union all
  select id, queue_id, run_id, state, false, created_at, claimed_at, finished_at
  from finished where root_id = any ($1::uuid[]) and root_id <> id
)
select found.id::text, l.kind, l.name, found.run_id::text,
  case when found.running and found.state = 'pending' then 'running' else found.state end,
  found.created_at, found.claimed_at, found.finished_at
from found join queues as l on l.id = found.queue_id
order by found.id
limit $2::bigint;

-- name: list_tree_records(roots, limit)
-- List the records of the trees $1, oldest first.
select * from records where root_id = any ($1::uuid[]) order by id limit $2::bigint;
