-- name: enqueue
-- Enqueue; the schema is a checked name, the argument the driver's parameter.
select cast({schema}.treadle_enqueue_v1(cast({argument} as json)) as text);

-- name: stored
-- Return the request that a stored task came from.
with wanted as (select cast({argument} as uuid) as id),
found as (
  select tasks.queue_id, tasks.unique_key, tasks.payload from {schema}.tasks join wanted using (id)
  union all
  select finished.queue_id, finished.unique_key, finished.payload from {schema}.finished join wanted using (id)
)
select queues.name, queues.task_list, found.unique_key, found.payload
from found join {schema}.queues on queues.id = found.queue_id;

-- name: is_revived
-- Return whether an operator redrove the task, possibly with an edited payload.
select exists (select from {schema}.log where log.entity_id = cast({argument} as uuid) and log.transition = 'requeue');
