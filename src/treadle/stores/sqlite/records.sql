-- name: find_version
-- The version of a record.
select version from records where id = :id;

-- name: find_holder
-- The live record of the entity that has a name.
select id from records where namespace = :namespace and entity = :entity and name = :name and ended_at is null;

-- name: insert_record
-- A new record.
insert into records (id, namespace, entity, name, state, version, moves, body, task_id, run_id, root_id, trace_id, created_at,
  updated_at, ended_at)
values (:id, :namespace, :entity, :name, :state, 0, 0, :body, :task_id, :run_id, :root_id, :trace_id, :now, :now, null);

-- name: change_record
-- The next version of a record; with a move, its next state.
update records
set version = version + 1, moves = moves + (:move is not null), body = :body, state = coalesce(:to_state, state),
  task_id = coalesce(:task_id, task_id), updated_at = :now, ended_at = iif(:ended, :now, ended_at)
where id = :record_id and version = :version and state = coalesce(:from_state, state)
returning entity, moves, run_id, root_id, trace_id;

-- name: log_record
-- The row in the log for a record's move.
insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, run_id, root_id, trace_id, data)
values (:seq, :now, :entity, :record_id, :moves, :move, :from_state, :to_state, :actor, :run_id, :root_id, :trace_id, :data);

-- name: put_items
-- Insert or replace items (key, value) of a record that is there.
insert into record_items (record_id, key, value)
select :record_id, r.value ->> 0, r.value ->> 1
from jsonb_each(:rows) as r
where r.value ->> 1 is not null and exists (select 1 from records where id = :record_id)
on conflict (record_id, key) do update set value = excluded.value;

-- name: remove_items
-- Remove those items that have no value.
delete from record_items
where record_id = :record_id and key in (select r.value ->> 0 from jsonb_each(:rows) as r where r.value ->> 1 is null);

-- name: find_record
-- The record.
select * from records where id = :id;

-- name: find_record_named
-- The live record of a name.
select * from records where namespace = :namespace and entity = :entity and name = :name and ended_at is null;

-- name: list_records
-- Records of an entity, newest first.
select *
from records
where entity = :entity
  and id < coalesce(:before_id, x'')
  and namespace = coalesce(:namespace, namespace)
  and (:states is null or state in (select value from json_each(:states)))
  and (:live is null or (ended_at is null) = :live)
order by id desc
limit :limit;

-- name: list_live_records
-- Live records of an entity in a namespace, newest first.
select *
from records
where namespace = :namespace and entity = :entity and ended_at is null
  and id < coalesce(:before_id, x'')
  and (:states is null or state in (select value from json_each(:states)))
order by id desc
limit :limit;

-- name: list_records_of_task
-- Records of an entity about a task, newest first.
select *
from records
where task_id = :task_id and entity = :entity
  and id < coalesce(:before_id, x'')
  and namespace = coalesce(:namespace, namespace)
  and run_id is coalesce(:run_id, run_id)
  and (:states is null or state in (select value from json_each(:states)))
  and (:live is null or (ended_at is null) = :live)
order by id desc
limit :limit;

-- name: list_records_of_run
-- Records of an entity in a run, newest first.
select *
from records
where run_id = :run_id and entity = :entity
  and id < coalesce(:before_id, x'')
  and namespace = coalesce(:namespace, namespace)
  and (:states is null or state in (select value from json_each(:states)))
  and (:live is null or (ended_at is null) = :live)
order by id desc
limit :limit;

-- name: count_records
-- Records of an entity by state.
select state, count(*) from records where namespace = :namespace and entity = :entity group by state;

-- name: list_items
-- A page of a record's items in order of key.
select key, value from record_items
where record_id = :record_id and (:after_key is null or key > :after_key)
order by key
limit :limit;

-- name: find_items
-- Items of a record by key.
select i.key, i.value
from json_each(:keys) as wanted cross join record_items as i on i.record_id = :record_id and i.key = wanted.value;

-- name: list_unpolled
-- Tasks of lanes that await an outside job and are ready to be polled.
select t.id
from json_each(:lane_ids) as wanted cross join tasks as t on t.lane_id = wanted.value
where t.state = 'awaiting_external' and t.owner_id is null and t.wake_at is null and t.hold = 0
limit :limit;
