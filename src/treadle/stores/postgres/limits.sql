-- name: lock_keys
-- Lock the admission of these keys ($1 namespaces, $2 keys) until the transaction ends, whether they have a limit or not.
select count(pg_advisory_xact_lock(place))
from (
  select distinct hashtextextended(namespace || chr(10) || key, hashtext(current_schema())) as place
  from unnest($1::text[], $2::text[]) as given (namespace, key)
  order by place
) as places;

-- name: admit
-- Admit the next tasks of locked keys ($1 namespaces, $2 keys), as many as their limits leave room for, at most $3 each;
-- all tasks of keys without a limit. Skip tasks that another transaction has locked: it ends with this statement too.
with room as materialized (
  select given.namespace, given.key,
    case
      when limits.max_running is null then $3::bigint
      else greatest(0, least($3::bigint, limits.max_running - (
        select count(*)
        from tasks
        where tasks.namespace = given.namespace and tasks.limit_key = given.key and tasks.limit_key is not null and (hold & 1) = 0
      )))
    end as count
  from unnest($1::text[], $2::text[]) as given (namespace, key)
  left join limits on limits.namespace = given.namespace and limits.key = given.key
), next as materialized (
  select waiting.id
  from room
  cross join lateral (
    select tasks.id
    from tasks
    where tasks.namespace = room.namespace and tasks.limit_key = room.key and tasks.limit_key is not null
      and hold = 1 and owner_id is null and wake_at is null
      and lane_id <> all (array(select lanes.id from lanes where lanes.slowed and lanes.paused))
    order by tasks.priority, tasks.due_at, tasks.id
    limit room.count
    for update skip locked
  ) as waiting
), admitted as (
  update tasks
  set hold = 0
  from next
  where tasks.id = next.id
  returning tasks.lane_id
)
select lane_id, count(*) from admitted group by lane_id;

-- name: put_limits
-- Store callers' limits of locked keys ($1 namespaces, $2 keys, $3 limits), unless an operator has set one; return the
-- changed keys.
insert into limits (namespace, key, max_running, by_operator)
select given.*, false from unnest($1::text[], $2::text[], $3::integer[]) as given (namespace, key, max_running)
on conflict (namespace, key) do update
set max_running = excluded.max_running
where not limits.by_operator and limits.max_running <> excluded.max_running
returning namespace, key;

-- name: set_limit
-- Store an operator's limit of a key.
insert into limits (namespace, key, max_running, by_operator)
values ($1::text, $2::text, $3::integer, true)
on conflict (namespace, key) do update
set max_running = excluded.max_running, by_operator = true;

-- name: drop_limit
-- Remove the limit of a key.
delete from limits where namespace = $1::text and key = $2::text;

-- name: mark_lanes
-- Set the limit key of a handler's lanes, or remove it (null).
with those as materialized (
  select id from lanes where namespace = $1::text and kind = 'handler' and name = $2::text order by id for update
)
update lanes set limit_key = $3::text from those where lanes.id = those.id;

-- name: recall
-- Withdraw the admission of the last unclaimed tasks of locked keys, as many as are over the limit.
with over as materialized (
  select given.namespace, given.key,
    greatest(0, least($3::bigint, (
      select count(*)
      from tasks
      where tasks.namespace = given.namespace and tasks.limit_key = given.key and tasks.limit_key is not null and (hold & 1) = 0
    ) - limits.max_running)) as count
  from unnest($1::text[], $2::text[]) as given (namespace, key)
  join limits on limits.namespace = given.namespace and limits.key = given.key
), last as materialized (
  select admitted.id
  from over
  cross join lateral (
    select tasks.id
    from tasks
    where tasks.namespace = over.namespace and tasks.limit_key = over.key and tasks.limit_key is not null
      and (hold & 1) = 0 and owner_id is null
    order by tasks.priority desc, tasks.due_at desc, tasks.id desc
    limit over.count
    for update skip locked
  ) as admitted
)
update tasks set hold = hold | 1 from last where tasks.id = last.id;

-- name: recall_list
-- Withdraw the admission of a list's unclaimed tasks; return their keys.
with admitted as materialized (
  select tasks.id
  from tasks
  join lanes on lanes.id = tasks.lane_id
  where tasks.namespace = $1::text and tasks.limit_key is not null and (hold & 1) = 0 and owner_id is null
    and lanes.task_list = $2::text
  for update of tasks skip locked
)
update tasks set hold = hold | 1 from admitted where tasks.id = admitted.id returning tasks.limit_key;

-- name: adopt
-- Set the key $3 of up to $4 tasks of a handler ($1 namespace, $2 name) that have none; unclaimed ones wait to be
-- admitted.
with found as materialized (
  select id
  from tasks
  where limit_key is null
    and lane_id = any (array(select id from lanes where namespace = $1::text and kind = 'handler' and name = $2::text))
  order by id
  limit $4::bigint
  for update
)
update tasks
set limit_key = $3::text, hold = case when owner_id is null then hold | 1 else hold end
from found
where tasks.id = found.id;

-- name: list_waiting_keys
-- List the keys of a list's tasks that wait to be admitted.
select distinct tasks.limit_key
from lanes
join tasks on tasks.lane_id = lanes.id
where lanes.namespace = $1::text and lanes.task_list = $2::text
  and hold - 1 = 0 and owner_id is null and wake_at is null and tasks.limit_key is not null;

-- name: list_starved
-- List up to $3 keys after the given one ($1 namespace, $2 key) that tasks wait for, and whether each has room.
with recursive keys (namespace, limit_key) as (
  (
    select namespace, limit_key
    from tasks
    where limit_key is not null and hold = 1 and owner_id is null and wake_at is null
      and (namespace, limit_key) > ($1::text, $2::text)
    order by namespace, limit_key
    limit 1
  )
  union all
  select following.namespace, following.limit_key
  from keys
  cross join lateral (
    select namespace, limit_key
    from tasks
    where limit_key is not null and hold = 1 and owner_id is null and wake_at is null
      and (namespace, limit_key) > (keys.namespace, keys.limit_key)
    order by namespace, limit_key
    limit 1
  ) as following
)
select found.namespace, found.limit_key, limits.max_running is null or limits.max_running > (
    select count(*)
    from tasks
    where tasks.namespace = found.namespace and tasks.limit_key = found.limit_key and tasks.limit_key is not null and (hold & 1) = 0
  ) as room
from (select namespace, limit_key from keys limit $3::bigint) as found
left join limits on limits.namespace = found.namespace and limits.key = found.limit_key;

-- name: list_limits
-- List the limits of a namespace, with their numbers of admitted and waiting tasks.
select limits.namespace, limits.key, limits.max_running, limits.by_operator,
  (
    select count(*)
    from tasks
    where tasks.namespace = limits.namespace and tasks.limit_key = limits.key and tasks.limit_key is not null and (hold & 1) = 0
  ) as admitted,
  (
    select count(*)
    from tasks
    where tasks.namespace = limits.namespace and tasks.limit_key = limits.key and tasks.limit_key is not null
      and hold = 1 and owner_id is null and wake_at is null
  ) as waiting
from limits
where limits.namespace = $1::text
order by limits.key;

-- name: list_admitted
-- List the admitted tasks of a key.
select id::text
from tasks
where namespace = $1::text and limit_key = $2::text and limit_key is not null and (hold & 1) = 0
order by id
limit $3::bigint;
