-- name: list_lists
-- List the lists that have settings.
select namespace, task_list, paused, accepting, no_handler, keep_completed_for, keep_failed_for from lists order by namespace,
  task_list;

-- name: set_list
-- Change the settings of a list that are not null.
insert into lists (namespace, task_list, paused, accepting, no_handler)
values (:namespace, :task_list, coalesce(:paused, 0), coalesce(:accepting, 1), coalesce(:no_handler, 'wait'))
on conflict (namespace, task_list) do update
set paused = coalesce(:paused, paused), accepting = coalesce(:accepting, accepting), no_handler = coalesce(:no_handler, no_handler);

-- name: mark_list
-- Copy the settings of a list to its queues; return their ids.
update queues
set (paused, accepting) = (select paused, accepting from lists where namespace = :namespace and task_list = :task_list)
where namespace = :namespace and task_list = :task_list
returning id;

-- name: set_rate
-- Set the rate of a queue, with a full bucket.
update queues set rate = :rate, burst = :burst, tokens = :burst, tokens_at = iif(:rate is null, null, :now) where id = :queue_id;

-- name: set_backlog_limit
-- Set the cap on ready tasks of a queue.
update queues set backlog_limit = :backlog_limit where id = :queue_id;

-- name: save_handler
-- Insert or replace the registration; `created_at` keeps its first value.
insert into handler_registrations (namespace, facet_name, module_uri, entrypoint, version, checksum, timeout_for, requirements,
  metadata, created_at, updated_at)
values (:namespace, :facet_name, :module_uri, :entrypoint, :version, :checksum, :timeout_for, :requirements, :metadata, :now, :now)
on conflict (namespace, facet_name) do update
set module_uri = excluded.module_uri, entrypoint = excluded.entrypoint, version = excluded.version, checksum = excluded.checksum,
  timeout_for = excluded.timeout_for, requirements = excluded.requirements, metadata = excluded.metadata,
  updated_at = excluded.updated_at;

-- name: list_handlers
-- List the registrations of a namespace by name.
select facet_name, module_uri, entrypoint, version, checksum, timeout_for, requirements, metadata, created_at, updated_at
from handler_registrations
where namespace = :namespace
order by facet_name;

-- name: delete_handler
-- Remove a registration.
delete from handler_registrations where namespace = :namespace and facet_name = :facet_name;

-- name: list_limits
-- List the limits of a namespace, with their numbers of admitted, waiting and unclaimed tasks.
select m.namespace, m.key, m.max_running, m.by_operator, m.rate, m.burst, m.tokens, m.tokens_at,
  (select count(*) from tasks as t where t.namespace = m.namespace and t.limit_key = m.key and (t.blocked_by & 1) = 0) + (
    select count(*)
    from limit_slots as s cross join tasks as t on t.id = s.task_id
    where s.namespace = m.namespace and s.key = m.key and (t.blocked_by & 1) = 0 and t.limit_key <> s.key
  ) as admitted,
  (
    select count(*)
    from tasks as t
    where t.namespace = m.namespace and t.limit_key = m.key and t.blocked_by = 1 and t.owner_id is null and t.wake_at is null
  ) as waiting,
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
where m.namespace = :namespace
order by m.key;

-- name: list_admitted
-- List the admitted tasks of a key.
select id from tasks where namespace = :namespace and limit_key = :key and (blocked_by & 1) = 0
union
select t.id
from limit_slots as s cross join tasks as t on t.id = s.task_id
where s.namespace = :namespace and s.key = :key and (t.blocked_by & 1) = 0
order by id
limit :limit;

-- name: list_handler_keys
-- List the keys of handlers.
select name, key from handler_keys where namespace = :namespace order by name;

-- name: list_queue_rules
-- List all queues with their settings.
select id, namespace, kind, task_list, name, paused, accepting, rate, burst, tokens, tokens_at, backlog_limit, limit_key
from queues
order by id;
