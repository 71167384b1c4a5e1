-- name: finish(*rows, limited)
-- Move tasks whose claim is unchanged from live to finished, and return their counts by keys, which need admission afterwards;
-- without $11, skip those with a limit key.
with ended as (
  delete from tasks
  using unnest($1::text::uuid[], $2::text::integer[], $3::text::text[], $4::text::text[], $5::text::text[], $6::text::text[],
    $7::text[], $8::text[], $9::text[], $10::text[]) as given (id, claim_version, owner_id, actor, transition, end_state, result,
      end_error, error_code, fingerprint)
  where tasks.id = any (array[given.id]) and tasks.claim_version = given.claim_version
    and tasks.owner_id is not distinct from given.owner_id and ($11::boolean or tasks.limit_key is null)
  returning tasks.*, given.transition, given.end_state, given.actor, given.result, given.end_error, given.error_code,
    given.fingerprint
), moved as (
  insert into finished ({carried}, seq, state, transition, from_state, actor, version, finished_at, result, error, error_code,
    fingerprint)
  select {carried}, nextval('treadle_seq'), end_state, transition, state, actor, version + 1, (select treadle_now()), result,
    end_error,
    error_code, fingerprint
  from ended
)
select namespace, coalesce(limit_keys, limit_key), count(*) from ended group by namespace, coalesce(limit_keys, limit_key);

-- name: delete_ended(ids)
-- Remove live tasks $1 that have ended: a repeated insert that crossed their end created them again.
delete from tasks
using unnest($1::uuid[]) as given (id)
where tasks.id = any (array[given.id]) and exists (select from finished where finished.id = any (array[given.id]));

-- name: open_rest
-- Remove the bounds of the first partitions, which are not attached with them yet: the split starts again later.
select treadle_open_rest();

-- name: requeue(*rows)
-- Give locked tasks new values and no owner, unless it stays, and log the transition of those that are not quiet.
with given as materialized (
  select *
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::integer[], $8::integer[],
    $9::integer[], $10::bigint[], $11::text[], $12::text[], $13::text[], $14::boolean[], $15::text[], $16::boolean[],
    $17::boolean[])
    as given (id, from_state, actor, transition, to_state, attempt, failures, takeovers, blocked_by, delay, checkpoint, error, data,
      quiet, activity, stays, keeps_slot)
), requeued as (
  update tasks
  set state = given.to_state,
      attempt = given.attempt,
      failures = given.failures,
      takeovers = given.takeovers,
      blocked_by = case when given.to_state = 'awaiting_external' then 0 else tasks.blocked_by & 4 end
        | case when given.transition = 'resume' then 0 else tasks.blocked_by & 8 end | given.blocked_by
        | (tasks.limit_key is not null and not given.stays and not given.keeps_slot)::integer,
      owner_id = case when given.stays then tasks.owner_id end,
      wake_at = case when given.stays then tasks.wake_at else (select treadle_now()) + given.delay end,
      checkpoint = case when given.stays then tasks.checkpoint else given.checkpoint end,
      error = given.error,
      activity = given.activity,
      version = tasks.version + (not given.quiet)::integer
  from given
  where tasks.id = any (array[given.id])
  returning tasks.id, tasks.version, given.transition, given.from_state, given.to_state, given.actor, tasks.claim_version,
    tasks.run_id, tasks.root_id, tasks.trace_id, given.data, given.quiet
)
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
  trace_id,
  data)
select nextval('treadle_seq'), (select treadle_now()), 'task', id, version, transition, from_state, to_state, actor, claim_version,
  run_id, root_id, trace_id, data
from requeued
where not quiet;

-- name: keep(*rows)
-- Store the checkpoints of locked tasks ($1 ids, $2 checkpoints) and log their transitions ($3, with data $4), each once.
with given as materialized (
  select given.*, given.transition is not null and not exists (
      select
      from log
      where log.entity_id = tasks.id and log.claim_version = tasks.claim_version and log.transition = given.transition
        and log.data is not distinct from given.data
    ) as is_new
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) as given (id, checkpoint, transition, data)
  join tasks on tasks.id = any (array[given.id])
), kept as (
  update tasks
  set checkpoint = given.checkpoint, version = tasks.version + given.is_new::integer
  from given
  where tasks.id = any (array[given.id])
  returning tasks.id, tasks.version, tasks.state, tasks.owner_id, tasks.claim_version, tasks.run_id, tasks.root_id, tasks.trace_id,
    given.transition, given.data, given.is_new
)
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
  trace_id,
  data)
select nextval('treadle_seq'), (select treadle_now()), 'task', id, version, transition, state, state, owner_id, claim_version,
  run_id,
  root_id, trace_id, data
from kept
where is_new;

-- name: redrive(*rows)
-- Make locked finished tasks live again: their end goes to the log, followed by the transition. A task without a limit key gets
-- its queue's; returns ids and keys.
with given as materialized (
  select *
  from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::bigint[], $7::text[])
    as given (id, transition, actor, payload, failures, delay, data)
), gone as (
  delete from finished
  using given
  where finished.id = any (array[given.id])
  returning finished.*, given.transition as new_transition, given.actor as new_actor, given.payload as new_payload,
    given.failures as new_failures, given.delay, given.data as new_data
), ended as (
  insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
    trace_id,
    data)
  select seq, finished_at, 'task', id, version, transition, from_state, state, actor, claim_version, run_id, root_id, trace_id,
    error
  from gone
), redriven as (
  insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
    trace_id, data)
  select nextval('treadle_seq'), (select treadle_now()), 'task', id, version + 1, new_transition, state, 'pending', new_actor,
    claim_version, run_id, root_id, trace_id, new_data
  from gone
)
insert into tasks ({redriven}, due_at, wake_at, blocked_by, state, attempt, failures, takeovers, version, limit_key, payload, unique_key)
select {gone.redriven}, (select treadle_now()), (select treadle_now()) + gone.delay,
  (coalesce(gone.limit_key, queues.limit_key) is not null)::integer, 'pending', gone.attempt + (gone.claim_version > 0)::integer,
  gone.new_failures, 0, gone.version + 1, coalesce(gone.limit_key, queues.limit_key), coalesce(gone.new_payload, gone.payload),
  case
    when holder.id is null and row_number() over (partition by gone.namespace, gone.unique_key order by gone.id) = 1
    then gone.unique_key
  end
from gone
join queues on queues.id = gone.queue_id
left join tasks as holder on holder.namespace = gone.namespace and holder.unique_key = gone.unique_key
returning id::text, namespace, coalesce(limit_keys, limit_key);

-- name: discard_finished(*rows)
-- Replace the ends of locked finished tasks ($2 transitions, $3 states, $4 actors); the old ends go to the log.
with given as materialized (
  select * from unnest($1::uuid[], $2::text[], $3::text[], $4::text[]) as given (id, transition, state, actor)
), ended as (
  insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
    trace_id,
    data)
  select finished.seq, finished.finished_at, 'task', finished.id, finished.version, finished.transition, finished.from_state,
    finished.state, finished.actor, finished.claim_version, finished.run_id, finished.root_id, finished.trace_id, finished.error
  from given
  join finished on finished.id = any (array[given.id])
)
update finished
set seq = nextval('treadle_seq'),
    from_state = finished.state,
    state = given.state,
    transition = given.transition,
    actor = given.actor,
    version = finished.version + 1,
    finished_at = (select treadle_now())
from given
where finished.id = any (array[given.id]);

-- name: mark_in_doubt(ids)
-- Mark the effects in progress of locked tasks $1 that have an owner as unknown, and log a transition for each.
with marked as (
  update idempotency_outcomes as o
  set unknown_at = (select treadle_now())
  from tasks
  where o.task_id = any ($1::uuid[]) and o.status = 'unknown' and o.unknown_at is null
    and tasks.id = o.task_id and tasks.owner_id is not null
  returning o.task_id, o.idempotency_key, o.created_at, o.details
), counted as (
  update tasks
  set version = tasks.version + moved.count
  from (select task_id, count(*)::integer as count from marked group by task_id) as moved
  where tasks.id = any (array[moved.task_id])
  returning tasks.id, tasks.version - moved.count as version, tasks.state, tasks.owner_id, tasks.claim_version, tasks.run_id,
    tasks.root_id, tasks.trace_id
)
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
  trace_id,
  data)
select nextval('treadle_seq'), (select treadle_now()), 'task', counted.id,
  counted.version + row_number() over (partition by counted.id order by marked.created_at, marked.idempotency_key),
  'tool_call.unknown', state, state, owner_id, claim_version, run_id, root_id, trace_id, details
from counted
join marked on marked.task_id = counted.id;
