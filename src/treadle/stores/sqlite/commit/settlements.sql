-- name: take_seqs
-- Take that many seqs for moves; return the last of them.
update seqs set value = value + :count where name = 'move' returning value;

-- name: finish
-- Copy tasks to finished whose guard (id, claim version, owner, version, ...) matches; null means any owner or version.
insert into finished ({carried}, seq, state, move, from_state, actor, version, finished_at, result, error, error_code, fingerprint)
select {t.carried}, :first_seq + r.key, r.value ->> 5, r.value ->> 6, t.state, r.value ->> 4, t.version + 1, :now, r.value ->> 7,
  r.value ->> 8, r.value ->> 9, r.value ->> 10
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
where t.claim_version = r.value ->> 1
  and t.owner_id is coalesce(r.value ->> 2, t.owner_id)
  and t.version = coalesce(r.value ->> 3, t.version);

-- name: drop_finished
-- Delete the live rows of tasks that `finish` has copied.
delete from tasks where id in (select id from finished where seq >= :first_seq and seq < :first_seq + :count);

-- name: has_admitted
-- Return whether a task with a limit key is admitted: otherwise, no end makes room.
select exists (select 1 from tasks where limit_key is not null and (hold & 1) = 0);

-- name: list_freed
-- List the limit keys of the tasks that `finish` has copied.
select json_group_array(distinct json_array(namespace, limit_key))
from finished
where seq >= :first_seq and seq < :first_seq + :count and limit_key is not null;

-- name: list_just_finished
-- List the rows of `finish` that matched.
select json_group_array(seq - :first_seq) from finished where seq >= :first_seq and seq < :first_seq + :count;

-- name: log_parks
-- Log the moves of parked tasks whose guard (id, claim version, owner, version, ...) matches.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, claim_version, run_id, root_id, trace_id,
  data)
select :first_seq + r.key, :now, 'task', t.id, t.version + 1, r.value ->> 6, t.state, r.value ->> 5, r.value ->> 4, t.claim_version,
  t.run_id, t.root_id, t.trace_id, r.value ->> 14
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
where t.claim_version = r.value ->> 1
  and t.owner_id is coalesce(r.value ->> 2, t.owner_id)
  and t.version = coalesce(r.value ->> 3, t.version);

-- name: park
-- Write the new values of tasks whose move `log_parks` has logged, and remove their owner, unless it stays.
update tasks
set state = r.value ->> 5, attempt = r.value ->> 7, failures = r.value ->> 8, takeovers = r.value ->> 9,
  hold = iif(r.value ->> 5 = 'awaiting_external', 0, tasks.hold & 4) | iif(r.value ->> 6 = 'resume', 0, tasks.hold & 8)
    | (r.value ->> 10) | (tasks.limit_key is not null and not (r.value ->> 16)),
  owner_id = iif(r.value ->> 16, tasks.owner_id, null),
  wake_at = iif(r.value ->> 16, tasks.wake_at, :now + (r.value ->> 11)),
  checkpoint = iif(r.value ->> 16, tasks.checkpoint, r.value ->> 12),
  error = r.value ->> 13, doing = r.value ->> 15, version = tasks.version + 1
from jsonb_each(:rows) as r, log as l
where l.seq = :first_seq + r.key and tasks.id = l.entity_id;

-- name: park_quietly
-- Write the new values of tasks whose guard (id, claim version, owner, version, ...) matches, and remove their owner,
-- without a log entry; return the ids, the lanes in which tasks became ready, and limit keys.
update tasks
set state = r.value ->> 5, attempt = r.value ->> 7, failures = r.value ->> 8, takeovers = r.value ->> 9,
  hold = iif(r.value ->> 5 = 'awaiting_external', 0, tasks.hold & 4) | (tasks.hold & 8) | (r.value ->> 10)
    | (tasks.limit_key is not null),
  owner_id = null, wake_at = :now + (r.value ->> 11), checkpoint = r.value ->> 12, error = r.value ->> 13,
  doing = r.value ->> 15
from jsonb_each(:rows) as r
where tasks.id = r.value ->> 0 and claim_version = r.value ->> 1
  and owner_id is coalesce(r.value ->> 2, owner_id)
  and version = coalesce(r.value ->> 3, version)
returning id, iif(wake_at is null and hold = 0, lane_id, null), namespace, limit_key;

-- name: list_just_parked
-- List the rows of `log_parks` or `log_revivals` that matched, the lanes in which tasks became ready, and limit keys.
select json_group_array(json_array(l.seq - :first_seq, iif(t.wake_at is null and t.hold = 0, t.lane_id, null), t.namespace, t.limit_key))
from log as l cross join tasks as t on t.id = l.entity_id
where l.seq >= :first_seq and l.seq < :first_seq + :count;

-- name: log_keeps
-- Log the moves of held claims (id, version, owner, checkpoint, move, data), each once.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, claim_version, run_id, root_id, trace_id,
  data)
select :first_seq + r.key, :now, 'task', t.id, t.version + 1, r.value ->> 4, t.state, t.state, t.owner_id, t.claim_version, t.run_id,
  t.root_id, t.trace_id, r.value ->> 5
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
where t.claim_version = r.value ->> 1 and t.owner_id = r.value ->> 2 and r.value ->> 4 is not null
  and not exists (
    select 1
    from log as l
    where l.entity_id = t.id and l.claim_version = t.claim_version and l.move = r.value ->> 4 and l.data is r.value ->> 5
  );

-- name: count_keeps
-- Count the moves that `log_keeps` has logged.
update tasks
set version = version + 1
where id in (select entity_id from log where seq >= :first_seq and seq < :first_seq + :count);

-- name: keep
-- Store checkpoints (id, version, owner, checkpoint, ...) of held claims; return the tasks and their hold.
update tasks
set checkpoint = r.value ->> 3
from jsonb_each(:rows) as r
where tasks.id = r.value ->> 0 and claim_version = r.value ->> 1 and owner_id = r.value ->> 2
returning id, hold;

-- name: list_staying
-- List those of the claims (id, version, owner) that are held, and the hold of their tasks.
select json_group_array(json_array(r.key, t.hold))
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
where t.claim_version = r.value ->> 1 and t.owner_id = r.value ->> 2;

-- name: log_revivals
-- Log the moves of finished tasks that become live again, if the guard (id, claim version, null, version, ...) matches.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, claim_version, run_id, root_id, trace_id)
select :first_seq + r.key, :now, 'task', f.id, f.version + 1, r.value ->> 5, f.state, 'pending', r.value ->> 4, f.claim_version,
  f.run_id, f.root_id, f.trace_id
from jsonb_each(:rows) as r cross join finished as f on f.id = r.value ->> 0
where f.claim_version = r.value ->> 1 and f.version = r.value ->> 3;

-- name: log_ends
-- Copy the ends of tasks whose revival is logged to the log, before their rows are deleted.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, claim_version, run_id, root_id, trace_id,
  data)
select f.seq, f.finished_at, 'task', f.id, f.version, f.move, f.from_state, f.state, f.actor, f.claim_version, f.run_id, f.root_id,
  f.trace_id, f.error
from log as l cross join finished as f on f.id = l.entity_id
where l.seq >= :first_seq and l.seq < :first_seq + :count;

-- name: revive
-- Insert live rows for tasks whose revival is logged; a unique key that was taken meanwhile is dropped, and a task without
-- a limit key gets its lane's.
insert into tasks ({revived}, due_at, wake_at, hold, state, attempt, failures, takeovers, version, limit_key, payload, unique_key)
select {f.revived}, :now, :now + (r.value ->> 8), coalesce(f.limit_key, lane.limit_key) is not null, 'pending',
  f.attempt + (f.claim_version > 0), r.value ->> 7, 0, f.version + 1, coalesce(f.limit_key, lane.limit_key),
  coalesce(r.value ->> 6, f.payload),
  case
    when row_number() over (partition by f.namespace, f.unique_key order by f.id) = 1
      and not exists (select 1 from tasks as t where t.namespace = f.namespace and t.unique_key = f.unique_key)
    then f.unique_key
  end
from jsonb_each(:rows) as r
  cross join log as l on l.seq = :first_seq + r.key
  cross join finished as f on f.id = l.entity_id
  cross join lanes as lane on lane.id = f.lane_id;

-- name: drop_revived
-- Delete the finished rows of tasks whose revival is logged.
delete from finished where id in (select entity_id from log where seq >= :first_seq and seq < :first_seq + :count);

-- name: log_amended
-- Copy the ends that `amend` will replace to the log, if the guard (id, claim version, null, version, ...) matches.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, claim_version, run_id, root_id, trace_id,
  data)
select f.seq, f.finished_at, 'task', f.id, f.version, f.move, f.from_state, f.state, f.actor, f.claim_version, f.run_id, f.root_id,
  f.trace_id, f.error
from jsonb_each(:rows) as r cross join finished as f on f.id = r.value ->> 0
where f.claim_version = r.value ->> 1 and f.version = r.value ->> 3;

-- name: amend
-- Write the new ends of finished tasks whose old end `log_amended` has copied.
update finished
set seq = :first_seq + r.key, from_state = state, state = r.value ->> 5, move = r.value ->> 6, actor = r.value ->> 4,
  version = version + 1, finished_at = :now
from jsonb_each(:rows) as r
where finished.id = r.value ->> 0 and finished.claim_version = r.value ->> 1 and finished.version = r.value ->> 3;

-- name: list_settled
-- List those of the claims (id, version, owner, move, actor) that have made that move, according to their rows.
select json_group_array(r.key)
from jsonb_each(:rows) as r
where exists (
    select 1
    from finished as f
    where f.id = r.value ->> 0 and f.claim_version = r.value ->> 1 and f.owner_id = r.value ->> 2 and f.move = r.value ->> 3
      and f.actor = r.value ->> 4
  )
  or exists (
    select 1
    from log as l
    where l.entity_id = r.value ->> 0 and l.claim_version = r.value ->> 1 and l.move = r.value ->> 3 and l.actor = r.value ->> 4
  );

-- name: list_in_progress
-- Count the effects in progress of held tasks whose guard (id, claim version, owner, version) matches.
select json_group_array(json_array(id, effects))
from (
  select t.id, count(*) as effects
  from jsonb_each(:rows) as r
    cross join idempotency_outcomes as o on o.task_id = r.value ->> 0 and o.status = 'unknown' and o.unknown_at is null
    cross join tasks as t on t.id = o.task_id
  where t.owner_id is not null and t.claim_version = coalesce(r.value ->> 1, t.claim_version)
    and t.owner_id = coalesce(r.value ->> 2, t.owner_id) and t.version = coalesce(r.value ->> 3, t.version)
  group by t.id
);

-- name: log_unknown
-- Log the moves of tasks (ids) whose effects in progress become unknown.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, claim_version, run_id, root_id, trace_id,
  data)
select :first_seq - 1 + row_number() over (order by t.id, o.created_at, o.idempotency_key), :now, 'task', t.id,
  t.version + row_number() over (partition by t.id order by o.created_at, o.idempotency_key), 'tool_call.unknown', t.state, t.state,
  t.owner_id, t.claim_version, t.run_id, t.root_id, t.trace_id, o.details
from json_each(:ids) as w
  cross join idempotency_outcomes as o on o.task_id = w.value and o.status = 'unknown' and o.unknown_at is null
  cross join tasks as t on t.id = o.task_id;

-- name: count_unknown_moves
-- Count the moves (task, number) that `log_unknown` has logged.
update tasks set version = version + (r.value ->> 1) from jsonb_each(:rows) as r where tasks.id = r.value ->> 0;

-- name: mark_unknown
-- Mark the effects in progress of tasks as unknown.
update idempotency_outcomes
set unknown_at = :now
where task_id in (select value from json_each(:ids)) and status = 'unknown' and unknown_at is null;
