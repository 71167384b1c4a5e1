-- name: insert_runs(runs)
-- Insert runs (as JSON) except those whose id or idempotency key exists; return the ids of the inserted ones.
insert into runs (id, namespace, kind, flow_id, workflow, state, version, transitions, steps, task_list, priority, inputs, outputs,
  error,
  failed_step_id, idempotency_key, parent_id, parent_step_id, awaiting, root_id, trace_id, created_at, deadline_at, fairness_key,
  lineage_id, link, baggage)
select id, namespace, kind, flow_id, workflow, state, version, transitions, steps, task_list, priority, inputs, outputs, error,
  failed_step_id, idempotency_key, parent_id, parent_step_id, awaiting, root_id, trace_id, (select treadle_now()), deadline_at,
    fairness_key,
  lineage_id, link, baggage
from json_populate_recordset(null::runs, $1::text::json)
on conflict do nothing
returning id::text;

-- name: take_back_runs(ids)
-- Delete runs that were just inserted for units that are refused.
delete from runs where id = any ($1::uuid[]);

-- name: find_runs_by_key(*rows)
-- Return the runs with these idempotency keys.
select runs.namespace, runs.idempotency_key, runs.id::text
from unnest($1::text[], $2::text[]) as given (namespace, key)
join runs on runs.namespace = given.namespace and runs.idempotency_key = given.key;

-- name: bump_runs(*rows)
-- Raise the versions of runs, and add their number of new steps.
update runs set version = version + given.count, steps = steps + given.added
from unnest($1::text::uuid[], $2::text::integer[], $3::text::integer[]) as given (id, count, added)
where runs.id = any (array[given.id]);

-- name: transition_runs(*rows)
-- Move runs to their next states, each with a row in the log; the row count is the number of transitions.
with given as materialized (
  select *
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::uuid[], $9::text[],
    $10::uuid[])
    as given (id, transition, from_state, to_state, actor, outputs, error, failed_step_id, data, timer_id)
), moved as (
  update runs
  set state = given.to_state,
      transitions = runs.transitions + 1,
      outputs = given.outputs,
      error = given.error,
      failed_step_id = given.failed_step_id,
      finished_at = case when given.to_state in ('completed', 'failed', 'canceled') then (select treadle_now()) end,
      deadline_at = case when given.transition not in ('retry', 'reopen') then runs.deadline_at end
  from given
  where runs.id = any (array[given.id]) and runs.state = given.from_state
  returning case when runs.finished_at is not null and runs.deadline_at is not null then given.timer_id end as timer_id, runs.id,
    runs.transitions, runs.root_id, runs.trace_id, given.transition, given.from_state, given.to_state, given.actor, given.data
), timers as materialized (
  -- A timer that a worker holds ends by itself.
  select id from tasks where id in (select timer_id from moved) and owner_id is null for update skip locked
), dropped as (
  delete from tasks using timers where tasks.id = any (array[timers.id])
)
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, run_id, root_id, trace_id, data)
select nextval('treadle_seq'), (select treadle_now()), 'run', id, transitions, transition, from_state, to_state, actor, id, root_id,
  trace_id, data
from moved;

-- name: put_steps(*rows)
-- Insert or replace steps; a replaced step keeps its inbox.
insert into steps (id, run_id, parent_id, ordinal, kind, name, facet, state, document, created_at, updated_at)
select given.*, (select treadle_now()), (select treadle_now())
from unnest($1::text::uuid[], $2::text::uuid[], $3::text::uuid[], $4::text::integer[], $5::text::text[], $6::text::text[],
  $7::text::text[], $8::text::text[], $9::text[])
  as given (id, run_id, parent_id, ordinal, kind, name, facet, state, document)
on conflict (id) do update
set ordinal = excluded.ordinal, kind = excluded.kind, name = excluded.name, facet = excluded.facet, state = excluded.state,
  document = excluded.document, updated_at = excluded.updated_at;

-- name: put_inbox(*rows)
-- Store the results of steps' tasks in empty inboxes.
update steps set inbox = given.inbox
from unnest($1::uuid[], $2::text[]) as given (id, inbox)
where steps.id = any (array[given.id]) and steps.inbox is null;

-- name: clear_inbox(ids)
-- Empty the inboxes of steps.
update steps set inbox = null from unnest($1::uuid[]) as given (id) where steps.id = any (array[given.id]);

-- name: put_flows(*rows)
-- Insert flows that do not exist.
insert into flows (id, namespace, sources, program, created_at)
select *, (select treadle_now()) from unnest($1::text[], $2::text[], $3::text[], $4::text[])
on conflict do nothing;

-- name: replace_flow(id, sources, program)
-- Replace the sources and the program of a damaged flow.
update flows set sources = $2::text, program = $3::text where id = $1::text;

-- name: put_blobs(*rows)
-- Insert large values that do not exist.
insert into blobs (digest, value) select * from unnest($1::text[], $2::text[]) on conflict do nothing;

-- name: use_blobs(*rows)
-- Record the trees that use large values.
insert into blob_uses (root_id, digest) select * from unnest($1::uuid[], $2::text[]) on conflict do nothing;

-- name: block_run(run_id)
-- Set the run-paused bit of the run's live tasks, except those that await an external job; unclaimed ones lose their slot
-- under a limit. Returns the limit keys.
with locked as materialized (
  select id from tasks where run_id = $1::uuid and state <> 'awaiting_external' order by id for update
), blocked as (
  update tasks
  set blocked_by = tasks.blocked_by | 4 | (tasks.limit_key is not null and tasks.owner_id is null)::integer
  from locked
  where tasks.id = any (array[locked.id])
  returning tasks.namespace, coalesce(tasks.limit_keys, tasks.limit_key) as limit_key
)
select distinct null::integer, namespace, limit_key from blocked where limit_key is not null;

-- name: unblock_run(run_id)
-- Clear the run-paused bit of the run's live tasks; return the queues in which tasks became ready, and limit keys.
with locked as materialized (
  select id from tasks where run_id = $1::uuid order by id for update
), unblocked as (
  update tasks set blocked_by = tasks.blocked_by & ~4 from locked where tasks.id = any (array[locked.id])
  returning tasks.queue_id, tasks.blocked_by, tasks.owner_id, tasks.wake_at, tasks.namespace,
    coalesce(tasks.limit_keys, tasks.limit_key) as limit_key
)
select distinct case when blocked_by = 0 and owner_id is null and wake_at is null then queue_id end, namespace, limit_key from unblocked;

-- name: cancel_run_tasks(run_id, actor, error, inbox)
-- Move the run's live tasks to finished, as canceled by $2 with error $3; return their limit keys. With $4, only those that are
-- not in progress, and leave $4 in the empty inboxes of their steps.
with locked as materialized (
  select id from tasks
  where run_id = $1::uuid and ($4::text is null or (tasks.step_id is not null and (tasks.state = 'awaiting_approval'
    or (tasks.owner_id is null and tasks.state = 'pending' and (tasks.claim_version = 0 or tasks.failures > 0)))))
  order by id for update
), ended as (
  delete from tasks using locked where tasks.id = any (array[locked.id]) returning tasks.*
), made as (
  insert into finished ({carried}, seq, state, transition, from_state, actor, version, finished_at, error, error_code)
  select {carried}, nextval('treadle_seq'), 'canceled', 'cancel', state, $2::text, version + 1, (select treadle_now()), $3::text,
    'canceled'
  from ended
  returning namespace, coalesce(limit_keys, limit_key) as limit_key
), left_over as (
  update steps set inbox = $4::text from ended
  where $4::text is not null and steps.id = any (array[ended.step_id]) and steps.inbox is null
)
select distinct null::integer, namespace, limit_key from made where limit_key is not null;

-- name: release_keys(ids)
-- Remove the unique keys of live tasks.
update tasks set unique_key = null where id = any ($1::uuid[]);

-- name: put_payload(task_id, payload)
-- Replace the payload of a live task, and the inputs of the run that it executes.
with changed as (
  update tasks set payload = $2::text where id = $1::uuid returning run_id, step_id
)
update runs set inputs = $2::text from changed where runs.id = changed.run_id and changed.step_id is null;

-- name: limit_task(task_id, key)
-- Set the limit key of a live task; without an owner, it waits to be admitted. Return the namespace, the old and the new key.
with before as materialized (
  select id, coalesce(limit_keys, limit_key) as limit_key from tasks where id = $1::uuid for update
)
update tasks
set limit_key = $2::text, limit_keys = null,
    blocked_by = case when $2::text is null then tasks.blocked_by & ~1 else tasks.blocked_by | (tasks.owner_id is null)::integer end
from before
where tasks.id = any (array[before.id])
returning tasks.namespace, before.limit_key, tasks.limit_key;

-- name: dismiss_tasks(ids)
-- Take failed tasks out of the dead letters.
update finished set fingerprint = '' where id = any($1::uuid[]) and state = 'failed';

-- name: dismiss_run(run_id)
-- Take all failed tasks of the run out of the dead letters.
update finished set fingerprint = '' where run_id = $1::uuid and state = 'failed' and fingerprint is distinct from '';

-- name: put_checkpoints(*rows)
-- Store steps (from $5), each under the claim ($2 ids, $3 versions, $4 owners) of its unit ($1), if it is held; of a step
-- given twice, the last one. Lock the tasks in order of id; return the units and the block reasons of their tasks.
with kept as materialized (
  select given.*, tasks.blocked_by
  from unnest($1::text::integer[], $2::text::uuid[], $3::text::integer[], $4::text::text[], $5::text::uuid[], $6::text::uuid[],
    $7::text::uuid[], $8::text::integer[], $9::text::text[], $10::text::text[], $11::text::text[], $12::text::text[],
    $13::text[]) with ordinality
    as given (unit, task_id, claim_version, owner_id, id, run_id, parent_id, ordinal, kind, name, facet, state, document, number)
  join tasks on tasks.id = any (array[given.task_id]) and tasks.claim_version = given.claim_version
    and tasks.owner_id = given.owner_id
  order by tasks.id
  for no key update of tasks
), put as (
  insert into steps (id, run_id, parent_id, ordinal, kind, name, facet, state, document, created_at, updated_at)
  select distinct on (id) id, run_id, parent_id, ordinal, kind, name, facet, state, document, (select treadle_now()),
    (select treadle_now())
  from kept
  order by id, number desc
  on conflict (id) do update
  set ordinal = excluded.ordinal, kind = excluded.kind, name = excluded.name, facet = excluded.facet, state = excluded.state,
    document = excluded.document, updated_at = excluded.updated_at
)
select unit, blocked_by from kept;

-- name: list_ready_queues_of(ids)
-- List the queues in which tasks $1 are ready.
select distinct queue_id from tasks where id = any ($1::uuid[]) and owner_id is null and wake_at is null and blocked_by = 0;

-- name: put_outcomes(*rows)
-- Insert outcomes ($9: in_doubt), or replace unknown ones.
insert into idempotency_outcomes (idempotency_key, tool_call_id, status, response_hash, response, root_id, task_id, details,
  created_at,
  resolved_at, unknown_at)
select idempotency_key, tool_call_id, status, response_hash, response, root_id, task_id, details, (select treadle_now()),
  case when status <> 'unknown' then (select treadle_now()) end, case when in_doubt then (select treadle_now()) end
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::uuid[], $8::text[], $9::boolean[])
  as given (idempotency_key, tool_call_id, status, response_hash, response, root_id, task_id, details, in_doubt)
on conflict (idempotency_key) do update
set tool_call_id = excluded.tool_call_id, status = excluded.status, response_hash = excluded.response_hash,
  response = excluded.response, resolved_at = excluded.resolved_at,
  task_id = coalesce(excluded.task_id, idempotency_outcomes.task_id),
  details = coalesce(excluded.details, idempotency_outcomes.details),
  unknown_at = coalesce(idempotency_outcomes.unknown_at, excluded.unknown_at)
where idempotency_outcomes.status = 'unknown';

-- name: lock_run_tasks(run_id, inbox)
-- Lock the live tasks of a run in order of id; with $2, those that are not in progress.
select id::text from tasks
where run_id = $1::uuid and ($2::text is null or (tasks.step_id is not null and (tasks.state = 'awaiting_approval'
    or (tasks.owner_id is null and tasks.state = 'pending' and (tasks.claim_version = 0 or tasks.failures > 0)))))
order by id for update;

-- name: put_run_tags(owner_id, *rows, kept)
-- Set the tags of the run $1 ($2 keys, $3 values), if it exists and has fewer than $4.
insert into tags (owner_id, key, value, entity, namespace, created_at)
select runs.id, given.key, given.value, 'run', runs.namespace, runs.created_at
from runs cross join unnest($2::text[], $3::text[]) as given (key, value)
where runs.id = $1::uuid
  and ((select count(*) from tags where owner_id = $1::uuid) < $4::bigint
    or exists (select from tags where owner_id = $1::uuid and tags.key = given.key))
on conflict (owner_id, key) do update set value = excluded.value;

-- name: put_task_tags(owner_id, *rows, kept)
-- Set the tags of the live or finished task $1 ($2 keys, $3 values), if it exists and has fewer than $4.
insert into tags (owner_id, key, value, entity, namespace, created_at)
select t.id, given.key, given.value, 'task', t.namespace, t.created_at
from (
  select id, namespace, created_at from tasks where id = $1::uuid
  union all
  select id, namespace, created_at from finished where id = $1::uuid
) as t cross join unnest($2::text[], $3::text[]) as given (key, value)
where (select count(*) from tags where owner_id = $1::uuid) < $4::bigint
  or exists (select from tags where owner_id = $1::uuid and tags.key = given.key)
on conflict (owner_id, key) do update set value = excluded.value;
