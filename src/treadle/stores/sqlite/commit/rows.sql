-- name: bump_runs
-- Raise the versions of runs (id, by how much, new steps), and add their number of new steps.
update runs
set version = version + (r.value ->> 1), steps = steps + (r.value ->> 2)
from jsonb_each(:rows) as r
where runs.id = r.value ->> 0;

-- name: insert_runs
-- Insert runs (as JSON) except those whose id or idempotency key exists; return the ids of the inserted ones.
insert into runs (id, namespace, kind, flow_id, workflow, state, version, transitions, steps, task_list, priority, inputs, outputs,
  error,
  failed_step_id, idempotency_key, parent_id, parent_step_id, awaiting, root_id, trace_id, created_at, finished_at,
  deadline_at, fairness_key, lineage_id, link, baggage)
select r.value ->> 'id', r.value ->> 'namespace', r.value ->> 'kind', r.value ->> 'flow_id', r.value ->> 'workflow',
  r.value ->> 'state', r.value ->> 'version', r.value ->> 'transitions', r.value ->> 'steps', r.value ->> 'task_list',
  r.value ->> 'priority', r.value ->> 'inputs', r.value ->> 'outputs', r.value ->> 'error', r.value ->> 'failed_step_id',
  r.value ->> 'idempotency_key', r.value ->> 'parent_id', r.value ->> 'parent_step_id', r.value ->> 'awaiting',
  r.value ->> 'root_id', r.value ->> 'trace_id', :now, null, r.value ->> 'deadline_at', r.value ->> 'fairness_key',
  r.value ->> 'lineage_id', r.value ->> 'link', r.value ->> 'baggage'
from jsonb_each(:runs) as r
where true
on conflict do nothing
returning id;

-- name: take_back_runs
-- Delete runs that were just inserted for units that are refused.
delete from runs where id in (select value from json_each(:ids));

-- name: find_runs_by_key
-- The runs with these idempotency keys (namespace, key).
select r.namespace, r.idempotency_key, r.id
from jsonb_each(:rows) as wanted
  cross join runs as r on r.namespace = wanted.value ->> 0 and r.idempotency_key = wanted.value ->> 1;

-- name: transition_runs(run_id, transition, from_state, to_state, actor, outputs, error, failed_step_id, data, timer_id) as each
-- Move a run to its next state, with a row in the log, and delete the task that waits for the deadline of a run that has ended; one
-- that a worker holds ends by itself.
update seqs set value = value + 1 where name = 'transition';
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, run_id, root_id, trace_id, data)
select (select value from seqs where name = 'transition'), :now, 'run', id, transitions + 1, :transition, :from_state, :to_state,
  :actor, id, root_id,
  trace_id, :data
from runs
where id = :run_id and state = :from_state;
delete from tasks
where id = :timer_id and owner_id is null and :to_state in ('completed', 'failed', 'canceled')
  and exists (select 1 from runs where id = :run_id and state = :from_state and deadline_at is not null);
update runs
set state = :to_state, transitions = transitions + 1, outputs = :outputs, error = :error, failed_step_id = :failed_step_id,
  finished_at = iif(:to_state in ('completed', 'failed', 'canceled'), :now, null),
  deadline_at = iif(:transition in ('retry', 'reopen'), null, deadline_at)
where id = :run_id and state = :from_state;

-- name: put_steps
-- Insert or replace steps; a replaced step keeps its inbox.
insert into steps (id, run_id, parent_id, ordinal, kind, name, facet, state, document, created_at, updated_at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, r.value ->> 5, r.value ->> 6, r.value ->> 7,
  r.value ->> 8, :now, :now
from jsonb_each(:rows) as r
where true
on conflict (id) do update
set ordinal = excluded.ordinal, kind = excluded.kind, name = excluded.name, facet = excluded.facet, state = excluded.state,
  document = excluded.document, updated_at = excluded.updated_at;

-- name: put_inbox
-- Store the results of steps' tasks (step, inbox) in empty inboxes.
update steps set inbox = r.value ->> 1 from jsonb_each(:rows) as r where steps.id = r.value ->> 0 and inbox is null;

-- name: clear_inbox
-- Empty the inboxes of steps.
update steps set inbox = null where id in (select value from json_each(:ids));

-- name: put_flows
-- Insert flows (id, namespace, sources, program) that do not exist.
insert into flows (id, namespace, sources, program, created_at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, :now
from jsonb_each(:rows) as r
where true
on conflict do nothing;

-- name: replace_flow
-- Replace the sources and the program of a damaged flow.
update flows set sources = :sources, program = :program where id = :id;

-- name: put_blobs
-- Insert large values (digest, value) that do not exist.
insert into blobs (digest, value) select r.value ->> 0, r.value ->> 1 from jsonb_each(:rows) as r where true on conflict do nothing;

-- name: use_blobs
-- Record the trees (root, digest) that use large values.
insert into blob_uses (root_id, digest)
select r.value ->> 0, r.value ->> 1 from jsonb_each(:rows) as r where true on conflict do nothing;

-- name: block_run
-- Set the run-paused bit of the run's live tasks, except those that await an external job; unclaimed ones lose their slot
-- under a limit. Return the limit keys.
update tasks
set blocked_by = blocked_by | 4 | (limit_key is not null and owner_id is null)
where run_id = :run_id and state <> 'awaiting_external'
returning null, namespace, coalesce(limit_keys, limit_key);

-- name: unblock_run
-- Clear the run-paused bit of the run's live tasks; return the queues in which tasks became ready, and limit keys.
update tasks
set blocked_by = blocked_by & ~4
where run_id = :run_id
returning iif(blocked_by = 0 and owner_id is null and wake_at is null, queue_id, null), namespace,
  coalesce(limit_keys, limit_key);

-- name: limit_task
-- Set the limit key of a live task; without an owner, it waits to be admitted. Return the namespace, the old and the new key.
select namespace, coalesce(limit_keys, limit_key), :key from tasks where id = :task_id;
update tasks
set limit_key = :key, limit_keys = null, blocked_by = iif(:key is null, blocked_by & ~1, blocked_by | (owner_id is null))
where id = :task_id;

-- name: release_keys
-- Remove the unique keys of live tasks.
update tasks set unique_key = null where id in (select value from json_each(:ids));

-- name: put_payload
-- Replace the payload of a live task, and the inputs of the run that it executes.
update tasks set payload = :payload where id = :task_id;
update runs set inputs = :payload where id = (select run_id from tasks where id = :task_id and step_id is null);

-- name: list_ready_queues_of
-- List the queues in which tasks are ready.
select distinct t.queue_id
from json_each(:ids) as w cross join tasks as t on t.id = w.value
where t.owner_id is null and t.wake_at is null and t.blocked_by = 0;

-- name: cancel_run_tasks
-- Move the run's live tasks to finished, as canceled; return their limit keys. With an inbox, only those that are not in progress,
-- and leave it in the empty inboxes of their steps.
update seqs
set value = value + (select count(*) from tasks where {sql:to_cancel})
where name = 'transition';
insert into finished ({carried}, seq, state, transition, from_state, actor, version, finished_at, error, error_code)
select {carried}, (select value from seqs where name = 'transition') + 1 - row_number() over (order by id desc), 'canceled',
  'cancel', state,
  :actor, version + 1, :now, :error, 'canceled'
from tasks
where {sql:to_cancel}
returning null, namespace, coalesce(limit_keys, limit_key);
update steps
set inbox = :inbox
where inbox is null and :inbox is not null and id in (select step_id from tasks where {sql:to_cancel});
delete from tasks where {sql:to_cancel};

-- name: dismiss_tasks
-- Take failed tasks out of the dead letters.
update finished set fingerprint = '' where id in (select value from json_each(:ids)) and state = 'failed';

-- name: dismiss_run
-- Take all failed tasks of the run out of the dead letters.
update finished set fingerprint = '' where run_id = :run_id and state = 'failed' and fingerprint is not '';

-- name: put_outcomes
-- Insert outcomes (key, call, status, hash, response, root, task, details, in_doubt), or replace unknown ones.
insert into idempotency_outcomes (idempotency_key, tool_call_id, status, response_hash, response, root_id, task_id, details,
  created_at,
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

-- name: lock_run_tasks
-- List the live tasks of a run; with an inbox, those that are not in progress.
select id from tasks where {sql:to_cancel};

-- name: put_checkpoints
-- Store steps (unit, task, claim version, owner, step ...), each under the claim of its unit, if it is held; of a step given twice,
-- the last one. Return the units and the block reasons of their tasks.
insert into steps (id, run_id, parent_id, ordinal, kind, name, facet, state, document, created_at, updated_at)
select r.value ->> 4, r.value ->> 5, r.value ->> 6, r.value ->> 7, r.value ->> 8, r.value ->> 9, r.value ->> 10, r.value ->> 11,
  r.value ->> 12, :now, :now
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 1
where t.claim_version = r.value ->> 2 and t.owner_id = r.value ->> 3
on conflict (id) do update
set ordinal = excluded.ordinal, kind = excluded.kind, name = excluded.name, facet = excluded.facet, state = excluded.state,
  document = excluded.document, updated_at = excluded.updated_at;
select distinct r.value ->> 0, t.blocked_by
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 1
where t.claim_version = r.value ->> 2 and t.owner_id = r.value ->> 3;

-- name: put_run_tags
-- Set tags (key, value) of a run, if it exists and has fewer than the limit.
insert into tags (owner_id, key, value, entity, namespace, created_at)
select runs.id, r.value ->> 0, r.value ->> 1, 'run', runs.namespace, runs.created_at
from runs cross join jsonb_each(:rows) as r
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
) as t cross join jsonb_each(:rows) as r
where (select count(*) from tags where owner_id = :owner_id) < :kept
  or exists (select 1 from tags where owner_id = :owner_id and key = r.value ->> 0)
on conflict (owner_id, key) do update set value = excluded.value;
