-- name: claim
-- Take up to $4 ready tasks of the best lane among $1 that is not slowed, for owner $2, under a lease of $3 ms.
with best as materialized (
  select head.lane_id, head.priority, head.due_at
  from unnest($1::integer[]) as wanted (lane_id)
  cross join lateral (
    select tasks.lane_id, tasks.priority, tasks.due_at
    from tasks
    where tasks.lane_id = wanted.lane_id and owner_id is null and wake_at is null and hold = 0
    order by tasks.priority, tasks.due_at, tasks.id
    limit 1
  ) as head
  where wanted.lane_id <> all (array(select id from lanes where slowed))
  order by head.priority, head.due_at
  limit 1
), taken as materialized (
  select id
  from tasks
  where lane_id = (select lane_id from best) and priority = (select priority from best)
    -- Nothing is before the head; this skips the dead entries of what was taken before, where a snapshot keeps them.
    and due_at >= (select due_at from best)
    and owner_id is null and wake_at is null and hold = 0
  order by due_at, id
  limit $4::bigint
  for update skip locked
)
update tasks
set owner_id = $2::text,
    claim_version = tasks.claim_version + 1,
    claimed_at = (select treadle_now()),
    heartbeat_at = (select treadle_now()),
    progress_at = (select treadle_now()),
    wake_at = (select treadle_now()) + $3::bigint
from taken
where tasks.id = taken.id
returning tasks.id::text, tasks.lane_id, tasks.priority, tasks.state, tasks.due_at, tasks.wake_at, tasks.claim_version,
  tasks.claimed_at, tasks.attempt, tasks.failures, tasks.takeovers, tasks.version, tasks.created_at, tasks.deadline_at,
  tasks.timeout_for, tasks.progress_for, tasks.progress, tasks.run_id::text, tasks.step_id::text, tasks.flow_id, tasks.scope,
  nullif(tasks.root_id, tasks.id)::text, tasks.trace_id, tasks.limit_key, tasks.unique_key, tasks.policy, tasks.payload,
  tasks.checkpoint, tasks.error;

-- name: claim_after
-- As `claim`, but in each lane only from a place ($5 priorities, $6 due times) on.
with best as materialized (
  select head.lane_id, head.priority, head.due_at
  from unnest($1::integer[], $5::integer[], $6::bigint[]) as wanted (lane_id, priority, due_at)
  cross join lateral (
    select tasks.lane_id, tasks.priority, tasks.due_at
    from tasks
    where tasks.lane_id = wanted.lane_id and (tasks.priority, tasks.due_at) >= (wanted.priority, wanted.due_at)
      and owner_id is null and wake_at is null and hold = 0
    order by tasks.priority, tasks.due_at, tasks.id
    limit 1
  ) as head
  where wanted.lane_id <> all (array(select id from lanes where slowed))
  order by head.priority, head.due_at
  limit 1
), taken as materialized (
  select id
  from tasks
  where lane_id = (select lane_id from best) and priority = (select priority from best)
    -- Nothing is before the head; this skips the dead entries of what was taken before, where a snapshot keeps them.
    and due_at >= (select due_at from best)
    and owner_id is null and wake_at is null and hold = 0
  order by due_at, id
  limit $4::bigint
  for update skip locked
)
update tasks
set owner_id = $2::text,
    claim_version = tasks.claim_version + 1,
    claimed_at = (select treadle_now()),
    heartbeat_at = (select treadle_now()),
    progress_at = (select treadle_now()),
    wake_at = (select treadle_now()) + $3::bigint
from taken
where tasks.id = taken.id
returning tasks.id::text, tasks.lane_id, tasks.priority, tasks.state, tasks.due_at, tasks.wake_at, tasks.claim_version,
  tasks.claimed_at, tasks.attempt, tasks.failures, tasks.takeovers, tasks.version, tasks.created_at, tasks.deadline_at,
  tasks.timeout_for, tasks.progress_for, tasks.progress, tasks.run_id::text, tasks.step_id::text, tasks.flow_id, tasks.scope,
  nullif(tasks.root_id, tasks.id)::text, tasks.trace_id, tasks.limit_key, tasks.unique_key, tasks.policy, tasks.payload,
  tasks.checkpoint, tasks.error;

-- name: is_snapshot_old
-- Whether somebody has held a snapshot open for long, which keeps the dead entries of indexes.
select exists (
    select from pg_stat_activity where backend_xmin is not null and xact_start < now() - interval '10 seconds'
  )
  or exists (select from pg_prepared_xacts where prepared < now() - interval '10 seconds')
  or exists (select from pg_replication_slots where xmin is not null and not active);

-- name: claim_slowed
-- As `claim`, also from lanes that have a rate: no more than the lane has tokens, which are taken from its row under a lock.
with shut as materialized (
  select id
  from lanes
  where slowed
    and (paused or least(burst, tokens + rate * greatest((select treadle_now()) - tokens_at, 0) / 1000) < 1)
), best as materialized (
  select head.lane_id, head.priority, head.due_at
  from unnest($1::integer[]) as wanted (lane_id)
  cross join lateral (
    select tasks.lane_id, tasks.priority, tasks.due_at
    from tasks
    where tasks.lane_id = wanted.lane_id and owner_id is null and wake_at is null and hold = 0
    order by tasks.priority, tasks.due_at, tasks.id
    limit 1
  ) as head
  where wanted.lane_id <> all (array(select id from shut))
  order by head.priority, head.due_at
  limit 1
), bucket as materialized (
  select id, least(burst, tokens + rate * greatest((select treadle_now()) - tokens_at, 0) / 1000) as tokens
  from lanes
  where id = (select lane_id from best) and rate is not null
  for no key update
), taken as materialized (
  select id
  from tasks
  where lane_id = (select lane_id from best) and priority = (select priority from best)
    -- Nothing is before the head; this skips the dead entries of what was taken before, where a snapshot keeps them.
    and due_at >= (select due_at from best)
    and owner_id is null and wake_at is null and hold = 0
  order by due_at, id
  limit least($4::bigint, (select floor(tokens)::bigint from bucket))
  for update skip locked
), spent as (
  update lanes
  set tokens = bucket.tokens - (select count(*) from taken), tokens_at = (select treadle_now())
  from bucket
  where lanes.id = bucket.id
)
update tasks
set owner_id = $2::text,
    claim_version = tasks.claim_version + 1,
    claimed_at = (select treadle_now()),
    heartbeat_at = (select treadle_now()),
    progress_at = (select treadle_now()),
    wake_at = (select treadle_now()) + $3::bigint
from taken
where tasks.id = taken.id
returning tasks.id::text, tasks.lane_id, tasks.priority, tasks.state, tasks.due_at, tasks.wake_at, tasks.claim_version,
  tasks.claimed_at, tasks.attempt, tasks.failures, tasks.takeovers, tasks.version, tasks.created_at, tasks.deadline_at,
  tasks.timeout_for, tasks.progress_for, tasks.progress, tasks.run_id::text, tasks.step_id::text, tasks.flow_id, tasks.scope,
  nullif(tasks.root_id, tasks.id)::text, tasks.trace_id, tasks.limit_key, tasks.unique_key, tasks.policy, tasks.payload,
  tasks.checkpoint, tasks.error;

-- name: wake
-- Make up to $1 tasks ready whose wake_at has come; with $2 also those whose lease ran out, which leaves a move.
with due as materialized (
  select id, owner_id
  from tasks
  where wake_at <= (select treadle_now()) and ($2::boolean or owner_id is null)
  order by wake_at
  limit $1::bigint
  for update skip locked
), woken as (
  update tasks
  set owner_id = null,
      wake_at = null,
      takeovers = tasks.takeovers + (due.owner_id is not null)::integer,
      attempt = tasks.attempt + (due.owner_id is not null and tasks.state = 'pending')::integer,
      version = tasks.version + (due.owner_id is not null)::integer,
      -- One that is held now, or has lost its lease, has no place under its limit: that may have been lowered since.
      hold = case
        when tasks.limit_key is not null and (tasks.hold <> 0 or due.owner_id is not null) then tasks.hold | 1
        else tasks.hold
      end
  from due
  where tasks.id = due.id
  returning tasks.id, tasks.lane_id, tasks.hold, tasks.version, tasks.state, tasks.claim_version, tasks.run_id, tasks.root_id,
    tasks.trace_id, tasks.namespace, tasks.limit_key, due.owner_id as loser_id
), logged as (
  insert into log (seq, at, entity, entity_id, version, move, from_state, to_state, actor, claim_version, run_id, root_id, trace_id)
  select nextval('treadle_seq'), (select treadle_now()), 'task', id, version, 'expire', state, state, loser_id, claim_version,
    run_id, root_id, trace_id
  from woken
  where loser_id is not null
)
select
  (select count(*) from woken) as count,
  (select count(*) from woken where loser_id is not null) as expired,
  array(select distinct lane_id from woken where hold = 0) as lane_ids,
  (
    select count(*)
    from (
      select
      from tasks
      where wake_at <= (select treadle_now()) and ($2::boolean or owner_id is null)
      order by wake_at
      limit $1::bigint + 1
    ) as seen
  ) as due,
  (select min(wake_at) from tasks where wake_at > (select treadle_now())) - (select treadle_now()) as next_for,
  (select treadle_now()) as now,
  not $2::boolean and exists (select from tasks where wake_at <= (select treadle_now()) and owner_id is not null) as overdue,
  (select json_agg(distinct jsonb_build_array(namespace, limit_key)) from woken where limit_key is not null and hold <> 0) as keys,
  exists (select from tasks where limit_key is not null and hold = 1 and owner_id is null and wake_at is null) as waiting;

-- name: now
-- The store's clock.
select treadle_now();

-- name: list_lanes
-- All lanes.
select id, namespace, kind, task_list, name, slowed from lanes order by id;

-- name: insert_lanes
-- Make the lanes that are missing, as their list and their handler's limit say.
insert into lanes (namespace, kind, task_list, name, paused, accepting, limit_key)
select given.*, coalesce(lists.paused, false), coalesce(lists.accepting, true), limits.key
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as given (namespace, kind, task_list, name)
left join lists on lists.namespace = given.namespace and lists.task_list = given.task_list
left join limits on limits.namespace = given.namespace and given.kind = 'handler' and limits.key = 'handler:' || given.name
  and limits.by_operator
on conflict do nothing;
