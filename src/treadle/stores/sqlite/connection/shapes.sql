-- name: live
-- Live tasks as the JSON of `Task`, and the columns that select them.
create temp view live as
select t.id, t.created_at, t.run_id, t.owner_id, l.namespace, l.kind, l.task_list, l.name,
  case
    when t.blocked_by & ~1 then 'paused'
    when t.owner_id is not null and t.state = 'pending' then 'running'
    else t.state
  end as shown_state,
  json_object({json:t.live}, 'kind', l.kind, 'task_list', l.task_list, 'name', l.name) as task
from tasks as t cross join queues as l on l.id = t.queue_id;

-- name: ended
-- Finished tasks as the JSON of `Task`, and the columns that select them.
create temp view ended as
select f.id, f.created_at, f.run_id, l.namespace, l.kind, l.task_list, l.name, f.state as shown_state,
  json_object({json:f.finished}, 'kind', l.kind, 'task_list', l.task_list, 'name', l.name) as task
from finished as f cross join queues as l on l.id = f.queue_id;

-- name: transitions
-- All transitions as the JSON of `Transition`: the log, and the ends of finished tasks.
create temp view transitions as
select entity_id, version,
  json_object('seq', seq, 'at', at, 'entity', entity, 'entity_id', entity_id, 'version', version, 'transition', transition,
    'from_state', from_state, 'to_state', to_state, 'actor', actor, 'claim_version', claim_version, 'run_id', run_id,
    'root_id', root_id, 'trace_id', trace_id, 'data', data) as transition
from log
union all
select id, version,
  json_object('seq', seq, 'at', finished_at, 'entity', 'task', 'entity_id', id, 'version', version, 'transition', transition,
    'from_state', from_state, 'to_state', state, 'actor', actor, 'claim_version', claim_version, 'run_id', run_id,
    'root_id', root_id, 'trace_id', trace_id, 'data', error)
from finished;
