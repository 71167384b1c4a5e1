-- name: find_record
-- Find a record by id.
select * from records where id = :id;

-- name: find_record_named
-- Find the live record with a name.
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

-- name: list_messages
-- List messages that the run has not consumed, in order of arrival.
select * from mail where run_id = :run_id and seq > :after_seq order by seq limit :limit;

-- name: find_outcomes
-- Find outcomes of effects by their keys.
select o.* from json_each(:keys) as wanted cross join idempotency_outcomes as o on o.idempotency_key = wanted.value;

-- name: list_outcomes
-- A page of the outcomes of these trees' effects, in order of key.
select o.*
from json_each(:roots) as tree cross join idempotency_outcomes as o on o.root_id = tree.value
where :after_key is null or o.idempotency_key > :after_key
order by o.idempotency_key
limit :limit;

-- name: list_unknown
-- List effects of unknown outcome, newest first.
select o.*
from idempotency_outcomes as o
where o.status = 'unknown' and o.unknown_at is not null
  and (:unknown_at is null or (o.unknown_at, o.idempotency_key) < (:unknown_at, :key))
  and o.task_id = coalesce(:task_id, o.task_id)
  and (
    exists (
      select 1 from tasks as t where t.id = o.task_id and t.namespace = coalesce(:namespace, t.namespace)
        and (:run_id is null or t.run_id = :run_id)
    )
    or exists (
      select 1 from finished as f where f.id = o.task_id and f.namespace = coalesce(:namespace, f.namespace)
        and (:run_id is null or f.run_id = :run_id)
    )
  )
order by o.unknown_at desc, o.idempotency_key desc
limit :limit;

-- name: count_unknown
-- Count the effects of these trees whose outcome is unknown.
select count(*) from json_each(:roots) as tree cross join idempotency_outcomes as o on o.root_id = tree.value where o.status = 'unknown';
