-- name: lock_keys(*rows)
-- Lock the admission of these keys ($1 namespaces, $2 keys) until the transaction ends, whether they have a limit or not. Return
-- them: only a later statement sees which of them tasks wait for.
select namespace, key, pg_advisory_xact_lock(place)
from (
  select namespace, key, hashtextextended(namespace || chr(10) || key, hashtext(current_schema())) as place
  from unnest($1::text[], $2::text[]) as given (namespace, key)
  order by place
) as places;

-- name: admit(*rows, most, lookahead)
-- Admit the next tasks of locked keys ($1 namespaces, $2 keys), as many as their limits leave room for, at most $3 each;
-- all tasks of keys without a limit. Skip tasks that another transaction has locked: it ends with this statement too. Return the
-- queues. If tasks with several keys wait for a key, return its next ones instead, at most $4, with their places and the room, and
-- lock them; and the rooms of their other keys that are among the locked ones.
with room as materialized (
  select given.namespace, given.key,
    case when limits.key is null then $3::bigint else greatest(0, least($3::bigint, {sql:postgres_room})) end as count,
    exists (
      select
      from tasks
      where tasks.namespace = given.namespace and tasks.limit_key = given.key and limit_keys is not null
        and blocked_by = 1 and owner_id is null and wake_at is null
    ) as several
  from unnest($1::text[], $2::text[]) as given (namespace, key)
  left join limits on limits.namespace = given.namespace and limits.key = given.key
  where (
    select exists (  -- in a query of its own, so that no join reads all waiting tasks
      select
      from tasks
      where tasks.namespace = given.namespace and tasks.limit_key = given.key and tasks.limit_key is not null
        and blocked_by = 1 and owner_id is null and wake_at is null
    )
  )
), next as materialized (
  select waiting.*, room.namespace, room.key, room.several, room.count
  from room
  cross join lateral (
    select tasks.id, tasks.queue_id, tasks.limit_keys, tasks.priority, tasks.due_at
    from tasks
    where tasks.namespace = room.namespace and tasks.limit_key = room.key and tasks.limit_key is not null
      and blocked_by = 1 and owner_id is null and wake_at is null
      and queue_id <> all (array(select queues.id from queues where queues.slowed and queues.paused))
    order by tasks.priority, tasks.due_at, tasks.id
    limit case when room.several then least(room.count, $4::bigint) else room.count end
    for update skip locked
  ) as waiting
), admitted as (
  update tasks
  set blocked_by = 0
  from next
  where tasks.id = any (array[next.id]) and not next.several
  returning tasks.queue_id
), others as materialized (
  select distinct next.namespace, other.key
  from next
  cross join lateral unnest(string_to_array(next.limit_keys, chr(10))) as other (key)
  where next.several and other.key <> next.key
)
select count(*), queue_id, null as id, null as namespace, null as key, null as limit_keys, null::integer as priority,
  null::bigint as due_at, null::bigint as room
from admitted
group by queue_id
union all
select 0, queue_id, id::text, namespace, key, limit_keys, priority, due_at, count from next where several
union all
select 0, null, null, namespace, key, null, null, null,
  coalesce(
    (
      select greatest(0, least($3::bigint, {sql:postgres_room}))
      from limits
      where limits.namespace = others.namespace and limits.key = others.key
    ),
    $3::bigint
  )
from others
where (namespace, key) in (select * from unnest($1::text[], $2::text[]));

-- name: try_lock_keys(*rows)
-- Lock those keys ($1 namespaces, $2 keys) that nobody has locked, like `lock_keys`, and return them. It never waits, so that the
-- order does not matter.
select namespace, key
from unnest($1::text[], $2::text[]) as given (namespace, key)
where pg_try_advisory_xact_lock(hashtextextended(namespace || chr(10) || key, hashtext(current_schema())));

-- name: list_rooms(*rows)
-- Return the number of tasks that the limits of these keys ($1 namespaces, $2 keys) let start now; none for one without a limit.
select limits.namespace, limits.key, greatest(0, {sql:postgres_room})
from unnest($1::text[], $2::text[]) as given (namespace, key)
join limits on limits.namespace = given.namespace and limits.key = given.key;

-- name: place_tasks(*rows)
-- Let locked waiting tasks ($1 ids) wait for a key ($2, with the block reasons $3), or admit them and count them under their other
-- keys ($4, as JSON).
with placed as (
  update tasks
  set limit_key = given.key, blocked_by = given.blocked_by
  from unnest($1::uuid[], $2::text[], $3::integer[], $4::text[]) as given (id, key, blocked_by, others)
  where tasks.id = any (array[given.id])
  returning tasks.namespace, tasks.id, given.others
)
insert into limit_slots (namespace, key, task_id)
select namespace, other.key, id
from placed
cross join lateral json_array_elements_text(others::json) as other (key)
on conflict do nothing;

-- name: put_limits(*rows)
-- Store callers' limits of locked keys ($1 namespaces, $2 keys, $3 limits), unless an operator has set one; return the
-- changed keys.
insert into limits (namespace, key, max_running, by_operator)
select given.*, false from unnest($1::text[], $2::text[], $3::integer[]) as given (namespace, key, max_running)
on conflict (namespace, key) do update
set max_running = excluded.max_running
where not limits.by_operator and limits.max_running is distinct from excluded.max_running
returning namespace, key;

-- name: put_rates(*rows)
-- Store callers' rates of locked keys ($1 namespaces, $2 keys, $3 rates, $4 bursts), unless an operator or a program has set one;
-- return the changed keys.
insert into limits (namespace, key, by_operator, rate, rate_of_task, burst, tokens, tokens_at)
select namespace, key, false, rate, true, burst, burst, (select treadle_now())
from unnest($1::text[], $2::text[], $3::double precision[], $4::integer[]) as given (namespace, key, rate, burst)
on conflict (namespace, key) do update
set rate = excluded.rate, rate_of_task = true, burst = excluded.burst, tokens_at = excluded.tokens_at,
  tokens = case when limits.rate is null then excluded.burst else least(
    excluded.burst, limits.burst, limits.tokens + limits.rate * greatest(excluded.tokens_at - limits.tokens_at, 0) / 1000
  ) end
where (limits.rate is null or limits.rate_of_task)
  and (limits.rate is distinct from excluded.rate or limits.burst is distinct from excluded.burst)
returning namespace, key;

-- name: set_limit(namespace, key, max_running)
-- Store an operator's limit of a key.
insert into limits (namespace, key, max_running, by_operator)
values ($1::text, $2::text, $3::integer, true)
on conflict (namespace, key) do update
set max_running = excluded.max_running, by_operator = true;

-- name: set_key_rate(namespace, key, rate, burst)
-- Store the rate of a key ($3, with bursts of $4); tokens that are left stay, up to the old and the new burst.
insert into limits (namespace, key, max_running, by_operator, rate, burst, tokens, tokens_at)
values ($1::text, $2::text, null, false, $3::double precision, $4::integer, $4::integer, (select treadle_now()))
on conflict (namespace, key) do update
set rate = excluded.rate, rate_of_task = false, burst = excluded.burst, tokens_at = excluded.tokens_at,
  tokens = case when limits.rate is null then excluded.burst else least(
    excluded.burst, limits.burst, limits.tokens + limits.rate * greatest(excluded.tokens_at - limits.tokens_at, 0) / 1000
  ) end;

-- name: drop_max(namespace, key)
-- Remove the maximum of a key that has a rate.
update limits set max_running = null, by_operator = false where namespace = $1::text and key = $2::text and rate is not null;

-- name: drop_rate(namespace, key)
-- Remove the rate of a key that has a maximum.
update limits
set rate = null, rate_of_task = false, burst = null, tokens = null, tokens_at = null
where namespace = $1::text and key = $2::text and max_running is not null;

-- name: drop_limit(namespace, key)
-- Remove the limit of a key.
delete from limits where namespace = $1::text and key = $2::text;

-- name: mark_queues(namespace, name)
-- Set the limit key of a handler's queues: its own, or that of its limit, or none.
with those as materialized (
  select id from queues where {sql:postgres_named} order by id for update
)
update queues set limit_key = {sql:postgres_handler_key} from those where queues.id = those.id;

-- name: lock_handler_queues(namespace, name)
-- Lock the queues of a handler.
select count(*) from (
  select id from queues where {sql:postgres_named} order by id for update
) as locked;

-- name: put_handler_key(namespace, name, key)
-- Store the key of a handler.
insert into handler_keys (namespace, name, key)
values ($1::text, $2::text, $3::text)
on conflict (namespace, name) do update set key = excluded.key;

-- name: drop_handler_key(namespace, name)
-- Remove the key of a handler.
delete from handler_keys where namespace = $1::text and name = $2::text;

-- name: recall(*rows, most)
-- Withdraw the admission of the last unclaimed tasks of locked keys, as many as are over the limit.
with over as materialized (
  select given.namespace, given.key,
    greatest(0, least($3::bigint, -{sql:postgres_room})) as count
  from unnest($1::text[], $2::text[]) as given (namespace, key)
  join limits on limits.namespace = given.namespace and limits.key = given.key
), last as materialized (
  select admitted.id
  from over
  cross join lateral (
    select tasks.id
    from tasks
    where tasks.namespace = over.namespace and tasks.limit_key = over.key and tasks.limit_key is not null
      and (blocked_by & 1) = 0 and owner_id is null
    order by tasks.priority desc, tasks.due_at desc, tasks.id desc
    limit over.count
    for update skip locked
  ) as admitted
)
update tasks set blocked_by = blocked_by | 1 from last where tasks.id = any (array[last.id]);

-- name: recall_list(namespace, task_list)
-- Withdraw the admission of a list's unclaimed tasks; return their keys.
with admitted as materialized (
  select tasks.id
  from tasks
  join queues on queues.id = tasks.queue_id
  where tasks.namespace = $1::text and tasks.limit_key is not null and (blocked_by & 1) = 0 and owner_id is null
    and queues.task_list = $2::text
  for update of tasks skip locked
)
update tasks set blocked_by = blocked_by | 1 from admitted where tasks.id = any (array[admitted.id]) returning tasks.limit_key;

-- name: adopt(namespace, name, key, most)
-- Set the key $3 of up to $4 tasks of a handler ($1 namespace, $2 name) that have none or that of its limit; unclaimed ones
-- wait to be admitted.
with found as materialized (
  select id
  from tasks
  where (limit_key is null or limit_key like 'handler:%' and limit_key <> $3::text)
    and queue_id = any (array(select id from queues where limit_key = $3::text and {sql:postgres_named}))
  order by id
  limit $4::bigint
  for update
)
update tasks
set limit_key = $3::text, blocked_by = case when owner_id is null then blocked_by | 1 else blocked_by end
from found
where tasks.id = any (array[found.id]);

-- name: list_waiting_keys(namespace, task_list)
-- List the keys of a list's tasks that wait to be admitted.
select distinct tasks.limit_key
from queues
join tasks on tasks.queue_id = queues.id
where queues.namespace = $1::text and queues.task_list = $2::text
  and blocked_by - 1 = 0 and owner_id is null and wake_at is null and tasks.limit_key is not null;

-- name: list_starved(after_namespace, after_key, limit)
-- List up to $3 keys after the given one ($1 namespace, $2 key) that tasks wait for, and whether each has room.
with recursive keys (namespace, limit_key) as (
  (
    select namespace, limit_key
    from tasks
    where limit_key is not null and blocked_by = 1 and owner_id is null and wake_at is null
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
    where limit_key is not null and blocked_by = 1 and owner_id is null and wake_at is null
      and (namespace, limit_key) > (keys.namespace, keys.limit_key)
    order by namespace, limit_key
    limit 1
  ) as following
)
select found.namespace, found.limit_key, coalesce({sql:postgres_room} > 0, true) as room
from (select namespace, limit_key from keys limit $3::bigint) as found
left join limits on limits.namespace = found.namespace and limits.key = found.limit_key;

-- name: fill(namespace, key, seen_at)
-- Store the tokens that a key has gained, unless that was done since $3 or a claim takes some now; its tasks are not stuck
-- until a while later.
with free as materialized (
  select namespace, key
  from limits
  where namespace = $1::text and key = $2::text and rate is not null and tokens_at = $3::bigint
  for update skip locked
)
update limits
set tokens = least(burst, tokens + rate * greatest((select treadle_now()) - tokens_at, 0) / 1000), tokens_at = (select
  treadle_now())
from free
where limits.namespace = free.namespace and limits.key = free.key;

-- name: list_unclaimed_queues(namespace, key)
-- List the queues in which admitted tasks of a key are ready.
select distinct queue_id
from tasks
where namespace = $1::text and limit_key = $2::text and limit_key is not null and (blocked_by & 1) = 0 and owner_id is null
  and wake_at is null and blocked_by = 0;

-- name: go_back(namespace, key, queue_ids)
-- Let the admitted tasks of a locked key ($1 namespace, $2 key) that nobody has claimed wait again, at the end of the line, if
-- they cannot be claimed or tasks of other queues than $3 wait.
with unclaimed as materialized (
  select id
  from tasks
  where namespace = $1::text and limit_key = $2::text and limit_key is not null and (blocked_by & 1) = 0 and owner_id is null and (
    wake_at is not null or blocked_by <> 0 or (
      select exists (
        select
        from queues
        cross join lateral (
          select
          from tasks as others
          where others.queue_id = queues.id and others.limit_key = $2::text and others.blocked_by - 1 = 0 and others.owner_id is null
            and others.wake_at is null
          limit 1
        ) as waiting
        where queues.namespace = $1::text and not (queues.slowed and queues.paused) and queues.id <> all ($3::integer[])
      )
    )
  )
  for update skip locked
)
update tasks
set blocked_by = blocked_by | 1, due_at = greatest(due_at, (select treadle_now()))
from unclaimed
where tasks.id = any (array[unclaimed.id]);

-- name: admit_others(namespace, key, queue_ids, most)
-- Admit tasks of a locked key ($1 namespace, $2 key), as many as its limit leaves room for, at most $4: of all queues but $3 in
-- turn, beginning with the queue after these, whatever the priorities; return their queues.
with room as materialized (
  select greatest(0, least($4::bigint, {sql:postgres_room})) as count
  from limits
  where limits.namespace = $1::text and limits.key = $2::text
), chosen as materialized (
  select waiting.id
  from queues
  cross join lateral (
    select tasks.id, row_number() over (order by tasks.priority, tasks.due_at, tasks.id) as turn
    from tasks
    where tasks.queue_id = queues.id and tasks.limit_key = $2::text and blocked_by - 1 = 0 and owner_id is null and wake_at is null
      and limit_keys is null
    order by tasks.priority, tasks.due_at, tasks.id
    limit (select count from room)
  ) as waiting
  where queues.namespace = $1::text and not (queues.slowed and queues.paused) and queues.id <> all ($3::integer[])
  order by waiting.turn, queues.id <= (select max(id) from unnest($3::integer[]) as id), queues.id
  limit (select count from room)
), next as materialized (
  select tasks.id
  from chosen
  join tasks on tasks.id = any (array[chosen.id])
  where blocked_by = 1 and owner_id is null and wake_at is null
  for update of tasks skip locked
)
update tasks set blocked_by = 0 from next where tasks.id = any (array[next.id]) returning tasks.queue_id;

-- name: list_rated
-- List the keys with a rate that tasks wait for.
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
    where tasks.namespace = limits.namespace and tasks.limit_key = limits.key and tasks.limit_key is not null and (blocked_by & 1) = 0
      and owner_id is null
  ) + {sql:postgres_unclaimed_slots} as unclaimed
from limits
where limits.rate is not null and exists (
  select
  from tasks
  where tasks.namespace = limits.namespace and tasks.limit_key = limits.key and tasks.limit_key is not null
    and blocked_by = 1 and owner_id is null and wake_at is null
);
