-- name: find_task
-- The task, live or finished.
select task from live where id = :id
union all
select task from ended where id = :id;

-- name: find_finished
-- Those of the tasks that are finished.
select coalesce('[' || group_concat(f.task, ',') || ']', '[]')
from json_each(:ids) as wanted cross join ended as f on f.id = wanted.value;

-- name: list_live
-- Live tasks, newest first.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select task
  from live
  where id < coalesce(:before_id, x'')
    and namespace = coalesce(:namespace, namespace)
    and kind = coalesce(:kind, kind)
    and task_list = coalesce(:task_list, task_list)
    and name = coalesce(:name, name)
    and (:states is null or shown_state in (select value from json_each(:states)))
  order by id desc
  limit :limit
);

-- name: list_ended
-- Finished tasks, newest first.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select task
  from ended
  where id < coalesce(:before_id, x'')
    and namespace = coalesce(:namespace, namespace)
    and kind = coalesce(:kind, kind)
    and task_list = coalesce(:task_list, task_list)
    and name = coalesce(:name, name)
    and (:states is null or shown_state in (select value from json_each(:states)))
  order by id desc
  limit :limit
);

-- name: list_live_of_run
-- Live tasks of a run, newest first.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select task
  from live
  where run_id = :run_id
    and id < coalesce(:before_id, x'')
    and namespace = coalesce(:namespace, namespace)
    and kind = coalesce(:kind, kind)
    and task_list = coalesce(:task_list, task_list)
    and name = coalesce(:name, name)
    and (:states is null or shown_state in (select value from json_each(:states)))
  order by id desc
  limit :limit
);

-- name: list_ended_of_run
-- Finished tasks of a run, newest first.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select task
  from ended
  where run_id = :run_id
    and id < coalesce(:before_id, x'')
    and namespace = coalesce(:namespace, namespace)
    and kind = coalesce(:kind, kind)
    and task_list = coalesce(:task_list, task_list)
    and name = coalesce(:name, name)
    and (:states is null or shown_state in (select value from json_each(:states)))
  order by id desc
  limit :limit
);

-- name: list_depths
-- How much is in each lane that has a live task.
select t.lane_id, l.namespace, l.kind, l.task_list, l.name,
  count(*) filter (where t.owner_id is null and t.hold = 0 and t.wake_at is null),
  count(*) filter (where t.owner_id is not null),
  count(*) filter (where t.owner_id is null and t.hold & ~1 = 0 and t.wake_at is not null),
  count(*) filter (where t.owner_id is null and t.hold <> 0 and (t.hold <> 1 or t.wake_at is null)),
  min(t.due_at) filter (where t.owner_id is null and t.hold = 0 and t.wake_at is null)
from tasks as t cross join lanes as l on l.id = t.lane_id
group by t.lane_id
order by t.lane_id;

-- name: count_finished
-- Finished tasks by state.
select state, count(*) from finished group by state;

-- name: list_moves
-- The moves of an entity in order of version.
select coalesce('[' || group_concat(move, ',') || ']', '[]')
from (select move from moves where entity_id = :entity_id order by version);

-- name: list_entities
-- Where the rows of entities stand, in order of id.
select json_group_array(json_array(entity, id, state, version))
from (
  select entity, id, state, version
  from (
    select * from (select 'task' as entity, id, state, version from tasks where id > :after_id order by id limit :limit)
    union all
    select * from (select 'task', id, state, version from finished where id > :after_id order by id limit :limit)
    union all
    select * from (select 'run', id, state, moves from runs where id > :after_id order by id limit :limit)
    union all
    select * from (select entity, id, state, moves from records where id > :after_id order by id limit :limit)
  )
  order by id
  limit :limit
);

-- name: list_moves_of
-- The moves of many entities, each in order of version.
select coalesce('[' || group_concat(move, ',') || ']', '[]')
from (select move from moves where entity_id in (select value from json_each(:ids)) order by entity_id, version);

-- name: count_rows
-- Live and finished tasks.
select (select count(*) from tasks), (select count(*) from finished);
