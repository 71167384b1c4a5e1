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
select json_group_array(json_object({json:t.unclaimed}, 'namespace', l.namespace, 'kind', l.kind, 'task_list', l.task_list,
  'name', l.name, 'wake_at', :now + :lease_for, 'owner_id', :owner_id, 'claim_version', t.claim_version + 1, 'claimed_at', :now,
  'heartbeat_at', :now, 'progress_at', :now))
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

-- name: claim_of_run
-- Give ready tasks of the run to the owner.
update tasks
set owner_id = :owner_id, claim_version = claim_version + 1, claimed_at = :now, heartbeat_at = :now, progress_at = :now,
  wake_at = :now + :lease_for
where rowid in (
  select rowid
  from tasks
  where run_id = :run_id and owner_id is null and wake_at is null and hold = 0
    and lane_id in (select id from lanes where kind = :kind and not (slowed and paused))
  order by priority, due_at, id
  limit :limit
)
returning id;

-- name: expire_leases
-- The leases of the owners run out now, if they have not before.
update tasks set wake_at = min(wake_at, :now) where owner_id in (select value from json_each(:owners));

-- name: list_unpolled
-- Tasks of lanes that await an outside job and are ready to be polled.
select t.id
from json_each(:lane_ids) as wanted cross join tasks as t on t.lane_id = wanted.value
where t.state = 'awaiting_external' and t.owner_id is null and t.wake_at is null and t.hold = 0
limit :limit;

-- name: find_task
-- The task, live or finished.
select task from live where id = :id
union all
select task from ended where id = :id;

-- name: find_finished
-- Those of the tasks that are finished.
select coalesce('[' || group_concat(f.task, ',') || ']', '[]')
from json_each(:ids) as wanted cross join ended as f on f.id = wanted.value;

-- name: list_live
-- Live tasks, newest first.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select task
  from live
  where id < coalesce(:before_id, x'')
    and namespace = coalesce(:namespace, namespace)
    and kind = coalesce(:kind, kind)
    and task_list = coalesce(:task_list, task_list)
    and name = coalesce(:name, name)
    and (:states is null or shown_state in (select value from json_each(:states)))
  order by id desc
  limit :limit
);

-- name: list_ended
-- Finished tasks, newest first.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select task
  from ended
  where id < coalesce(:before_id, x'')
    and namespace = coalesce(:namespace, namespace)
    and kind = coalesce(:kind, kind)
    and task_list = coalesce(:task_list, task_list)
    and name = coalesce(:name, name)
    and (:states is null or shown_state in (select value from json_each(:states)))
  order by id desc
  limit :limit
);

-- name: list_live_of_run
-- Live tasks of a run, newest first.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select task
  from live
  where run_id = :run_id
    and id < coalesce(:before_id, x'')
    and namespace = coalesce(:namespace, namespace)
    and kind = coalesce(:kind, kind)
    and task_list = coalesce(:task_list, task_list)
    and name = coalesce(:name, name)
    and (:states is null or shown_state in (select value from json_each(:states)))
  order by id desc
  limit :limit
);

-- name: list_ended_of_run
-- Finished tasks of a run, newest first.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select task
  from ended
  where run_id = :run_id
    and id < coalesce(:before_id, x'')
    and namespace = coalesce(:namespace, namespace)
    and kind = coalesce(:kind, kind)
    and task_list = coalesce(:task_list, task_list)
    and name = coalesce(:name, name)
    and (:states is null or shown_state in (select value from json_each(:states)))
  order by id desc
  limit :limit
);

-- name: list_depths
-- How much is in each lane that has a live task.
select t.lane_id, l.namespace, l.kind, l.task_list, l.name,
  count(*) filter (where t.owner_id is null and t.hold = 0 and t.wake_at is null),
  count(*) filter (where t.owner_id is not null),
  count(*) filter (where t.owner_id is null and t.hold & ~1 = 0 and t.wake_at is not null),
  count(*) filter (where t.owner_id is null and t.hold <> 0 and (t.hold <> 1 or t.wake_at is null)),
  min(t.due_at) filter (where t.owner_id is null and t.hold = 0 and t.wake_at is null)
from tasks as t cross join lanes as l on l.id = t.lane_id
group by t.lane_id
order by t.lane_id;

-- name: count_finished
-- Finished tasks by state.
select state, count(*) from finished group by state;
