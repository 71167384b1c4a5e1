-- name: insert_tasks
-- Insert the tasks whose id is nowhere and whose unique key is free; answers the ids of those. If one of the lanes $20 is
-- guarded, nothing is inserted and the answer is null.
with gate as materialized (
  select exists (select from lanes where guarded and id = any ($20::integer[])) as shut
), made as (
  insert into tasks (id, lane_id, namespace, priority, due_at, hold, state, wake_at, claim_version, attempt, failures, takeovers,
    version, created_at, deadline_at, timeout_for, progress_for, run_id, step_id, flow_id, scope, root_id, trace_id, limit_key,
    unique_key, policy, payload)
  select given.id, given.lane_id, given.namespace, given.priority, (select treadle_now()) + given.delay, given.hold, 'pending',
    case when given.delay > 0 then (select treadle_now()) + given.delay end, 0, 1, 0, 0,
    0, (select treadle_now()), (select treadle_now()) + given.deadline_for, given.timeout_for, given.progress_for, given.run_id,
    given.step_id, given.flow_id, given.scope, coalesce(given.root_id, given.id), given.trace_id, given.limit_key,
    given.unique_key, given.policy, given.payload
  from unnest($1::text::uuid[], $2::text::integer[], $3::text::text[], $4::text::integer[], $5::text::bigint[], $6::bigint[],
    $7::bigint[], $8::bigint[], $9::text::uuid[], $10::text::uuid[], $11::text::text[], $12::text::text[], $13::text::uuid[],
    $14::text::text[], $15::text::text[], $16::text::text[], $17::text[], $18::text[], $19::text::integer[])
    as given (id, lane_id, namespace, priority, delay, deadline_for, timeout_for, progress_for,
      run_id, step_id, flow_id, scope, root_id, trace_id, limit_key, unique_key, policy, payload, hold)
  where not (select shut from gate) and not exists (select from finished where finished.id = given.id)
  on conflict do nothing
  returning id
)
select id::text from made
union all
select null from gate where shut;

-- name: claim_born
-- Give new tasks ($1 ids, $2 owners, $3 leases) to those who made them, where anybody could take them now.
with taken as materialized (
  select tasks.id, given.owner_id, given.lease_for
  from unnest($1::uuid[], $2::text[], $3::bigint[]) as given (id, owner_id, lease_for)
  join tasks on tasks.id = given.id
  where tasks.claim_version = 0 and tasks.version = 0 and tasks.owner_id is null and tasks.wake_at is null and tasks.hold = 0
    and not exists (select from lanes where lanes.id = tasks.lane_id and lanes.slowed)
  for update of tasks skip locked
)
update tasks
set owner_id = taken.owner_id, claim_version = 1, claimed_at = (select treadle_now()), heartbeat_at = (select treadle_now()),
  progress_at = (select treadle_now()), wake_at = (select treadle_now()) + taken.lease_for
from taken
where tasks.id = taken.id;

-- name: explain_refusals
-- Of tasks not inserted ($1 ids, $2 namespaces, $3 unique keys, $4 steps): was the id there, who has the key, who has the step?
select given.id::text, live.id is not null or ended.id is not null as known, holder.id::text as holder_id, rival.id::text as rival_id
from unnest($1::uuid[], $2::text[], $3::text[], $4::uuid[]) as given (id, namespace, unique_key, step_id)
left join tasks as live on live.id = given.id
left join finished as ended on ended.id = given.id
left join tasks as holder on holder.namespace = given.namespace and holder.unique_key = given.unique_key
left join tasks as rival on rival.step_id = given.step_id;
