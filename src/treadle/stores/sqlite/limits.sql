-- name: lock_keys
-- Return those of the keys (namespace, key) that tasks wait for: there is one writer.
select r.value ->> 0, r.value ->> 1
from jsonb_each(:rows) as r
where exists (
  select 1
  from tasks as t
  where t.namespace = r.value ->> 0 and t.limit_key = r.value ->> 1
    and t.blocked_by = 1 and t.owner_id is null and t.wake_at is null
);

-- name: admit(namespace, key) as each
-- Admit the next tasks of a key, as many as its limit leaves room for (all tasks of a key without a limit); return their
-- queues. If tasks with several keys wait for it, return the next ones instead, with their places in its line and its room.
update tasks
set blocked_by = 0
where not exists (
  select 1
  from tasks as t
  where t.namespace = :namespace and t.limit_key = :key and t.limit_keys is not null
    and t.blocked_by = 1 and t.owner_id is null and t.wake_at is null
) and rowid in (
  select t.rowid
  from tasks as t cross join queues as l on l.id = t.queue_id
  where t.namespace = :namespace and t.limit_key = :key and t.blocked_by = 1 and t.owner_id is null and t.wake_at is null
    and not l.paused
  order by t.priority, t.due_at, t.id
  limit coalesce(
    (select max(0, min(:most, {sql:sqlite_room})) from limits as m where m.namespace = :namespace and m.key = :key), :most
  )
)
returning 1, queue_id, null, null, null, null, null, null, null;
with line as materialized (
  select coalesce(
    (select max(0, min(:most, {sql:sqlite_room})) from limits as m where m.namespace = :namespace and m.key = :key), :most
  ) as room
  where exists (
    select 1
    from tasks as t
    where t.namespace = :namespace and t.limit_key = :key and t.limit_keys is not null
      and t.blocked_by = 1 and t.owner_id is null and t.wake_at is null
  )
)
select 0, t.queue_id, t.id, t.namespace, t.limit_key, t.limit_keys, t.priority, t.due_at, (select room from line)
from tasks as t cross join queues as l on l.id = t.queue_id
where t.namespace = :namespace and t.limit_key = :key and t.blocked_by = 1 and t.owner_id is null and t.wake_at is null
  and not l.paused
order by t.priority, t.due_at, t.id
limit coalesce(min(:lookahead, (select room from line)), 0);

-- name: try_lock_keys
-- Return the keys (namespace, key): there is one writer.
select r.value ->> 0, r.value ->> 1 from jsonb_each(:rows) as r;

-- name: list_rooms
-- Return the number of tasks that the limits of keys (namespace, key) let start now; none for one without a limit.
select m.namespace, m.key, max(0, {sql:sqlite_room})
from jsonb_each(:rows) as r cross join limits as m on m.namespace = r.value ->> 0 and m.key = r.value ->> 1;

-- name: place_tasks
-- Let waiting tasks (id, key, block reasons, other keys as JSON) wait for a key, or admit them and count them under the others.
update tasks set limit_key = r.value ->> 1, blocked_by = r.value ->> 2 from jsonb_each(:rows) as r where tasks.id = r.value ->> 0;
insert into limit_slots (namespace, key, task_id)
select t.namespace, other.value, t.id
from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0 cross join json_each(r.value ->> 3) as other
where true
on conflict do nothing;

-- name: put_limits(namespace, key, max_running) as each
-- Store a caller's limit of a key, unless an operator has set one; return the key if that changed the limit.
insert into limits (namespace, key, max_running, by_operator)
values (:namespace, :key, :max_running, 0)
on conflict (namespace, key) do update
set max_running = excluded.max_running
where not limits.by_operator and limits.max_running is not excluded.max_running
returning namespace, key;

-- name: put_rates(namespace, key, rate, burst) as each
-- Store a caller's rate of a key, unless an operator or a program has set one; return the key if that changed the rate.
insert into limits (namespace, key, by_operator, rate, rate_of_task, burst, tokens, tokens_at)
values (:namespace, :key, 0, :rate, 1, :burst, :burst, :now)
on conflict (namespace, key) do update
set rate = :rate, rate_of_task = 1, burst = :burst, tokens_at = :now,
  tokens = coalesce(min(:burst, burst, tokens + rate * max(:now - tokens_at, 0) / 1000.0), :burst)
where (rate is null or rate_of_task) and (rate is not :rate or burst is not :burst)
returning namespace, key;

-- name: set_limit
-- Store an operator's limit of a key.
insert into limits (namespace, key, max_running, by_operator)
values (:namespace, :key, :max_running, 1)
on conflict (namespace, key) do update
set max_running = excluded.max_running, by_operator = 1;

-- name: set_key_rate
-- Store the rate of a key; tokens that are left stay, up to the old and the new burst.
insert into limits (namespace, key, max_running, by_operator, rate, burst, tokens, tokens_at)
values (:namespace, :key, null, 0, :rate, :burst, :burst, :now)
on conflict (namespace, key) do update
set rate = :rate, rate_of_task = 0, burst = :burst, tokens_at = :now,
  tokens = coalesce(min(:burst, burst, tokens + rate * max(:now - tokens_at, 0) / 1000.0), :burst);

-- name: drop_max
-- Remove the maximum of a key that has a rate.
update limits set max_running = null, by_operator = 0 where namespace = :namespace and key = :key and rate is not null;

-- name: drop_rate
-- Remove the rate of a key that has a maximum.
update limits
set rate = null, rate_of_task = 0, burst = null, tokens = null, tokens_at = null
where namespace = :namespace and key = :key and max_running is not null;

-- name: drop_limit
-- Remove the limit of a key.
delete from limits where namespace = :namespace and key = :key;

-- name: charge
-- Take the tokens of claimed tasks from their keys (namespace, key, number).
update limits
set tokens = min(burst, tokens + rate * max(:now - tokens_at, 0) / 1000.0) - (r.value ->> 2), tokens_at = max(tokens_at, :now)
from jsonb_each(:rows) as r
where limits.namespace = r.value ->> 0 and limits.key = r.value ->> 1 and rate is not null;

-- name: put_handler_key
-- Store the key of a handler.
insert into handler_keys (namespace, name, key)
values (:namespace, :name, :key)
on conflict (namespace, name) do update set key = excluded.key;

-- name: drop_handler_key
-- Remove the key of a handler.
delete from handler_keys where namespace = :namespace and name = :name;

-- name: mark_queues
-- Set the limit key of a handler's queues: its own, or that of its limit, or none.
update queues
set limit_key = {sql:sqlite_handler_key}
where {sql:sqlite_named};

-- name: recall(namespace, key) as each
-- Withdraw the admission of the last unclaimed tasks of a key, as many as are over its limit.
update tasks
set blocked_by = blocked_by | 1
where rowid in (
  select rowid
  from tasks
  where namespace = :namespace and limit_key = :key and (blocked_by & 1) = 0 and owner_id is null
  order by priority desc, due_at desc, id desc
  limit coalesce(
    (select max(0, min(:most, -{sql:sqlite_room})) from limits as m where m.namespace = :namespace and m.key = :key), 0
  )
);

-- name: recall_list
-- Withdraw the admission of a list's unclaimed tasks; return their keys.
update tasks
set blocked_by = blocked_by | 1
where rowid in (
  select t.rowid
  from tasks as t cross join queues as l on l.id = t.queue_id
  where t.namespace = :namespace and t.limit_key is not null and (t.blocked_by & 1) = 0 and t.owner_id is null
    and l.task_list = :task_list
)
returning limit_key;

-- name: adopt
-- Set the key of a handler's tasks that have none or that of its limit; unclaimed ones wait to be admitted.
update tasks
set limit_key = :key, blocked_by = iif(owner_id is null, blocked_by | 1, blocked_by)
where rowid in (
  select rowid
  from tasks
  where (limit_key is null or substr(limit_key, 1, 8) = 'handler:' and limit_key <> :key)
    and queue_id in (select id from queues where limit_key = :key and {sql:sqlite_named})
  limit :most
);

-- name: list_waiting_keys
-- List the keys of a list's tasks that wait to be admitted.
select distinct t.limit_key
from queues as l cross join tasks as t on t.queue_id = l.id
where l.namespace = :namespace and l.task_list = :task_list
  and t.blocked_by - 1 = 0 and t.owner_id is null and t.wake_at is null and t.limit_key is not null;

-- name: fill
-- Store the tokens that a key has gained, unless that was done since `seen_at`; its tasks are not stuck until a while later.
update limits
set tokens = min(burst, tokens + rate * max(:now - tokens_at, 0) / 1000.0), tokens_at = :now
where namespace = :namespace and key = :key and rate is not null and tokens_at = :seen_at;

-- name: list_unclaimed_queues
-- List the queues in which admitted tasks of a key are ready.
select distinct queue_id
from tasks
where namespace = :namespace and limit_key = :key and (blocked_by & 1) = 0 and owner_id is null and wake_at is null and blocked_by = 0;

-- name: go_back
-- Let the admitted tasks of a key that nobody has claimed wait again, at the end of the line, if they cannot be claimed or
-- tasks of other queues than `queue_ids` wait.
update tasks
set blocked_by = blocked_by | 1, due_at = max(due_at, :now)
where namespace = :namespace and limit_key = :key and (blocked_by & 1) = 0 and owner_id is null and (
  wake_at is not null or blocked_by <> 0 or exists (
    select 1
    from queues as l cross join tasks as o on o.queue_id = l.id
    where l.namespace = :namespace and not l.paused and l.id not in (select value from json_each(:queue_ids))
      and o.limit_key = :key and o.blocked_by - 1 = 0 and o.owner_id is null and o.wake_at is null
  )
);

-- name: admit_others
-- Admit tasks of a key, as many as its limit leaves room for: of all queues but `queue_ids` in turn, beginning with the queue
-- after these, whatever the priorities; return their queues.
update tasks
set blocked_by = 0
where rowid in (
  select place.id
  from (
    select t.rowid as id, l.id as queue_id, row_number() over (partition by l.id order by t.priority, t.due_at, t.id) as turn
    from queues as l cross join tasks as t on t.queue_id = l.id
    where l.namespace = :namespace and not l.paused and l.id not in (select value from json_each(:queue_ids))
      and t.limit_key = :key and t.blocked_by - 1 = 0 and t.owner_id is null and t.wake_at is null and t.limit_keys is null
  ) as place
  order by place.turn, place.queue_id <= (select max(value) from json_each(:queue_ids)), place.queue_id
  limit (select max(0, min(:most, {sql:sqlite_room})) from limits as m where m.namespace = :namespace and m.key = :key)
)
returning queue_id;

-- name: list_rated
-- List the keys with a rate that tasks wait for.
select m.namespace, m.key, m.max_running, m.by_operator, m.rate, m.burst, m.tokens, m.tokens_at,
  (select count(*) from tasks as t where t.namespace = m.namespace and t.limit_key = m.key and (t.blocked_by & 1) = 0) + (
    select count(*)
    from limit_slots as s cross join tasks as t on t.id = s.task_id
    where s.namespace = m.namespace and s.key = m.key and (t.blocked_by & 1) = 0 and t.limit_key <> s.key
  ) as admitted,
  (
    select count(*)
    from tasks as t
    where t.namespace = m.namespace and t.limit_key = m.key and (t.blocked_by & 1) = 0 and t.owner_id is null
  ) + (
    select count(*)
    from limit_slots as s cross join tasks as t on t.id = s.task_id
    where s.namespace = m.namespace and s.key = m.key and (t.blocked_by & 1) = 0 and t.limit_key <> s.key and t.owner_id is null
  ) as unclaimed
from limits as m
where m.rate is not null and exists (
  select 1
  from tasks as t
  where t.namespace = m.namespace and t.limit_key = m.key and t.blocked_by = 1 and t.owner_id is null and t.wake_at is null
);
