-- name: find_head
-- The lane among those wanted whose first ready task is the best, and that task's priority.
select wanted.value as lane_id, head.priority
from json_each(:lane_ids) as wanted cross join tasks as head on head.rowid = (
  select t.rowid
  from tasks as t
  where t.lane_id = wanted.value and t.owner_id is null and t.wake_at is null and t.hold = 0
  order by t.priority, t.due_at, t.id
  limit 1
)
order by head.priority, head.due_at, head.id
limit 1;

-- name: show_taken
-- The tasks that `take` is about to take, as it will leave them.
select json_group_array(json_object('id', t.id, 'lane_id', t.lane_id, 'namespace', l.namespace, 'kind', l.kind,
  'task_list', l.task_list, 'name', l.name, 'priority', t.priority, 'state', t.state, 'due_at', t.due_at,
  'wake_at', :now + :lease_for, 'owner_id', :owner_id, 'claim_version', t.claim_version + 1, 'claimed_at', :now,
  'heartbeat_at', :now, 'attempt', t.attempt, 'failures', t.failures, 'takeovers', t.takeovers, 'version', t.version,
  'created_at', t.created_at, 'deadline_at', t.deadline_at, 'timeout_for', t.timeout_for, 'progress_for', t.progress_for,
  'progress_at', :now, 'progress', t.progress, 'run_id', t.run_id, 'step_id', t.step_id, 'flow_id', t.flow_id, 'scope', t.scope,
  'root_id', t.root_id, 'trace_id', t.trace_id, 'limit_key', t.limit_key, 'unique_key', t.unique_key, 'policy', t.policy,
  'payload', t.payload, 'checkpoint', t.checkpoint, 'error', t.error))
from (
  select *
  from tasks
  where lane_id = :lane_id and priority = :priority and owner_id is null and wake_at is null and hold = 0
  order by due_at, id
  limit :limit
) as t cross join lanes as l on l.id = t.lane_id;

-- name: take
-- Give the first ready tasks of the lane and priority to the owner.
update tasks
set owner_id = :owner_id, claim_version = claim_version + 1, claimed_at = :now, heartbeat_at = :now, progress_at = :now,
  wake_at = :now + :lease_for
where rowid in (
  select rowid
  from tasks
  where lane_id = :lane_id and priority = :priority and owner_id is null and wake_at is null and hold = 0
  order by due_at, id
  limit :limit
);

-- name: find_next_wake
-- The first `wake_at` in the store.
select min(wake_at) from tasks where wake_at is not null;

-- name: find_next_after
-- The first `wake_at` that has not come yet.
select min(wake_at) from tasks where wake_at is not null and wake_at > :now;

-- name: find_overdue
-- Whether there is an owned task whose lease has run out.
select exists (select 1 from tasks where wake_at is not null and wake_at <= :now and owner_id is not null);

-- name: count_due
-- How many tasks `wake_due` is about to wake, how many of them by an expired lease, in which lanes they become ready, and
-- limit keys of those that have to be admitted first.
select count(*), count(owner_id), json_group_array(distinct lane_id) filter (where hold = 0 and (limit_key is null or owner_id is null)),
  json_group_array(distinct json_array(namespace, limit_key)) filter (where limit_key is not null and (hold <> 0 or owner_id is not null))
from (
  select owner_id, lane_id, hold, namespace, limit_key
  from tasks
  where wake_at is not null and wake_at <= :now and (:expire_leases or owner_id is null)
  order by wake_at, rowid
  limit :limit
);

-- name: log_expired
-- The moves of those tasks that `wake_due` is about to take from their owners.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, claim_version, run_id, root_id, trace_id)
select :first_seq - 1 + row_number() over (), :now, 'task', id, version + 1, 'expire', state, state, owner_id, claim_version, run_id,
  root_id, trace_id
from (
  select *
  from tasks
  where wake_at is not null and wake_at <= :now and (:expire_leases or owner_id is null)
  order by wake_at, rowid
  limit :limit
)
where owner_id is not null;

-- name: wake_due
-- Make the tasks ready whose `wake_at` has come. One that is held then, or has lost its lease, has no place under its limit.
update tasks
set takeovers = takeovers + (owner_id is not null),
  attempt = attempt + (owner_id is not null and state = 'pending'),
  version = version + (owner_id is not null),
  hold = iif(limit_key is not null and (hold <> 0 or owner_id is not null), hold | 1, hold),
  owner_id = null,
  wake_at = null
where rowid in (
  select rowid
  from tasks
  where wake_at is not null and wake_at <= :now and (:expire_leases or owner_id is null)
  order by wake_at, rowid
  limit :limit
);

-- name: renew
-- Extend the claims (id, version, owner, progressed, progress) that are held, never past a deadline.
update tasks
set heartbeat_at = :now,
  progress_at = iif(r.value ->> 3, :now, progress_at),
  progress = iif(r.value ->> 3, coalesce(r.value ->> 4, progress), progress),
  wake_at = min(
    :now + :lease_for,
    coalesce(deadline_at, :now + :lease_for),
    coalesce(iif(r.value ->> 3, :now, progress_at) + progress_for, :now + :lease_for)
  )
from jsonb_each(:rows) as r
where tasks.id = r.value ->> 0 and claim_version = r.value ->> 1 and owner_id = r.value ->> 2;

-- name: extend
-- As `renew`, but not past the longest time of an attempt either; until when the claims hold.
update tasks
set heartbeat_at = :now,
  progress_at = iif(r.value ->> 3, :now, progress_at),
  progress = iif(r.value ->> 3, coalesce(r.value ->> 4, progress), progress),
  wake_at = min(
    :now + :lease_for,
    coalesce(deadline_at, :now + :lease_for),
    coalesce(iif(r.value ->> 3, :now, progress_at) + progress_for, :now + :lease_for),
    coalesce(claimed_at + timeout_for, :now + :lease_for)
  )
from jsonb_each(:rows) as r
where tasks.id = r.value ->> 0 and claim_version = r.value ->> 1 and owner_id = r.value ->> 2
returning id, wake_at;

-- name: list_held
-- Which of the claims (id, version, owner) are as given.
select json_group_array(t.id)
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
where t.claim_version = r.value ->> 1 and t.owner_id = r.value ->> 2;
