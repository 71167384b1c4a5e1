-- name: lock_partitions
-- Lock the partitions of the schema for changes until the transaction ends; false if another process is changing them.
select pg_try_advisory_xact_lock(hashtextextended('treadle partitions ' || current_schema(), 0));

-- name: may_change
-- Return whether this role may change partitions.
select pg_has_role(relowner, 'usage') from pg_class where oid = 'finished'::regclass;

-- name: list_partitions
-- List the partitions in order, the default one last, and the clock.
select part, lower_id::text, upper_id::text, is_default, is_valid, treadle_now() as now from treadle_parts();

-- name: find_waiting
-- Find the range of ids of partitions that can be dropped within their own length of time, if tasks are kept for $1 ms.
select coalesce(min(lower_id::text), $2::text), coalesce(max(upper_id::text), $2::text)
from (
  select lower_id, upper_id, treadle_id_time(upper_id) + $1::bigint - treadle_now() as remaining_for,
    treadle_id_time(upper_id) - treadle_id_time(lower_id) as length_for
  from treadle_parts()
  where lower_id is not null and upper_id is not null
) as part
where remaining_for > 0 and remaining_for <= length_for;

-- name: has_later_ids
-- Return whether an entity has an id of $1 or later.
select exists (select from finished where id >= $1::uuid) or exists (select from log where entity_id >= $1::uuid);

-- name: bound_rest
-- Bound the first partitions to ids before $1, without reading them.
select treadle_bound_part('finished', 'finished_rest', null, $1::uuid, 'not valid'),
  treadle_bound_part('log', 'log_rest', null, $1::uuid, 'not valid');

-- name: validate
-- Check the bounds of the partition $1 beside writers.
select treadle_validate_part($1::text);

-- name: open_parts
-- Attach the first partitions with the bound $1, and add default ones.
select treadle_open_parts($1::uuid);

-- name: add_part
-- Add a partition for the ids from $1 up to $2.
select treadle_add_part($1::uuid, $2::uuid);

-- name: list_mixed
-- List up to $4 roots from $1 up to $2, after $3, whose trees may have more than a finished task and its transitions.
select id::text from treadle_mixed($1::uuid, $2::uuid) as found (id) where id > $3::uuid order by id limit $4::bigint;

-- name: drop_part
-- Drop the partition $1 by the rules $2 to $4 (namespace, retention of completed and of failed tasks).
select tasks, transitions from treadle_drop_part($1::text, $2::text, $3::bigint, $4::bigint);
