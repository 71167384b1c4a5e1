-- name: lock_tasks(ids)
-- Lock guarded live tasks in order of id, and return the values that guards are compared with.
select tasks.id::text, tasks.version, tasks.claim_version, tasks.owner_id, tasks.state, tasks.queue_id, tasks.blocked_by,
  tasks.namespace, coalesce(tasks.limit_keys, tasks.limit_key) as limit_key, tasks.wake_at is not null as asleep
from tasks
join unnest($1::text::uuid[]) as given (id) on tasks.id = any (array[given.id])
order by given.id
for update of tasks;

-- name: lock_tasks_and_receivers(ids, run_ids)
-- Lock tasks as `lock_tasks` does, and with them the own tasks of the runs $2.
select tasks.id::text, tasks.version, tasks.claim_version, tasks.owner_id, tasks.state, tasks.queue_id, tasks.blocked_by,
  tasks.namespace, coalesce(tasks.limit_keys, tasks.limit_key) as limit_key, tasks.wake_at is not null as asleep
from tasks
join (
  select given.id from unnest($1::text::uuid[]) as given (id)
  union
  select own.id from unnest($2::text::uuid[]) as given (run_id) join tasks as own on own.run_id = given.run_id and own.step_id is
    null
) as wanted on tasks.id = any (array[wanted.id])
order by wanted.id
for update of tasks;

-- name: lock_finished(ids)
-- Lock guarded finished tasks in order of id, and return the values that guards are compared with.
select finished.id::text, finished.version, finished.claim_version, finished.owner_id, finished.state, finished.queue_id
from finished
join unnest($1::text::uuid[]) as given (id) on finished.id = any (array[given.id])
order by given.id
for update of finished;

-- name: list_settled(*rows)
-- Return the claims ($1 ids, $2 versions, $3 owners) that have made their transition ($4 actors, $5 transitions), by position.
with given as materialized (
  select *
  from unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::text[]) with ordinality
    as given (id, claim_version, owner_id, actor, transition, position)
)
select given.position - 1
from given
join finished on finished.id = any (array[given.id]) and finished.claim_version = given.claim_version
  and finished.owner_id = given.owner_id and finished.actor = given.actor and finished.transition = given.transition
union all
select given.position - 1
from given
join log on log.entity_id = any (array[given.id]) and log.claim_version = given.claim_version and log.actor = given.actor
  and log.transition = given.transition;

-- name: lock_runs(ids)
-- Lock runs in order of id, and return their versions, and whether they have ended.
select id::text, version, finished_at is not null from runs where id = any($1::text::uuid[]) order by id for update;

-- name: find_unique_keys(*rows)
-- Return the live tasks that have unique keys ($1 namespaces, $2 keys), with the keys.
select tasks.namespace, tasks.unique_key, tasks.id::text
from unnest($1::text[], $2::text[]) as given (namespace, key)
join tasks on tasks.namespace = given.namespace and tasks.unique_key = given.key;

-- name: lock_records(ids)
-- Lock records in order of id, and return their versions.
select id::text, version from records where id = any ($1::uuid[]) order by id for update;

-- name: confirm
-- Write a record into the write-ahead log if commits wait for standbys: once they have it, they have everything before it.
select case when current_setting('synchronous_standby_names') <> '' then pg_logical_emit_message(true, 'treadle', '') end;
