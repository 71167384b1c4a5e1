-- name: find_record(id) on hot
-- Find a record by id.
select * from records where id = $1::uuid;

-- name: find_record_named(namespace, entity, name) on hot
-- Find the live record with a name.
select * from records where namespace = $1::text and entity = $2::text and name = $3::text and ended_at is null;

-- name: list_records(entity, namespace, states, live, task_id, run_id, before_id, limit)
-- Records of the entity $1, newest first; each of $2 namespace, $3 states, $4 live, $5 task, $6 run, $7 id bound may be
-- null for any.
select *
from records
where entity = $1::text
  and ($2::text is null or namespace = $2::text)
  and ($3::text[] is null or state = any ($3::text[]))
  and ($4::boolean is not true or ended_at is null)
  and ($4::boolean is not false or ended_at is not null)
  and ($5::uuid is null or task_id = $5::uuid)
  and ($6::uuid is null or run_id = $6::uuid)
  and ($7::uuid is null or id < $7::uuid)
order by id desc
limit $8::bigint;

-- name: count_records(namespace, entity)
-- Records of an entity by state.
select state, count(*) from records where namespace = $1::text and entity = $2::text group by state;

-- name: list_items(record_id, after_key, limit) on hot
-- Items of the record $1 after the key $2, in order of key.
select key, value
from record_items
where record_id = $1::uuid and key >= coalesce($2::text, '') and ($2::text is null or key <> $2::text)
order by key
limit $3::bigint;

-- name: find_items(record_id, keys) on hot
-- Items of a record by key.
select record_items.key, record_items.value
from unnest($2::text[]) as wanted (key)
join record_items on record_items.record_id = $1::uuid and record_items.key = wanted.key;

-- name: list_messages(run_id, limit, after_seq) on hot
-- List messages that the run has not consumed, in order of arrival.
select * from mail where run_id = $1::uuid and seq > $3::bigint order by seq limit $2::bigint;

-- name: find_outcomes(keys) on hot
-- Find outcomes of effects by their keys.
select idempotency_outcomes.*
from unnest($1::text[]) as wanted (key)
join idempotency_outcomes on idempotency_outcomes.idempotency_key = wanted.key;

-- name: list_outcomes(roots, after_key, limit)
-- A page of the outcomes of the effects of the trees $1, in order of key; $2 is the cursor.
select *
from idempotency_outcomes
where root_id = any($1::uuid[]) and ($2::text is null or idempotency_key collate "C" > $2::text)
order by idempotency_key collate "C"
limit $3::bigint;

-- name: list_unknown(namespace, task_id, run_id, unknown_at, key, limit)
-- List effects of unknown outcome, newest first; each of $1 namespace, $2 task, $3 run may be null for any; $4 and $5 are
-- the cursor.
select o.*
from idempotency_outcomes as o
where o.status = 'unknown' and o.unknown_at is not null
  and ($4::bigint is null or (o.unknown_at, o.idempotency_key) < ($4::bigint, $5::text))
  and ($2::uuid is null or o.task_id = $2::uuid)
  and (
    exists (
      select from tasks as t
      where t.id = o.task_id and ($1::text is null or t.namespace = $1::text) and ($3::uuid is null or t.run_id = $3::uuid)
    )
    or exists (
      select from finished as f
      where f.id = o.task_id and ($1::text is null or f.namespace = $1::text) and ($3::uuid is null or f.run_id = $3::uuid)
    )
  )
order by o.unknown_at desc, o.idempotency_key desc
limit $6::bigint;

-- name: count_unknown(roots) on hot
-- Count the effects of these trees whose outcome is unknown.
select count(*) from idempotency_outcomes where root_id = any($1::uuid[]) and status = 'unknown';
