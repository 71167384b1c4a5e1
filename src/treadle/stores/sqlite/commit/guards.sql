-- name: find_tasks
-- The values of live tasks that guards are compared with.
select t.id, t.version, t.claim_version, t.owner_id, t.state, t.lane_id, t.hold, t.namespace, t.limit_key
from json_each(:ids) as wanted cross join tasks as t on t.id = wanted.value;

-- name: find_finished
-- The values of finished tasks that guards are compared with.
select f.id, f.version, f.claim_version, f.owner_id, f.state, f.lane_id
from json_each(:ids) as wanted cross join finished as f on f.id = wanted.value;

-- name: find_runs
-- The versions of runs, and whether they have ended.
select r.id, r.version, r.finished_at is not null from json_each(:ids) as wanted cross join runs as r on r.id = wanted.value;

-- name: find_runs_by_key
-- The runs with these idempotency keys (namespace, key).
select r.namespace, r.idempotency_key, r.id
from jsonb_each(:rows) as wanted
  cross join runs as r on r.namespace = wanted.value ->> 0 and r.idempotency_key = wanted.value ->> 1;

-- name: find_records
-- The versions of records.
select r.id, r.version from json_each(:ids) as wanted cross join records as r on r.id = wanted.value;

-- name: find_holders
-- The live records with these names (namespace, entity, name).
select r.namespace, r.entity, r.name, r.id
from jsonb_each(:rows) as wanted
  cross join records as r on r.namespace = wanted.value ->> 0 and r.entity = wanted.value ->> 1 and r.name = wanted.value ->> 2
    and r.ended_at is null;
