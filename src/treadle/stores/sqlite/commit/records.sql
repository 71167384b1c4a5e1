-- name: insert_record
-- Insert a record.
insert into records (id, namespace, entity, name, state, version, moves, body, task_id, run_id, root_id, trace_id, created_at,
  updated_at, ended_at)
values (:id, :namespace, :entity, :name, :state, 0, 0, :body, :task_id, :run_id, :root_id, :trace_id, :now, :now, null);

-- name: change_record
-- Write the next version of a record, and with a move its next state.
update records
set version = version + 1, moves = moves + (:move is not null), body = :body, state = coalesce(:to_state, state),
  task_id = coalesce(:task_id, task_id), updated_at = :now, ended_at = iif(:ended, :now, ended_at)
where id = :record_id and version = :version and state = coalesce(:from_state, state)
returning entity, moves, run_id, root_id, trace_id;

-- name: log_record
-- Log the move of a record.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, run_id, root_id, trace_id, data)
values (:seq, :now, :entity, :record_id, :moves, :move, :from_state, :to_state, :actor, :run_id, :root_id, :trace_id, :data);

-- name: put_items
-- Insert or replace items (key, value) of a record that exists.
insert into record_items (record_id, key, value)
select :record_id, r.value ->> 0, r.value ->> 1
from jsonb_each(:rows) as r
where r.value ->> 1 is not null and exists (select 1 from records where id = :record_id)
on conflict (record_id, key) do update set value = excluded.value;

-- name: remove_items
-- Remove the items that have no value.
delete from record_items
where record_id = :record_id and key in (select r.value ->> 0 from jsonb_each(:rows) as r where r.value ->> 1 is null);
