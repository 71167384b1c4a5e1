-- name: insert_tasks(*rows, queue_ids)
-- Insert the tasks whose id is new and whose unique key is free; return their ids. If one of the queues in the parameter after the
-- tasks is guarded, insert nothing and return null. Every snapshot has a stored task in one of the two tables; the index of `tasks`
-- alone would not refuse a repeated task that ends meanwhile. (`version` prevents reading all ids from the index alone.)
with gate as materialized (
  select exists (select from queues where guarded and id = any ({after:given}::integer[])) as shut
), made as (
  insert into tasks ({new}, due_at, wake_at, deadline_at, root_id, state, claim_version, attempt, failures, takeovers, version,
    created_at)
  select {given.new}, (select treadle_now()) + given.delay, case when given.delay > 0 then (select treadle_now()) + given.delay end,
    (select treadle_now()) + given.deadline_for, coalesce(given.root_id, given.id), 'pending', 0, 1, 0, 0, 0, (select treadle_now())
  from unnest({array:given}) as given ({given})
  where not (select shut from gate) and not exists (select from tasks where tasks.id = any (array[given.id]))
    and not exists (select from finished where finished.id = any (array[given.id]) and version >= 0)
  on conflict do nothing
  returning id
)
select id::text from made
union all
select null from gate where shut;

-- name: insert_task
-- Insert one task like `insert_tasks`; parameters for its columns cost a third less than arrays.
with gate as materialized (
  select exists (select from queues where guarded and id = any ({after:given}::integer[])) as shut
), made as (
  insert into tasks ({new}, due_at, wake_at, deadline_at, root_id, state, claim_version, attempt, failures, takeovers, version,
    created_at)
  select {given.new}, (select treadle_now()) + given.delay, case when given.delay > 0 then (select treadle_now()) + given.delay end,
    (select treadle_now()) + given.deadline_for, coalesce(given.root_id, given.id), 'pending', 0, 1, 0, 0, 0, (select treadle_now())
  from (values ({scalar:given})) as given ({given})
  where not (select shut from gate) and not exists (select from tasks where tasks.id = any (array[given.id]))
    and not exists (select from finished where finished.id = any (array[given.id]) and version >= 0)
  on conflict do nothing
  returning id
)
select id::text from made
union all
select null from gate where shut;

-- name: preclaim(*rows)
-- Claim new tasks ($1 ids, $2 owners, $3 leases) for their creators, if any worker could claim them now.
with taken as materialized (
  select tasks.id, tasks.namespace, coalesce(tasks.limit_keys, tasks.limit_key) as limit_key, given.owner_id, given.lease_for
  from unnest($1::uuid[], $2::text[], $3::bigint[]) as given (id, owner_id, lease_for)
  join tasks on tasks.id = any (array[given.id])
  where tasks.claim_version = 0 and tasks.version = 0 and tasks.owner_id is null and tasks.wake_at is null and tasks.blocked_by = 0
    and not exists (select from queues where queues.id = tasks.queue_id and queues.slowed)
  for update of tasks skip locked
), {sql:charged}
update tasks
set owner_id = taken.owner_id, claim_version = 1, claimed_at = (select treadle_now()), heartbeat_at = (select treadle_now()),
  progress_at = (select treadle_now()), wake_at = (select treadle_now()) + taken.lease_for
from taken
where tasks.id = any (array[taken.id]);

-- name: explain_refusals(*rows)
-- For tasks that were not inserted ($1 ids, $2 namespaces, $3 unique keys, $4 steps), return whether the id exists, and
-- the tasks that have the key and the step.
select given.id::text, live.id is not null or ended.id is not null as known, holder.id::text as holder_id, rival.id::text as
  rival_id
from unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[]) as given (id, namespace, unique_key, step_id)
left join tasks as live on live.id = any (array[given.id])
left join finished as ended on ended.id = any (array[given.id]) and ended.version >= 0
left join tasks as holder on holder.namespace = given.namespace and holder.unique_key = given.unique_key
left join tasks as rival on rival.step_id = given.step_id;
