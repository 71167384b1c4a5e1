-- name: list_trace_roots
-- List the runs and tasks that began a tree in a trace, newest first.
select id from runs where trace_id = :trace_id and trace_id <> id and root_id = id and namespace = :namespace
union
select id from tasks where trace_id = :trace_id and root_id = id and namespace = :namespace
union
select id from finished where trace_id = :trace_id and root_id = id and namespace = :namespace
order by id desc
limit :limit;

-- name: list_tree_runs
-- List the runs of trees, oldest first.
select runs.* from json_each(:roots) as wanted cross join runs on runs.id = wanted.value
union all
select runs.* from json_each(:roots) as wanted cross join runs on runs.root_id = wanted.value and runs.root_id <> runs.id
order by id
limit :limit;

-- name: list_tree_tasks
-- List the tasks of trees, live and finished, oldest first.
with found (id, queue_id, run_id, state, running, created_at, claimed_at, finished_at) as (
  select t.id, t.queue_id, t.run_id, t.state, t.owner_id is not null, t.created_at, t.claimed_at, null
  from json_each(:roots) as wanted cross join tasks as t on t.id = wanted.value
  union all
  select t.id, t.queue_id, t.run_id, t.state, t.owner_id is not null, t.created_at, t.claimed_at, null
  from json_each(:roots) as wanted cross join tasks as t on t.root_id = wanted.value and t.root_id <> t.id
  union all
  select f.id, f.queue_id, f.run_id, f.state, 0, f.created_at, f.claimed_at, f.finished_at
  from json_each(:roots) as wanted cross join finished as f on f.id = wanted.value
  union all
  select f.id, f.queue_id, f.run_id, f.state, 0, f.created_at, f.claimed_at, f.finished_at
  from json_each(:roots) as wanted cross join finished as f on f.root_id = wanted.value and f.root_id <> f.id
)
select found.id, l.kind, l.name, found.run_id, iif(found.running and found.state = 'pending', 'running', found.state),
  found.created_at, found.claimed_at, found.finished_at
from found cross join queues as l on l.id = found.queue_id
order by found.id
limit :limit;

-- name: list_tree_records
-- List the records of trees, oldest first.
select records.* from json_each(:roots) as wanted cross join records on records.root_id = wanted.value
order by records.id
limit :limit;
