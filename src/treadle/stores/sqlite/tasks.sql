-- name: find_head
-- Find the queue whose first ready task is the best among the given queues, and that task's priority.
select wanted.value as queue_id, head.priority
from json_each(:queue_ids) as wanted cross join tasks as head on head.rowid = (
  select t.rowid
  from tasks as t
  where t.queue_id = wanted.value and t.owner_id is null and t.wake_at is null and t.blocked_by = 0
  order by t.priority, t.due_at, t.id
  limit 1
)
order by head.priority, head.due_at, head.id
limit 1;

-- name: find_head_scoped
-- Find the queue whose first ready task in one of the scopes is the best among the given queues, and that task's priority.
select wanted.value as queue_id, head.priority
from json_each(:queue_ids) as wanted cross join tasks as head on head.rowid = (
  select t.rowid
  from tasks as t
  where t.queue_id = wanted.value and t.owner_id is null and t.wake_at is null and t.blocked_by = 0
    and t.scope in (select value from json_each(:scopes))
  order by t.priority, t.due_at, t.id
  limit 1
)
order by head.priority, head.due_at, head.id
limit 1;

-- name: show_taken_scoped
-- Return the tasks that `take_scoped` will claim, with their new values.
select json_group_array(json_object({json:t.unclaimed}, 'namespace', l.namespace, 'kind', l.kind, 'task_list', l.task_list,
  'name', l.name, 'wake_at', :now + :lease_for, 'owner_id', :owner_id, 'claim_version', t.claim_version + 1, 'claimed_at', :now,
  'heartbeat_at', :now, 'progress_at', :now))
from (
  select *
  from tasks
  where queue_id = :queue_id and priority = :priority and owner_id is null and wake_at is null and blocked_by = 0
    and scope in (select value from json_each(:scopes))
  order by due_at, id
  limit :limit
) as t cross join queues as l on l.id = t.queue_id;

-- name: take_scoped
-- Claim the first ready tasks of the queue and priority in one of the scopes for the owner.
update tasks
set owner_id = :owner_id, claim_version = claim_version + 1, claimed_at = :now, heartbeat_at = :now, progress_at = :now,
  wake_at = :now + :lease_for, activity = null
where rowid in (
  select rowid
  from tasks
  where queue_id = :queue_id and priority = :priority and owner_id is null and wake_at is null and blocked_by = 0
    and scope in (select value from json_each(:scopes))
  order by due_at, id
  limit :limit
);

-- name: show_taken
-- Return the tasks that `take` will claim, with their new values.
select json_group_array(json_object({json:t.unclaimed}, 'namespace', l.namespace, 'kind', l.kind, 'task_list', l.task_list,
  'name', l.name, 'wake_at', :now + :lease_for, 'owner_id', :owner_id, 'claim_version', t.claim_version + 1, 'claimed_at', :now,
  'heartbeat_at', :now, 'progress_at', :now))
from (
  select *
  from tasks
  where queue_id = :queue_id and priority = :priority and owner_id is null and wake_at is null and blocked_by = 0
  order by due_at, id
  limit :limit
) as t cross join queues as l on l.id = t.queue_id;

-- name: take
-- Claim the first ready tasks of the queue and priority for the owner.
update tasks
set owner_id = :owner_id, claim_version = claim_version + 1, claimed_at = :now, heartbeat_at = :now, progress_at = :now,
  wake_at = :now + :lease_for, activity = null
where rowid in (
  select rowid
  from tasks
  where queue_id = :queue_id and priority = :priority and owner_id is null and wake_at is null and blocked_by = 0
  order by due_at, id
  limit :limit
);

-- name: order_fairly
-- Give waiting tasks (ids) with a fairness key the due times of their places: the first one of a key that has none waiting comes
-- with the head of the others that are not paused, and each further one a millisecond after the last of its key.
with given as materialized (
  select t.id, t.queue_id, t.priority, t.fairness_key, t.due_at,
    row_number() over (partition by t.queue_id, t.priority, t.fairness_key order by t.due_at, t.id) - 1 as place
  from json_each(:ids) as r cross join tasks as t on t.id = r.value
  where t.fairness_key is not null and t.owner_id is null and t.wake_at is null
), heads as materialized (
  select d.queue_id, d.priority, (
    select o.due_at
    from tasks as o
    where o.queue_id = d.queue_id and o.priority = d.priority and o.fairness_key is not null and o.owner_id is null
      and o.wake_at is null and (o.blocked_by & ~1) = 0 and o.id not in (select id from given)
    order by o.due_at
    limit 1
  ) as due_at
  from (select distinct queue_id, priority from given) as d
), flows as materialized (
  select d.queue_id, d.priority, d.fairness_key, h.due_at as head,
    (
      select o.due_at
      from tasks as o
      where o.queue_id = d.queue_id and o.priority = d.priority and o.fairness_key = d.fairness_key and o.fairness_key is not null
        and o.owner_id is null and o.wake_at is null and o.id not in (select id from given)
      order by o.due_at desc
      limit 1
    ) as last
  from (select distinct queue_id, priority, fairness_key from given) as d
    cross join heads as h on h.queue_id = d.queue_id and h.priority = d.priority
)
update tasks
set due_at = max(coalesce(f.head, g.due_at), coalesce(f.last + 1, 0)) + g.place
from given as g cross join flows as f on f.queue_id = g.queue_id and f.priority = g.priority and f.fairness_key = g.fairness_key
where tasks.id = g.id;

-- name: find_next_wake
-- Return the first `wake_at`, with :find_ready whether a task is ready, and whether a limit has a rate.
select
  (select min(wake_at) from tasks where wake_at is not null),
  :find_ready and exists (select 1 from tasks where owner_id is null and wake_at is null and blocked_by = 0),
  exists (select 1 from limits where rate is not null);

-- name: find_next_after
-- Return the first `wake_at` in the future.
select min(wake_at) from tasks where wake_at is not null and wake_at > :now;

-- name: find_overdue
-- Return whether an owned task has an expired lease.
select exists (select 1 from tasks where wake_at is not null and wake_at <= :now and owner_id is not null);

-- name: count_due
-- Count the tasks that `wake_due` will wake, and the expired leases among them; return the queues in which they become
-- ready, and the limit keys of those that must be admitted first.
select count(*), count(owner_id), json_group_array(distinct queue_id) filter (where blocked_by = 0 and (limit_key is null or owner_id is
  null)),
  json_group_array(distinct json_array(namespace, coalesce(limit_keys, limit_key))) filter (where limit_key is not null and (blocked_by <> 0 or owner_id is not
    null)),
  json_group_array(id) filter (where fairness_key is not null and claim_version = 0)
from (
  select id, owner_id, queue_id, blocked_by, namespace, limit_key, limit_keys, fairness_key, claim_version
  from tasks
  where wake_at is not null and wake_at <= :now and (:expire_leases or owner_id is null)
  order by wake_at, rowid
  limit :limit
);

-- name: list_expiring
-- List the tasks whose lease `wake_due` will expire.
select json_group_array(id)
from (
  select id, owner_id
  from tasks
  where wake_at is not null and wake_at <= :now and (:expire_leases or owner_id is null)
  order by wake_at, rowid
  limit :limit
)
where owner_id is not null;

-- name: log_expired
-- Log the transitions of the tasks whose lease `wake_due` will expire.
update seqs set value = value + :count where name = 'transition';
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
  trace_id)
select (select value from seqs where name = 'transition') - :count + row_number() over (), :now, 'task', id, version + 1, 'expire',
  state, state, owner_id, claim_version, run_id,
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
-- Make tasks ready whose `wake_at` has passed. A task that is blocked then, or whose lease expired, loses its slot under its
-- limit.
update tasks
set takeovers = takeovers + (owner_id is not null),
  attempt = attempt + (owner_id is not null and state = 'pending'),
  version = version + (owner_id is not null),
  blocked_by = iif(limit_key is not null and (blocked_by <> 0 or owner_id is not null), blocked_by | 1, blocked_by),
  owner_id = null,
  wake_at = null
where rowid in (
  select rowid
  from tasks
  where wake_at is not null and wake_at <= :now and (:expire_leases or owner_id is null)
  order by wake_at, rowid
  limit :limit
);

-- name: extend
-- Extend held claims (id, version, owner, progressed, progress), never past a deadline, nor past the attempt's timeout with
-- :within_timeout; return their new ends.
update tasks
set heartbeat_at = :now,
  progress_at = iif(r.value ->> 3, :now, progress_at),
  progress = iif(r.value ->> 3, coalesce(r.value ->> 4, progress), progress),
  wake_at = min(
    :now + :lease_for,
    coalesce(deadline_at, :now + :lease_for),
    coalesce(iif(r.value ->> 3, :now, progress_at) + progress_for, :now + :lease_for),
    coalesce(iif(:within_timeout, claimed_at + timeout_for, null), :now + :lease_for)
  )
from jsonb_each(:rows) as r
where tasks.id = r.value ->> 0 and claim_version = r.value ->> 1 and owner_id = r.value ->> 2
returning id, wake_at, heartbeat_at;

-- name: list_held
-- List those of the claims (id, version, owner) that are held.
select t.id
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
where t.claim_version = r.value ->> 1 and t.owner_id = r.value ->> 2;

-- name: claim_of_run
-- Claim ready tasks of the run for the owner.
update tasks
set owner_id = :owner_id, claim_version = claim_version + 1, claimed_at = :now, heartbeat_at = :now, progress_at = :now,
  wake_at = :now + :lease_for, activity = null
where rowid in (
  select rowid
  from tasks
  where run_id = :run_id and owner_id is null and wake_at is null and blocked_by = 0
    and queue_id in (select id from queues where kind = :kind and not (slowed and paused))
  order by priority, due_at, id
  limit :limit
)
returning id, namespace, limit_key;

-- name: expire_leases
-- Expire the leases of the owners now, if they have not expired before.
update tasks set wake_at = min(wake_at, :now) where owner_id in (select value from json_each(:owners));

-- name: list_failing
-- List tasks of queues that wait after an error, among the 10,000 that are due next: retries are due before most others, and
-- an index of their own would be written by claims.
select id
from (
  select id, queue_id, error from tasks where wake_at is not null and owner_id is null order by wake_at limit 10000
)
where error is not null and queue_id in (select value from json_each(:queue_ids))
limit :limit;

-- name: list_unpolled
-- List tasks of queues that await an external job and are ready to be polled.
select t.id
from json_each(:queue_ids) as wanted cross join tasks as t on t.queue_id = wanted.value
where t.state = 'awaiting_external' and t.owner_id is null and t.wake_at is null and t.blocked_by = 0
limit :limit;

-- name: find_tasks as json
-- Find tasks by id, live or finished.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select t.task from json_each(:ids) as wanted cross join live as t on t.id = wanted.value
  union all
  select f.task from json_each(:ids) as wanted cross join ended as f on f.id = wanted.value
);

-- name: find_unique
-- Find the task lists of the live tasks that have unique keys.
select t.unique_key, l.task_list
from json_each(:keys) as wanted cross join tasks as t on t.namespace = :namespace and t.unique_key = wanted.value
  join queues as l on l.id = t.queue_id;

-- name: find_finished as json
-- Find finished tasks by id.
select coalesce('[' || group_concat(f.task, ',') || ']', '[]')
from json_each(:ids) as wanted cross join ended as f on f.id = wanted.value;

-- name: list_tasks as json
-- List live (:live) and finished (:ended) tasks, newest first.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select task
  from (
    select *
    from (
      select created_at, id, task
      from live
      where :live and {sql:sqlite_task_filter} and (not :held or owner_id is not null)
      order by created_at desc, id desc
      limit :limit
    )
    union all
    select *
    from (
      select created_at, id, task
      from ended
      where :ended and {sql:sqlite_task_filter} and not :held
      order by created_at desc, id desc
      limit :limit
    )
  )
  order by created_at desc, id desc
  limit :limit
);

-- name: list_run_tasks as json
-- List the tasks of a run as `list_tasks` does.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select task
  from (
    select *
    from (
      select created_at, id, task
      from live
      where run_id = :run_id and :live and {sql:sqlite_task_filter} and (not :held or owner_id is not null)
      order by created_at desc, id desc
      limit :limit
    )
    union all
    select *
    from (
      select created_at, id, task
      from ended
      where run_id = :run_id and :ended and {sql:sqlite_task_filter} and not :held
      order by created_at desc, id desc
      limit :limit
    )
  )
  order by created_at desc, id desc
  limit :limit
);

-- name: find_task_created_at
-- Find the time of creation of a live or finished task.
select created_at from tasks where id = :id union all select created_at from finished where id = :id limit 1;

-- name: list_depths
-- Count the live tasks of each queue by state of readiness.
select t.queue_id, l.namespace, l.kind, l.task_list, l.name,
  count(*) filter (where t.owner_id is null and t.blocked_by = 0 and t.wake_at is null),
  count(*) filter (where t.owner_id is not null),
  count(*) filter (where t.owner_id is null and t.blocked_by & ~1 = 0 and t.wake_at is not null),
  count(*) filter (where t.owner_id is null and t.blocked_by <> 0 and (t.blocked_by <> 1 or t.wake_at is null)),
  min(t.due_at) filter (where t.owner_id is null and t.blocked_by = 0 and t.wake_at is null),
  count(*) filter (where t.blocked_by & 8 <> 0)
from tasks as t cross join queues as l on l.id = t.queue_id
group by t.queue_id
order by t.queue_id;

-- name: count_finished
-- Count finished tasks by state.
select state, count from finished_counts where count > 0;
