-- name: lock_tasks
-- The values of live tasks that guards are compared with.
select t.id, t.version, t.claim_version, t.owner_id, t.state, t.queue_id, t.blocked_by, t.namespace,
  coalesce(t.limit_keys, t.limit_key), t.wake_at is not null
from json_each(:ids) as wanted cross join tasks as t on t.id = wanted.value;

-- name: lock_tasks_and_receivers
-- The values of live tasks that guards are compared with; other transactions wait, so those of receivers of messages are not
-- needed.
select t.id, t.version, t.claim_version, t.owner_id, t.state, t.queue_id, t.blocked_by, t.namespace,
  coalesce(t.limit_keys, t.limit_key), t.wake_at is not null
from json_each(:ids) as wanted cross join tasks as t on t.id = wanted.value;

-- name: lock_finished
-- The values of finished tasks that guards are compared with.
select f.id, f.version, f.claim_version, f.owner_id, f.state, f.queue_id
from json_each(:ids) as wanted cross join finished as f on f.id = wanted.value;

-- name: list_settled
-- List those of the claims (id, version, owner, actor, transition) that have made that transition, according to their rows.
select r.key
from jsonb_each(:rows) as r
where exists (
    select 1
    from finished as f
    where f.id = r.value ->> 0 and f.claim_version = r.value ->> 1 and f.owner_id = r.value ->> 2 and f.actor = r.value ->> 3
      and f.transition = r.value ->> 4
  )
  or exists (
    select 1
    from log as l
    where l.entity_id = r.value ->> 0 and l.claim_version = r.value ->> 1 and l.actor = r.value ->> 3 and l.transition = r.value ->>
      4
  );

-- name: lock_runs
-- The versions of runs, and whether they have ended.
select r.id, r.version, r.finished_at is not null from json_each(:ids) as wanted cross join runs as r on r.id = wanted.value;

-- name: find_unique_keys
-- Return the live tasks that have these unique keys (namespace, key), with the keys.
select t.namespace, t.unique_key, t.id
from jsonb_each(:rows) as r
  cross join tasks as t on t.namespace = r.value ->> 0 and t.unique_key = r.value ->> 1;

-- name: lock_records
-- The versions of records.
select r.id, r.version from json_each(:ids) as wanted cross join records as r on r.id = wanted.value;
