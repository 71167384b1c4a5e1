-- name: admit
-- Admit the next tasks of a key, as many as its limit leaves room for (all tasks of a key without a limit); return their
-- lanes.
update tasks
set hold = 0
where rowid in (
  select t.rowid
  from tasks as t cross join lanes as l on l.id = t.lane_id
  where t.namespace = :namespace and t.limit_key = :key and t.hold = 1 and t.owner_id is null and t.wake_at is null
    and not l.paused
  order by t.priority, t.due_at, t.id
  limit iif(
    exists (select 1 from limits as m where m.namespace = :namespace and m.key = :key),
    max(0, min(
      :most,
      (select m.max_running from limits as m where m.namespace = :namespace and m.key = :key)
        - (select count(*) from tasks as a where a.namespace = :namespace and a.limit_key = :key and (a.hold & 1) = 0)
    )),
    :most
  )
)
returning lane_id;

-- name: put_limit
-- Store a caller's limit of a key, unless an operator has set one; return a row if that changed the limit.
insert into limits (namespace, key, max_running, by_operator)
values (:namespace, :key, :max_running, 0)
on conflict (namespace, key) do update
set max_running = excluded.max_running
where not limits.by_operator and limits.max_running <> excluded.max_running
returning 1;

-- name: set_limit
-- Store an operator's limit of a key.
insert into limits (namespace, key, max_running, by_operator)
values (:namespace, :key, :max_running, 1)
on conflict (namespace, key) do update
set max_running = excluded.max_running, by_operator = 1;

-- name: drop_limit
-- Remove the limit of a key.
delete from limits where namespace = :namespace and key = :key;

-- name: mark_lanes
-- Set the limit key of a handler's lanes, or remove it (null).
update lanes
set limit_key = :limit_key
where namespace = :namespace and kind = 'handler' and name = :name;

-- name: recall
-- Withdraw the admission of the last unclaimed tasks of a key, as many as are over its limit.
update tasks
set hold = hold | 1
where rowid in (
  select rowid
  from tasks
  where namespace = :namespace and limit_key = :key and (hold & 1) = 0 and owner_id is null
  order by priority desc, due_at desc, id desc
  limit max(0, min(
    :most,
    (select count(*) from tasks as a where a.namespace = :namespace and a.limit_key = :key and (a.hold & 1) = 0)
      - (select m.max_running from limits as m where m.namespace = :namespace and m.key = :key)
  ))
);

-- name: recall_list
-- Withdraw the admission of a list's unclaimed tasks; return their keys.
update tasks
set hold = hold | 1
where rowid in (
  select t.rowid
  from tasks as t cross join lanes as l on l.id = t.lane_id
  where t.namespace = :namespace and t.limit_key is not null and (t.hold & 1) = 0 and t.owner_id is null
    and l.task_list = :task_list
)
returning limit_key;

-- name: adopt
-- Set the key of a handler's tasks that have none; unclaimed ones wait to be admitted.
update tasks
set limit_key = :key, hold = iif(owner_id is null, hold | 1, hold)
where rowid in (
  select rowid
  from tasks
  where limit_key is null
    and lane_id in (select id from lanes where namespace = :namespace and kind = 'handler' and name = :name)
  limit :most
);

-- name: list_waiting_keys
-- List the keys of a list's tasks that wait to be admitted.
select distinct t.limit_key
from lanes as l cross join tasks as t on t.lane_id = l.id
where l.namespace = :namespace and l.task_list = :task_list
  and t.hold - 1 = 0 and t.owner_id is null and t.wake_at is null and t.limit_key is not null;

-- name: list_run_keys
-- List the limit keys of the run's live tasks.
select distinct namespace, limit_key from tasks where run_id = :run_id and limit_key is not null;

-- name: list_limits
-- List the limits of a namespace, with their numbers of admitted and waiting tasks.
select m.namespace, m.key, m.max_running, m.by_operator,
  (select count(*) from tasks as t where t.namespace = m.namespace and t.limit_key = m.key and (t.hold & 1) = 0),
  (
    select count(*)
    from tasks as t
    where t.namespace = m.namespace and t.limit_key = m.key and t.hold = 1 and t.owner_id is null and t.wake_at is null
  )
from limits as m
where m.namespace = :namespace
order by m.key;

-- name: list_admitted
-- List the admitted tasks of a key.
select id from tasks where namespace = :namespace and limit_key = :key and (hold & 1) = 0 order by id limit :limit;
