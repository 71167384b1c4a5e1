-- name: insert_records(records)
-- Insert records (as JSON) except those whose id exists or whose name a live record has; return the ids of the inserted
-- ones.
insert into records (id, namespace, entity, name, state, version, transitions, document, task_id, run_id, root_id, trace_id, created_at,
  updated_at)
select id, namespace, entity, name, state, 0, 0, document, task_id, run_id, root_id, trace_id, (select treadle_now()),
  (select treadle_now())
from json_populate_recordset(null::records, $1::text::json)
on conflict do nothing
returning id::text;

-- name: list_existing(ids)
-- Return the ids of the records that exist.
select records.id::text from unnest($1::uuid[]) as given (id) join records on records.id = given.id;

-- name: change_records(*rows)
-- Write the next version of records, and for those with a transition the next state and a row in the log; return their number.
with given as materialized (
  select *
  from unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::text[], $6::text[], $7::boolean[], $8::text[], $9::text[],
    $10::uuid[]) as given (id, version, document, transition, from_state, to_state, ended, actor, data, task_id)
), changed as (
  update records
  set version = records.version + 1,
      transitions = records.transitions + (given.transition is not null)::integer,
      document = given.document,
      state = coalesce(given.to_state, records.state),
      task_id = coalesce(given.task_id, records.task_id),
      updated_at = (select treadle_now()),
      ended_at = case when given.ended then (select treadle_now()) else records.ended_at end
  from given
  where records.id = given.id and records.version = given.version and records.state = coalesce(given.from_state, records.state)
  returning records.id, records.entity, records.transitions, records.run_id, records.root_id, records.trace_id, given.transition,
    given.from_state, given.to_state, given.actor, given.data
), logged as (
  insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, run_id, root_id, trace_id, data)
  select nextval('treadle_seq'), (select treadle_now()), entity, id, transitions, transition, from_state, to_state, actor, run_id,
    root_id,
    trace_id, data
  from changed
  where transition is not null
)
select count(*) from changed;

-- name: put_items(*rows)
-- Insert or replace items ($1 records, $2 keys, $3 values) of records that exist.
insert into record_items (record_id, key, value)
select given.record_id, given.key, given.value
from unnest($1::uuid[], $2::text[], $3::text[]) as given (record_id, key, value)
where exists (select from records where records.id = given.record_id)
on conflict (record_id, key) do update set value = excluded.value;

-- name: remove_items(*rows)
-- Remove items ($1 records, $2 keys).
delete from record_items
using unnest($1::uuid[], $2::text[]) as given (record_id, key)
where record_items.record_id = given.record_id and record_items.key = given.key;

-- name: find_holders(*rows)
-- The live records that have these names.
select records.namespace, records.entity, records.name, records.id::text
from unnest($1::text[], $2::text[], $3::text[]) as given (namespace, entity, name)
join records on records.namespace = given.namespace and records.entity = given.entity and records.name = given.name
  and records.ended_at is null;
