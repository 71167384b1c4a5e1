-- name: insert_records
-- Insert records (as JSON) except those whose id exists or whose name a live record has; return the ids of the inserted ones.
insert into records (id, namespace, entity, name, state, version, transitions, document, task_id, run_id, root_id, trace_id, created_at,
  updated_at, ended_at)
select r.value ->> 'id', r.value ->> 'namespace', r.value ->> 'entity', r.value ->> 'name', r.value ->> 'state', 0, 0,
  r.value ->> 'document', r.value ->> 'task_id', r.value ->> 'run_id', r.value ->> 'root_id', r.value ->> 'trace_id', :now, :now, null
from jsonb_each(:records) as r
where true
on conflict do nothing
returning id;

-- name: list_existing
-- Return the ids of the records that exist.
select r.id from json_each(:ids) as wanted cross join records as r on r.id = wanted.value;

-- name: change_records(record_id, version, document, transition, from_state, to_state, ended, actor, data, task_id) as each
-- Write the next version of a record, and with a transition the next state and a row in the log; return the number of changed
-- records.
update seqs set value = value + (:transition is not null) where name = 'transition';
insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, run_id, root_id, trace_id, data)
select (select value from seqs where name = 'transition'), :now, entity, id, transitions + 1, :transition, :from_state, :to_state,
  :actor, run_id,
  root_id, trace_id, :data
from records
where id = :record_id and version = :version and state = coalesce(:from_state, state) and :transition is not null;
update records
set version = version + 1, transitions = transitions + (:transition is not null), document = :document, state = coalesce(:to_state, state),
  task_id = coalesce(:task_id, task_id), updated_at = :now, ended_at = iif(:ended, :now, ended_at)
where id = :record_id and version = :version and state = coalesce(:from_state, state)
returning 1;

-- name: put_items
-- Insert or replace items (record, key, value) of records that exist.
insert into record_items (record_id, key, value)
select r.value ->> 0, r.value ->> 1, r.value ->> 2
from jsonb_each(:rows) as r
where exists (select 1 from records where id = r.value ->> 0)
on conflict (record_id, key) do update set value = excluded.value;

-- name: remove_items
-- Remove items (record, key).
delete from record_items
where (record_id, key) in (select r.value ->> 0, r.value ->> 1 from jsonb_each(:rows) as r);

-- name: find_holders
-- The live records with these names (namespace, entity, name).
select r.namespace, r.entity, r.name, r.id
from jsonb_each(:rows) as wanted
  cross join records as r on r.namespace = wanted.value ->> 0 and r.entity = wanted.value ->> 1 and r.name = wanted.value ->> 2
    and r.ended_at is null;
