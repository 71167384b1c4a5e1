-- name: list_tags
-- List the tags of runs and tasks.
select t.owner_id, t.key, t.value from json_each(:ids) as wanted cross join tags as t on t.owner_id = wanted.value;

-- name: list_tagged
-- List the runs or tasks with a tag, newest first.
select created_at, owner_id
from tags indexed by tags_value
where namespace = :namespace and entity = :entity and key = :key and value = :value
  and (created_at, owner_id) < (:before_at, :before_id) and created_at >= :after
order by created_at desc, owner_id desc
limit :limit;

-- name: list_tag_keys
-- List keys of the tags of runs or tasks, by jumping from one to the next in the index.
with recursive found (key) as (
  select (select key from tags indexed by tags_value where namespace = :namespace and entity = :entity order by key limit 1)
  union all
  select (
    select key from tags indexed by tags_value
    where namespace = :namespace and entity = :entity and key > found.key order by key limit 1)
  from found
  where found.key is not null
)
select key from found where key is not null limit :limit;

-- name: list_with_words
-- List the runs or ended tasks whose error has words, newest first; those created in the same millisecond in any order.
select e.created_at, e.owner_id
from error_words as w cross join error_texts as e on e.number = w.rowid
where w.words match :words and w.rowid >= :first and w.rowid < :last
  and e.entity = :entity and e.namespace = :namespace
order by w.rowid desc
limit :limit;

-- name: list_failing_tasks
-- List live tasks with an error, newest first.
select t.created_at, t.id
from tasks as t indexed by tasks_error
where t.error is not null and (t.created_at, t.id) < (:before_at, :before_id) and t.created_at >= :after
  and t.namespace = :namespace
order by t.created_at desc, t.id desc
limit :limit;

-- name: list_run_names
-- List names of workflows and functions with a prefix, by jumping from one to the next in the index.
with recursive found (name) as (
  select min(workflow) from runs indexed by runs_workflow where workflow >= :prefix
  union all
  select (select min(workflow) from runs indexed by runs_workflow where workflow > found.name)
  from found
  where found.name is not null
)
select name from found where name is not null and substr(name, 1, length(:prefix)) = :prefix limit :limit;

-- name: list_run_ids
-- List runs by the range of their ids.
select id from runs where id between :first and :last and +namespace = :namespace order by id desc limit :limit;

-- name: list_task_ids
-- List live and finished tasks by the range of their ids.
select id
from (
  select id from (
    select id from tasks where id between :first and :last and namespace = :namespace order by id desc limit :limit)
  union all
  select id from (
    select id from finished where id between :first and :last and namespace = :namespace order by id desc limit :limit)
)
order by id desc
limit :limit;

-- name: list_step_ids
-- List steps by the range of their ids.
select s.id
from steps as s cross join runs as r on r.id = s.run_id
where s.id between :first and :last and +r.namespace = :namespace
order by s.id desc
limit :limit;

-- name: list_record_ids
-- List records of an entity by the range of their ids.
select id
from records
where id between :first and :last and +namespace = :namespace and +entity = :entity
order by id desc
limit :limit;
