-- name: live
-- Live tasks as the JSON of `Task`, and what they are chosen by.
create temp view live as
select t.id, t.run_id, l.namespace, l.kind, l.task_list, l.name,
  case
    when t.hold & ~1 then 'paused'
    when t.owner_id is not null and t.state = 'pending' then 'running'
    else t.state
  end as shown_state,
  json_object('id', t.id, 'lane_id', t.lane_id, 'namespace', l.namespace, 'kind', l.kind, 'task_list', l.task_list, 'name', l.name,
    'priority', t.priority, 'state', t.state, 'hold', t.hold, 'due_at', t.due_at, 'wake_at', t.wake_at, 'owner_id', t.owner_id,
    'claim_version', t.claim_version, 'claimed_at', t.claimed_at, 'heartbeat_at', t.heartbeat_at, 'attempt', t.attempt,
    'failures', t.failures, 'takeovers', t.takeovers, 'version', t.version, 'created_at', t.created_at, 'deadline_at', t.deadline_at,
    'timeout_for', t.timeout_for, 'progress_for', t.progress_for, 'progress_at', t.progress_at, 'progress', t.progress,
    'run_id', t.run_id, 'step_id', t.step_id, 'flow_id', t.flow_id, 'scope', t.scope, 'root_id', t.root_id, 'trace_id', t.trace_id,
    'limit_key', t.limit_key, 'unique_key', t.unique_key, 'policy', t.policy, 'payload', t.payload, 'checkpoint', t.checkpoint,
    'error', t.error) as task
from tasks as t cross join lanes as l on l.id = t.lane_id;

-- name: ended
-- Finished tasks as the JSON of `Task`, and what they are chosen by.
create temp view ended as
select f.id, f.run_id, l.namespace, l.kind, l.task_list, l.name, f.state as shown_state,
  json_object('id', f.id, 'lane_id', f.lane_id, 'namespace', l.namespace, 'kind', l.kind, 'task_list', l.task_list, 'name', l.name,
    'priority', f.priority, 'state', f.state, 'due_at', f.due_at, 'owner_id', f.owner_id, 'claim_version', f.claim_version,
    'claimed_at', f.claimed_at, 'attempt', f.attempt, 'failures', f.failures, 'takeovers', f.takeovers, 'version', f.version,
    'created_at', f.created_at, 'deadline_at', f.deadline_at, 'timeout_for', f.timeout_for, 'progress_for', f.progress_for,
    'progress', f.progress, 'run_id', f.run_id, 'step_id', f.step_id, 'flow_id', f.flow_id, 'scope', f.scope, 'root_id', f.root_id,
    'trace_id', f.trace_id, 'limit_key', f.limit_key, 'unique_key', f.unique_key, 'policy', f.policy, 'payload', f.payload,
    'checkpoint', f.checkpoint, 'error', f.error, 'seq', f.seq, 'move', f.move, 'from_state', f.from_state, 'actor', f.actor,
    'finished_at', f.finished_at, 'result', f.result, 'error_code', f.error_code, 'fingerprint', f.fingerprint) as task
from finished as f cross join lanes as l on l.id = f.lane_id;

-- name: moves
-- All moves as the JSON of `Move`: the log, and the ends that finished tasks are.
create temp view moves as
select entity_id, version,
  json_object('seq', seq, 'at', at, 'entity', entity, 'entity_id', entity_id, 'version', version, 'move', move,
    'from_state', from_state, 'to_state', to_state, 'actor', actor, 'claim_version', claim_version, 'run_id', run_id,
    'root_id', root_id, 'trace_id', trace_id, 'data', data) as move
from log
union all
select id, version,
  json_object('seq', seq, 'at', finished_at, 'entity', 'task', 'entity_id', id, 'version', version, 'move', move,
    'from_state', from_state, 'to_state', state, 'actor', actor, 'claim_version', claim_version, 'run_id', run_id,
    'root_id', root_id, 'trace_id', trace_id, 'data', error)
from finished;
