-- name: list_lists
-- List the lists that have settings.
select namespace, task_list, paused, accepting, no_handler, keep_completed_for, keep_failed_for from lists order by namespace,
  task_list;

-- name: set_list(namespace, task_list, paused, accepting, no_handler)
-- Change the settings of a list that are not null.
insert into lists (namespace, task_list, paused, accepting, no_handler)
values ($1::text, $2::text, coalesce($3::boolean, false), coalesce($4::boolean, true), coalesce($5::text, 'wait'))
on conflict (namespace, task_list) do update
set paused = coalesce($3::boolean, lists.paused),
    accepting = coalesce($4::boolean, lists.accepting),
    no_handler = coalesce($5::text, lists.no_handler);

-- name: mark_list(namespace, task_list)
-- Copy the settings of a list to its queues; return their ids.
with those as materialized (
  select queues.id, lists.paused, lists.accepting
  from queues
  join lists on lists.namespace = queues.namespace and lists.task_list = queues.task_list
  where queues.namespace = $1::text and queues.task_list = $2::text
  order by queues.id
  for update of queues
)
update queues set paused = those.paused, accepting = those.accepting from those where queues.id = those.id returning queues.id;

-- name: set_rate(queue_id, rate, burst)
-- Set the rate of a queue, with a full bucket.
update queues
set rate = $2::double precision, burst = $3::integer, tokens = $3::integer,
  tokens_at = case when $2::double precision is not null then (select treadle_now()) end
where id = $1::integer;

-- name: set_backlog_limit(queue_id, backlog_limit) on hot
-- Set the cap on ready tasks of a queue.
update queues set backlog_limit = $2::integer where id = $1::integer;

-- name: save_handler(namespace, facet_name, module_uri, entrypoint, version, checksum, timeout_for, requirements, metadata) on hot
-- Insert or replace the registration; `created_at` keeps its first value.
insert into handler_registrations (namespace, facet_name, module_uri, entrypoint, version, checksum, timeout_for, requirements,
  metadata, created_at, updated_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, (select treadle_now()), (select treadle_now()))
on conflict (namespace, facet_name) do update
set module_uri = excluded.module_uri,
    entrypoint = excluded.entrypoint,
    version = excluded.version,
    checksum = excluded.checksum,
    timeout_for = excluded.timeout_for,
    requirements = excluded.requirements,
    metadata = excluded.metadata,
    updated_at = excluded.updated_at;

-- name: list_handlers(namespace)
-- List the registrations of the namespace $1 by name.
select facet_name, module_uri, entrypoint, version, checksum, timeout_for, requirements, metadata, created_at, updated_at
from handler_registrations
where namespace = $1::text
order by facet_name collate "C";

-- name: delete_handler(namespace, facet_name) on hot
-- Remove the registration $2 of the namespace $1.
delete from handler_registrations where namespace = $1::text and facet_name = $2::text;

-- name: list_limits(namespace)
-- List the limits of a namespace, with their numbers of admitted, waiting and unclaimed tasks.
select limits.namespace, limits.key, limits.max_running, limits.by_operator, limits.rate, limits.burst, limits.tokens,
  limits.tokens_at,
  (
    select count(*)
    from tasks
    where tasks.namespace = limits.namespace and tasks.limit_key = limits.key and tasks.limit_key is not null and (blocked_by & 1) = 0
  ) + {sql:postgres_slots} as admitted,
  (
    select count(*)
    from tasks
    where tasks.namespace = limits.namespace and tasks.limit_key = limits.key and tasks.limit_key is not null
      and blocked_by = 1 and owner_id is null and wake_at is null
  ) as waiting,
  (
    select count(*)
    from tasks
    where tasks.namespace = limits.namespace and tasks.limit_key = limits.key and tasks.limit_key is not null and (blocked_by & 1) = 0
      and owner_id is null
  ) + {sql:postgres_unclaimed_slots} as unclaimed
from limits
where limits.namespace = $1::text
order by limits.key collate "C";

-- name: list_admitted(namespace, key, limit)
-- List the admitted tasks of a key.
select id::text
from (
  select id
  from tasks
  where namespace = $1::text and limit_key = $2::text and limit_key is not null and (blocked_by & 1) = 0
  union
  select tasks.id
  from limit_slots as slots
  join tasks on tasks.id = any (array[slots.task_id])
  where slots.namespace = $1::text and slots.key = $2::text and (tasks.blocked_by & 1) = 0
) as admitted
order by admitted.id
limit $3::bigint;

-- name: list_handler_keys(namespace)
-- List the keys of handlers.
select name, key from handler_keys where namespace = $1::text order by name collate "C";

-- name: list_queue_rules
-- List all queues with their settings.
select id, namespace, kind, task_list, name, paused, accepting, rate, burst, tokens, tokens_at, backlog_limit, limit_key
from queues
order by id;
