-- name: bump_runs
-- Raise the versions of runs (id, by how much, new steps), and add their number of new steps.
update runs
set version = version + (r.value ->> 1), steps = steps + (r.value ->> 2)
from jsonb_each(:rows) as r
where runs.id = r.value ->> 0;

-- name: insert_run
-- Insert a run.
insert into runs (id, namespace, kind, flow_id, workflow, state, version, moves, steps, task_list, priority, inputs, outputs, error,
  failed_step_id, idempotency_key, parent_id, parent_step_id, awaiting, root_id, trace_id, created_at, finished_at,
  deadline_at, fairness_key, chain_id, link)
values (:id, :namespace, :kind, :flow_id, :workflow, :state, :version, :moves, :steps, :task_list, :priority, :inputs, :outputs,
  :error, :failed_step_id, :idempotency_key, :parent_id, :parent_step_id, :awaiting, :root_id, :trace_id, :now, null,
  :deadline_at, :fairness_key, :chain_id, :link);

-- name: move_run
-- Move the run to its next state.
update runs
set state = :to_state, moves = moves + 1, outputs = :outputs, error = :error, failed_step_id = :failed_step_id,
  finished_at = iif(:to_state in ('completed', 'failed', 'canceled'), :now, null),
  deadline_at = iif(:move = 'retry', null, deadline_at)
where id = :run_id and state = :from_state
returning moves, root_id, trace_id, iif(finished_at is null, null, deadline_at);

-- name: drop_timer
-- Delete the task that waits for the deadline of a run that has ended; one that a worker holds ends by itself.
delete from tasks where id = :id and owner_id is null;

-- name: log_run
-- Log the move of a run.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, run_id, root_id, trace_id, data)
values (:seq, :now, 'run', :run_id, :version, :move, :from_state, :to_state, :actor, :run_id, :root_id, :trace_id, :data);

-- name: put_steps
-- Insert or replace steps; a replaced step keeps its inbox.
insert into steps (id, run_id, parent_id, ordinal, kind, name, facet, state, body, created_at, updated_at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, r.value ->> 5, r.value ->> 6, r.value ->> 7,
  r.value ->> 8, :now, :now
from jsonb_each(:rows) as r
where true
on conflict (id) do update
set ordinal = excluded.ordinal, kind = excluded.kind, name = excluded.name, facet = excluded.facet, state = excluded.state,
  body = excluded.body, updated_at = excluded.updated_at;

-- name: put_inbox
-- Store the result of a step's task in an empty inbox.
update steps set inbox = :inbox where id = :step_id and inbox is null;

-- name: clear_inbox
-- Empty the inboxes of steps.
update steps set inbox = null where id in (select value from json_each(:ids));

-- name: put_flow
-- Insert a flow that does not exist, or replace its sources and program.
insert into flows (id, namespace, sources, program, created_at)
values (:id, :namespace, :sources, :program, :now)
on conflict do update set sources = excluded.sources, program = excluded.program where :anew;

-- name: put_blob
-- Insert a large value that does not exist.
insert into blobs (digest, value) values (:digest, :value) on conflict do nothing;

-- name: use_blob
-- Record the tree that uses a large value.
insert into blob_uses (root_id, digest) values (:root_id, :digest) on conflict do nothing;

-- name: hold_run
-- Set the run-paused bit of the run's live tasks, except those that await an external job; unclaimed ones lose their slot
-- under a limit.
update tasks
set hold = hold | 4 | (limit_key is not null and owner_id is null)
where run_id = :run_id and state <> 'awaiting_external';

-- name: free_run
-- Clear the run-paused bit of the run's live tasks.
update tasks set hold = hold & ~4 where run_id = :run_id;

-- name: find_limit_key
-- Return the limit key of a live task.
select namespace, limit_key from tasks where id = :task_id;

-- name: limit_task
-- Set the limit key of a live task; without an owner, it waits to be admitted.
update tasks
set limit_key = :key, hold = iif(:key is null, hold & ~1, hold | (owner_id is null))
where id = :task_id;

-- name: list_ready_lanes
-- Return the lanes in which the run has ready tasks.
select json_group_array(distinct lane_id) from tasks where run_id = :run_id and owner_id is null and wake_at is null and hold = 0;

-- name: count_run_tasks
-- Count the live tasks of the run; with an inbox, those that are not in progress.
select count(*) from tasks where run_id = :run_id and (:inbox is null or (step_id is not null and (state = 'awaiting_approval'
    or (owner_id is null and state = 'pending' and (claim_version = 0 or failures > 0)))));

-- name: cancel_run_tasks
-- Copy the run's live tasks to finished, as canceled; with an inbox, those that are not in progress.
insert into finished ({carried}, seq, state, move, from_state, actor, version, finished_at, error, error_code)
select {carried}, :first_seq + row_number() over (order by id) - 1, 'canceled', 'cancel', state, :actor, version + 1, :now, :error,
  'canceled'
from tasks
where run_id = :run_id and (:inbox is null or (step_id is not null and (state = 'awaiting_approval'
    or (owner_id is null and state = 'pending' and (claim_version = 0 or failures > 0)))));

-- name: leave_in_inboxes
-- Store the same result in the empty inboxes of the steps whose tasks are not in progress.
update steps
set inbox = :inbox
where inbox is null and id in (select step_id from tasks where run_id = :run_id and (:inbox is null or (step_id is not null and (state = 'awaiting_approval'
    or (owner_id is null and state = 'pending' and (claim_version = 0 or failures > 0))))));

-- name: drop_run_tasks
-- Delete the run's live tasks; with an inbox, those that are not in progress.
delete from tasks where run_id = :run_id and (:inbox is null or (step_id is not null and (state = 'awaiting_approval'
    or (owner_id is null and state = 'pending' and (claim_version = 0 or failures > 0)))));

-- name: dismiss_tasks
-- Take failed tasks out of the dead letters.
update finished set fingerprint = '' where id in (select value from json_each(:ids)) and state = 'failed';

-- name: dismiss_run
-- Take all failed tasks of the run out of the dead letters.
update finished set fingerprint = '' where run_id = :run_id and state = 'failed' and fingerprint is not '';

-- name: put_outcomes
-- Insert outcomes (key, call, status, hash, response, root, task, details, doubted), or replace unknown ones.
insert into idempotency_outcomes (idempotency_key, tool_call_id, status, response_hash, response, root_id, task_id, details, created_at,
  resolved_at, unknown_at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, r.value ->> 5, r.value ->> 6, r.value ->> 7, :now,
  iif(r.value ->> 2 = 'unknown', null, :now), iif(r.value ->> 8, :now, null)
from jsonb_each(:rows) as r
where true
on conflict (idempotency_key) do update
set tool_call_id = excluded.tool_call_id, status = excluded.status, response_hash = excluded.response_hash,
  response = excluded.response, resolved_at = excluded.resolved_at, task_id = coalesce(excluded.task_id, task_id),
  details = coalesce(excluded.details, details), unknown_at = coalesce(unknown_at, excluded.unknown_at)
where status = 'unknown';

-- name: list_run_task_ids
-- List the live tasks of a run; with an inbox, those that are not in progress.
select json_group_array(id) from tasks where run_id = :run_id and (:inbox is null or (step_id is not null and (state = 'awaiting_approval'
    or (owner_id is null and state = 'pending' and (claim_version = 0 or failures > 0)))));

-- name: put_run_tags
-- Set tags (key, value) of a run, if it exists and has fewer than the limit.
insert into tags (owner_id, key, value, entity, namespace, created_at)
select runs.id, r.value ->> 0, r.value ->> 1, 'run', runs.namespace, runs.created_at
from runs cross join json_each(:rows) as r
where runs.id = :owner_id
  and ((select count(*) from tags where owner_id = :owner_id) < :kept
    or exists (select 1 from tags where owner_id = :owner_id and key = r.value ->> 0))
on conflict (owner_id, key) do update set value = excluded.value;

-- name: put_task_tags
-- Set tags (key, value) of a live or finished task, if it exists and has fewer than the limit.
insert into tags (owner_id, key, value, entity, namespace, created_at)
select t.id, r.value ->> 0, r.value ->> 1, 'task', t.namespace, t.created_at
from (
  select id, namespace, created_at from tasks where id = :owner_id
  union all
  select id, namespace, created_at from finished where id = :owner_id
) as t cross join json_each(:rows) as r
where (select count(*) from tags where owner_id = :owner_id) < :kept
  or exists (select 1 from tags where owner_id = :owner_id and key = r.value ->> 0)
on conflict (owner_id, key) do update set value = excluded.value;
