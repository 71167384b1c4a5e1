-- name: find_run_version
-- The version of a run.
select version from runs where id = :id;

-- name: find_run_by_key
-- The run that has an idempotency key.
select id from runs where namespace = :namespace and idempotency_key = :key;

-- name: list_held
-- Which of the guards (id, claim version, owner, version) match a live task; an owner or version of null is any.
select json_group_array(r.key)
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
where t.claim_version = r.value ->> 1
  and t.owner_id is coalesce(r.value ->> 2, t.owner_id)
  and t.version = coalesce(r.value ->> 3, t.version);

-- name: list_ended
-- Which of the guards (id, claim version, null, version) match a finished task.
select json_group_array(r.key)
from jsonb_each(:rows) as r cross join finished as f on f.id = r.value ->> 0
where f.claim_version = r.value ->> 1 and f.version = r.value ->> 3;

-- name: bump_run
-- The run has been advanced.
update runs set version = version + 1, steps = steps + :added where id = :id;

-- name: insert_run
-- A new run.
insert into runs (id, namespace, kind, flow_id, workflow, state, version, moves, steps, task_list, priority, inputs, outputs, error,
  failed_step_id, idempotency_key, parent_id, parent_step_id, awaiting, root_id, trace_id, created_at, finished_at)
values (:id, :namespace, :kind, :flow_id, :workflow, :state, :version, :moves, :steps, :task_list, :priority, :inputs, :outputs,
  :error, :failed_step_id, :idempotency_key, :parent_id, :parent_step_id, :awaiting, :root_id, :trace_id, :now, null);

-- name: move_run
-- The run makes a move.
update runs
set state = :to_state, moves = moves + 1, outputs = :outputs, error = :error, failed_step_id = :failed_step_id,
  finished_at = iif(:to_state in ('completed', 'failed', 'canceled'), :now, null)
where id = :run_id and state = :from_state
returning moves, root_id, trace_id;

-- name: log_run
-- The row in the log for a run's move.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, run_id, root_id, trace_id, data)
values (:seq, :now, 'run', :run_id, :version, :move, :from_state, :to_state, :actor, :run_id, :root_id, :trace_id, :data);

-- name: put_steps
-- Insert steps, or replace them but for their inbox.
insert into steps (id, run_id, parent_id, ordinal, kind, name, facet, state, body, created_at, updated_at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, r.value ->> 5, r.value ->> 6, r.value ->> 7,
  r.value ->> 8, :now, :now
from jsonb_each(:rows) as r
where true
on conflict (id) do update
set ordinal = excluded.ordinal, kind = excluded.kind, name = excluded.name, facet = excluded.facet, state = excluded.state,
  body = excluded.body, updated_at = excluded.updated_at;

-- name: put_inbox
-- What a step's task came to, unless there is something already.
update steps set inbox = :inbox where id = :step_id and inbox is null;

-- name: clear_inbox
-- What was there has been taken in.
update steps set inbox = null where id in (select value from json_each(:ids));

-- name: put_flow
-- A flow, once.
insert into flows (id, namespace, sources, program, created_at)
values (:id, :namespace, :sources, :program, :now)
on conflict do nothing;

-- name: put_blob
-- A big value, once.
insert into blobs (digest, value) values (:digest, :value) on conflict do nothing;

-- name: use_blob
-- The tree uses the value.
insert into blob_uses (root_id, digest) values (:root_id, :digest) on conflict do nothing;

-- name: hold_run
-- Set the run-paused bit of the run's live tasks, but for those that await an outside job; those that nobody holds give up
-- their place under a limit.
update tasks
set hold = hold | 4 | (limit_key is not null and owner_id is null)
where run_id = :run_id and state <> 'awaiting_external';

-- name: free_run
-- Clear the run-paused bit of the run's live tasks.
update tasks set hold = hold & ~4 where run_id = :run_id;

-- name: list_ready_lanes
-- Lanes in which the run has ready tasks.
select json_group_array(distinct lane_id) from tasks where run_id = :run_id and owner_id is null and wake_at is null and hold = 0;

-- name: count_run_tasks
-- Live tasks of the run.
select count(*) from tasks where run_id = :run_id;

-- name: cancel_run_tasks
-- Copy the run's live tasks to finished, as canceled.
insert into finished (id, seq, lane_id, namespace, state, move, from_state, actor, owner_id, claim_version, version, attempt,
  failures, takeovers, priority, created_at, due_at, claimed_at, finished_at, deadline_at, timeout_for, progress_for, progress,
  run_id, step_id, flow_id, scope, root_id, trace_id, limit_key, unique_key, policy, payload, checkpoint, error, error_code)
select id, :first_seq + row_number() over (order by id) - 1, lane_id, namespace, 'canceled', 'cancel', state, :actor, owner_id,
  claim_version, version + 1, attempt, failures, takeovers, priority, created_at, due_at, claimed_at, :now, deadline_at,
  timeout_for, progress_for, progress, run_id, step_id, flow_id, scope, root_id, trace_id, limit_key, unique_key, policy,
  payload, checkpoint, :error, 'canceled'
from tasks
where run_id = :run_id;

-- name: drop_run_tasks
-- Delete the run's live tasks.
delete from tasks where run_id = :run_id;
