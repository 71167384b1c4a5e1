-- name: finish
-- Move tasks whose claim (id, claim version, owner, actor, transition, state, result, error, error code, fingerprint) is unchanged
-- from live to finished, and count them; unless :limited, skip those with a limit key. Otherwise return the counts by keys, which
-- need admission afterwards.
update seqs set value = value + json_array_length(:rows) where name = 'transition';
insert into finished ({carried}, seq, state, transition, from_state, actor, version, finished_at, result, error, error_code,
  fingerprint)
select {t.carried}, {sql:sqlite_first_seq} + r.key, r.value ->> 5, r.value ->> 4, t.state, r.value ->> 3, t.version + 1, :now,
  r.value ->> 6, r.value ->> 7, r.value ->> 8, r.value ->> 9
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
where t.claim_version = r.value ->> 1 and t.owner_id is r.value ->> 2 and (:limited or t.limit_key is null);
delete from tasks where id in (select id from finished where seq >= {sql:sqlite_first_seq});
select null, null, changes() where not :limited
union all
select namespace, coalesce(limit_keys, limit_key), count(*)
from finished
where :limited and seq >= {sql:sqlite_first_seq}
group by namespace, coalesce(limit_keys, limit_key);

-- name: requeue
-- Give tasks (id, state, actor, ...) new values and no owner, unless it stays, and log the transition of those that are not quiet.
update seqs set value = value + json_array_length(:rows) where name = 'transition';
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
  trace_id,
  data)
select {sql:sqlite_first_seq} + r.key, :now, 'task', t.id, t.version + 1, r.value ->> 3, t.state, r.value ->> 4, r.value ->> 2,
  t.claim_version, t.run_id, t.root_id, t.trace_id, r.value ->> 12
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
where not r.value ->> 13;
update tasks
set state = r.value ->> 4, attempt = r.value ->> 5, failures = r.value ->> 6, takeovers = r.value ->> 7,
  blocked_by = iif(r.value ->> 4 = 'awaiting_external', 0, tasks.blocked_by & 4) | iif(r.value ->> 3 = 'resume', 0, tasks.blocked_by & 8)
    | (r.value ->> 8) | (tasks.limit_key is not null and not (r.value ->> 15) and not (r.value ->> 16)),
  owner_id = iif(r.value ->> 15, tasks.owner_id, null),
  wake_at = iif(r.value ->> 15, tasks.wake_at, :now + (r.value ->> 9)),
  checkpoint = iif(r.value ->> 15, tasks.checkpoint, r.value ->> 10),
  error = r.value ->> 11, activity = r.value ->> 14, version = tasks.version + not (r.value ->> 13)
from jsonb_each(:rows) as r
where tasks.id = r.value ->> 0;

-- name: keep
-- Store the checkpoints of tasks (id, checkpoint, transition, data), and log their transitions, each once.
update seqs set value = value + json_array_length(:rows) where name = 'transition';
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
  trace_id,
  data)
select {sql:sqlite_first_seq} + r.key, :now, 'task', t.id, t.version + 1, r.value ->> 2, t.state, t.state, t.owner_id,
  t.claim_version,
  t.run_id, t.root_id, t.trace_id, r.value ->> 3
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
where r.value ->> 2 is not null
  and not exists (
    select 1
    from log as l
    where l.entity_id = t.id and l.claim_version = t.claim_version and l.transition = r.value ->> 2 and l.data is r.value ->> 3
  );
update tasks
set checkpoint = r.value ->> 1,
  version = tasks.version + exists (select 1 from log as l where l.seq = {sql:sqlite_first_seq} + r.key)
from jsonb_each(:rows) as r
where tasks.id = r.value ->> 0;

-- name: redrive
-- Make finished tasks (id, transition, actor, payload, failures, delay, data) live again: their end goes to the log, followed by the
-- transition. A unique key that was taken meanwhile is dropped, and a task without a limit key gets its queue's. Return ids and
-- keys.
update seqs set value = value + json_array_length(:rows) where name = 'transition';
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
  trace_id,
  data)
select f.seq, f.finished_at, 'task', f.id, f.version, f.transition, f.from_state, f.state, f.actor, f.claim_version, f.run_id,
  f.root_id,
  f.trace_id, f.error
from jsonb_each(:rows) as r cross join finished as f on f.id = r.value ->> 0;
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
  trace_id, data)
select {sql:sqlite_first_seq} + r.key, :now, 'task', f.id, f.version + 1, r.value ->> 1, f.state, 'pending', r.value ->> 2,
  f.claim_version, f.run_id, f.root_id, f.trace_id, r.value ->> 6
from jsonb_each(:rows) as r cross join finished as f on f.id = r.value ->> 0;
insert into tasks ({redriven}, due_at, wake_at, blocked_by, state, attempt, failures, takeovers, version, limit_key, payload, unique_key)
select {f.redriven}, :now, :now + (r.value ->> 5), coalesce(f.limit_key, queue.limit_key) is not null, 'pending',
  f.attempt + (f.claim_version > 0), r.value ->> 4, 0, f.version + 1, coalesce(f.limit_key, queue.limit_key),
  coalesce(r.value ->> 3, f.payload),
  case
    when row_number() over (partition by f.namespace, f.unique_key order by f.id) = 1
      and not exists (select 1 from tasks as t where t.namespace = f.namespace and t.unique_key = f.unique_key)
    then f.unique_key
  end
from jsonb_each(:rows) as r
  cross join finished as f on f.id = r.value ->> 0
  cross join queues as queue on queue.id = f.queue_id
returning id, namespace, coalesce(limit_keys, limit_key);
delete from finished where id in (select r.value ->> 0 from jsonb_each(:rows) as r);

-- name: discard_finished
-- Replace the ends of finished tasks (id, transition, state, actor); the old ends go to the log.
update seqs set value = value + json_array_length(:rows) where name = 'transition';
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
  trace_id,
  data)
select f.seq, f.finished_at, 'task', f.id, f.version, f.transition, f.from_state, f.state, f.actor, f.claim_version, f.run_id,
  f.root_id,
  f.trace_id, f.error
from jsonb_each(:rows) as r cross join finished as f on f.id = r.value ->> 0;
update finished
set seq = {sql:sqlite_first_seq} + r.key, from_state = state, state = r.value ->> 2, transition = r.value ->> 1, actor = r.value ->>
  3,
  version = version + 1, finished_at = :now
from jsonb_each(:rows) as r
where finished.id = r.value ->> 0;

-- name: mark_in_doubt
-- Mark the effects in progress of tasks (ids) that have an owner as unknown, and log a transition for each.
update seqs
set value = value + (
  select count(*)
  from json_each(:ids) as w
    cross join idempotency_outcomes as o on o.task_id = w.value and o.status = 'unknown' and o.unknown_at is null
    cross join tasks as t on t.id = o.task_id
  where t.owner_id is not null
)
where name = 'transition';
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
  trace_id,
  data)
select (select value from seqs where name = 'transition') + 1
    - row_number() over (order by t.id desc, o.created_at desc, o.idempotency_key desc), :now, 'task', t.id,
  t.version + row_number() over (partition by t.id order by o.created_at, o.idempotency_key), 'tool_call.unknown', t.state, t.state,
  t.owner_id, t.claim_version, t.run_id, t.root_id, t.trace_id, o.details
from json_each(:ids) as w
  cross join idempotency_outcomes as o on o.task_id = w.value and o.status = 'unknown' and o.unknown_at is null
  cross join tasks as t on t.id = o.task_id
where t.owner_id is not null;
update tasks
set version = version + moved.count
from (
  select o.task_id as id, count(*) as count
  from json_each(:ids) as w
    cross join idempotency_outcomes as o on o.task_id = w.value and o.status = 'unknown' and o.unknown_at is null
  group by 1
) as moved
where tasks.id = moved.id and owner_id is not null;
update idempotency_outcomes
set unknown_at = :now
where task_id in (select t.id from json_each(:ids) as w cross join tasks as t on t.id = w.value where t.owner_id is not null)
  and status = 'unknown' and unknown_at is null;
