-- name: now
-- Return the database's clock.
select treadle_now();

-- name: claim
-- Claim up to $4 ready tasks of the best queue among $1 that is not slowed, for the owner $2, with a lease of $3 ms.
with best as materialized (
  select head.queue_id, head.priority, head.due_at
  from unnest($1::integer[]) as wanted (queue_id)
  cross join lateral (
    select tasks.queue_id, tasks.priority, tasks.due_at
    from tasks
    where tasks.queue_id = wanted.queue_id and owner_id is null and wake_at is null and blocked_by = 0
    order by tasks.priority, tasks.due_at, tasks.id
    limit 1
  ) as head
  where wanted.queue_id <> all (array(select id from queues where slowed))
  order by head.priority, head.due_at
  limit 1
), taken as materialized (
  select id, namespace, coalesce(limit_keys, limit_key) as limit_key
  from tasks
  where queue_id = (select queue_id from best) and priority = (select priority from best)
    -- No ready task is before the head: this skips dead index entries of claimed tasks, which a snapshot may preserve.
    and due_at >= (select due_at from best)
    and owner_id is null and wake_at is null and blocked_by = 0
  order by due_at, id
  limit $4::bigint
  for update skip locked
), {sql:charged}
update tasks
set owner_id = $2::text,
    claim_version = tasks.claim_version + 1,
    claimed_at = (select treadle_now()),
    heartbeat_at = (select treadle_now()),
    progress_at = (select treadle_now()),
    wake_at = (select treadle_now()) + $3::bigint,
    activity = null
where tasks.id = any (array(select id from taken))
returning {text:tasks.claimed}, nullif(tasks.root_id, tasks.id)::text as root_id;

-- name: claim_after
-- Claim tasks as `claim` does, but in each queue only from a position ($5 priorities, $6 due times).
with best as materialized (
  select head.queue_id, head.priority, head.due_at
  from unnest($1::integer[], $5::integer[], $6::bigint[]) as wanted (queue_id, priority, due_at)
  cross join lateral (
    select tasks.queue_id, tasks.priority, tasks.due_at
    from tasks
    where tasks.queue_id = wanted.queue_id and (tasks.priority, tasks.due_at) >= (wanted.priority, wanted.due_at)
      and owner_id is null and wake_at is null and blocked_by = 0
    order by tasks.priority, tasks.due_at, tasks.id
    limit 1
  ) as head
  where wanted.queue_id <> all (array(select id from queues where slowed))
  order by head.priority, head.due_at
  limit 1
), taken as materialized (
  select id, namespace, coalesce(limit_keys, limit_key) as limit_key
  from tasks
  where queue_id = (select queue_id from best) and priority = (select priority from best)
    -- No ready task is before the head: this skips dead index entries of claimed tasks, which a snapshot may preserve.
    and due_at >= (select due_at from best)
    and owner_id is null and wake_at is null and blocked_by = 0
  order by due_at, id
  limit $4::bigint
  for update skip locked
), {sql:charged}
update tasks
set owner_id = $2::text,
    claim_version = tasks.claim_version + 1,
    claimed_at = (select treadle_now()),
    heartbeat_at = (select treadle_now()),
    progress_at = (select treadle_now()),
    wake_at = (select treadle_now()) + $3::bigint,
    activity = null
where tasks.id = any (array(select id from taken))
returning {text:tasks.claimed}, nullif(tasks.root_id, tasks.id)::text as root_id;

-- name: claim_slowed
-- Claim tasks as `claim` does, also from queues with a rate: up to the queue's tokens, which are taken from its locked row.
with shut as materialized (
  select id
  from queues
  where slowed
    and (paused or least(burst, tokens + rate * greatest((select treadle_now()) - tokens_at, 0) / 1000) < 1)
), best as materialized (
  select head.queue_id, head.priority, head.due_at
  from unnest($1::integer[]) as wanted (queue_id)
  cross join lateral (
    select tasks.queue_id, tasks.priority, tasks.due_at
    from tasks
    where tasks.queue_id = wanted.queue_id and owner_id is null and wake_at is null and blocked_by = 0
    order by tasks.priority, tasks.due_at, tasks.id
    limit 1
  ) as head
  where wanted.queue_id <> all (array(select id from shut))
  order by head.priority, head.due_at
  limit 1
), bucket as materialized (
  select id, least(burst, tokens + rate * greatest((select treadle_now()) - tokens_at, 0) / 1000) as tokens
  from queues
  where id = (select queue_id from best) and rate is not null
  for no key update
), taken as materialized (
  select id, namespace, coalesce(limit_keys, limit_key) as limit_key
  from tasks
  where queue_id = (select queue_id from best) and priority = (select priority from best)
    -- No ready task is before the head: this skips dead index entries of claimed tasks, which a snapshot may preserve.
    and due_at >= (select due_at from best)
    and owner_id is null and wake_at is null and blocked_by = 0
  order by due_at, id
  limit least($4::bigint, (select floor(tokens)::bigint from bucket))
  for update skip locked
), spent as (
  update queues
  set tokens = bucket.tokens - (select count(*) from taken), tokens_at = (select treadle_now())
  from bucket
  where queues.id = bucket.id
), {sql:charged}
update tasks
set owner_id = $2::text,
    claim_version = tasks.claim_version + 1,
    claimed_at = (select treadle_now()),
    heartbeat_at = (select treadle_now()),
    progress_at = (select treadle_now()),
    wake_at = (select treadle_now()) + $3::bigint,
    activity = null
where tasks.id = any (array(select id from taken))
returning {text:tasks.claimed}, nullif(tasks.root_id, tasks.id)::text as root_id;

-- name: list_ready_queues
-- List those of the queues $1 that have a ready task, the one with the first task first; rates do not count.
select head.queue_id
from unnest($1::integer[]) as wanted (queue_id)
cross join lateral (
  select tasks.queue_id, tasks.priority, tasks.due_at
  from tasks
  where tasks.queue_id = wanted.queue_id and owner_id is null and wake_at is null and blocked_by = 0
  order by tasks.priority, tasks.due_at, tasks.id
  limit 1
) as head
where wanted.queue_id <> all (array(select id from queues where slowed))
order by head.priority, head.due_at;

-- name: claim_unlocked
-- Claim up to $4 ready tasks of the queue $1 that no other transaction has locked, for the owner $2, with a lease of $3 ms.
with taken as materialized (
  select id, namespace, coalesce(limit_keys, limit_key) as limit_key
  from tasks
  where queue_id = $1::integer and owner_id is null and wake_at is null and blocked_by = 0
  order by priority, due_at, id
  limit $4::bigint
  for update skip locked
), {sql:charged}
update tasks
set owner_id = $2::text,
    claim_version = tasks.claim_version + 1,
    claimed_at = (select treadle_now()),
    heartbeat_at = (select treadle_now()),
    progress_at = (select treadle_now()),
    wake_at = (select treadle_now()) + $3::bigint,
    activity = null
where tasks.id = any (array(select id from taken))
returning {text:tasks.claimed}, nullif(tasks.root_id, tasks.id)::text as root_id;

-- name: claim_scoped
-- Claim up to $4 ready tasks of the queue $1 in one of the scopes $5, for the owner $2, with a lease of $3 ms, as `claim_slowed`.
with bucket as materialized (
  select id, least(burst, tokens + rate * greatest((select treadle_now()) - tokens_at, 0) / 1000) as tokens
  from queues
  where id = $1::integer and rate is not null
  for no key update
), taken as materialized (
  select id, namespace, coalesce(limit_keys, limit_key) as limit_key
  from tasks
  where queue_id = $1::integer and scope = any ($5::text[]) and owner_id is null and wake_at is null and blocked_by = 0
    and not exists (select 1 from queues where queues.id = $1::integer and slowed and paused)
  order by priority, due_at, id
  limit least($4::bigint, (select floor(tokens)::bigint from bucket))
  for update skip locked
), spent as (
  update queues
  set tokens = bucket.tokens - (select count(*) from taken), tokens_at = (select treadle_now())
  from bucket
  where queues.id = bucket.id
), {sql:charged}
update tasks
set owner_id = $2::text,
    claim_version = tasks.claim_version + 1,
    claimed_at = (select treadle_now()),
    heartbeat_at = (select treadle_now()),
    progress_at = (select treadle_now()),
    wake_at = (select treadle_now()) + $3::bigint,
    activity = null
where tasks.id = any (array(select id from taken))
returning {text:tasks.claimed}, nullif(tasks.root_id, tasks.id)::text as root_id;

-- name: order_fairly(ids)
-- Give waiting tasks $1 with a fairness key the due times of their places: the first one of a key that has none waiting comes with
-- the head of the others that are not paused, and each further one a millisecond after the last of its key.
with given as materialized (
  select id, queue_id, priority, fairness_key, due_at,
    row_number() over (partition by queue_id, priority, fairness_key order by due_at, id) - 1 as place
  from tasks
  where id = any ($1::uuid[]) and fairness_key is not null and owner_id is null and wake_at is null
), heads as materialized (
  select kinds.queue_id, kinds.priority, (
    select due_at
    from tasks
    where tasks.queue_id = kinds.queue_id and tasks.priority = kinds.priority and tasks.fairness_key is not null
      and owner_id is null and wake_at is null and (blocked_by & ~1) = 0 and id not in (select id from given)
    order by due_at
    limit 1
  ) as due_at
  from (select distinct queue_id, priority from given) as kinds
), flows as materialized (
  select kinds.queue_id, kinds.priority, kinds.fairness_key, heads.due_at as head, (
    select due_at
    from tasks
    where tasks.queue_id = kinds.queue_id and tasks.priority = kinds.priority and tasks.fairness_key = kinds.fairness_key
      and tasks.fairness_key is not null and owner_id is null and wake_at is null and id not in (select id from given)
    order by due_at desc
    limit 1
  ) as last
  from (select distinct queue_id, priority, fairness_key from given) as kinds
  join heads on heads.queue_id = kinds.queue_id and heads.priority = kinds.priority
)
update tasks
set due_at = greatest(coalesce(flows.head, given.due_at), coalesce(flows.last + 1, 0)) + given.place
from given
join flows on flows.queue_id = given.queue_id and flows.priority = given.priority and flows.fairness_key = given.fairness_key
where tasks.id = any (array[given.id]);

-- name: announce_ready(channel, ids)
-- Notify the channel $1 of the queues in which tasks $2 are ready: the session had locked them, and claims skipped them.
select pg_notify($1::text, string_agg(distinct queue_id::text, ','))
from tasks
where id = any ($2::uuid[]) and owner_id is null and wake_at is null and blocked_by = 0
having count(*) > 0;

-- name: is_snapshot_old
-- Return whether a session holds an old snapshot, which prevents the removal of dead index entries.
select exists (
    select from pg_stat_activity where backend_xmin is not null and xact_start < now() - interval '10 seconds'
  )
  or exists (select from pg_prepared_xacts where prepared < now() - interval '10 seconds')
  or exists (select from pg_replication_slots where xmin is not null and not active);

-- name: claim_of_run(run_id, owner_id, lease_for, limit, kind)
-- Claim ready tasks of the run for the owner.
with taken as materialized (
  select id, namespace, coalesce(limit_keys, limit_key) as limit_key
  from tasks
  where run_id = $1::uuid and owner_id is null and wake_at is null and blocked_by = 0
    and queue_id in (select id from queues where kind = $5::text and not (slowed and paused))
  order by priority, due_at, id
  limit $4::bigint
  for update skip locked
), {sql:charged}
update tasks
set owner_id = $2::text, claim_version = tasks.claim_version + 1, claimed_at = (select treadle_now()),
  heartbeat_at = (select treadle_now()), progress_at = (select treadle_now()), wake_at = (select treadle_now()) + $3::bigint,
  activity = null
where tasks.id = any (array(select id from taken))
returning tasks.id::text;

-- name: wake(limit, expire_leases, find_ready)
-- Make up to $1 tasks ready whose `wake_at` has passed; with $2 also those whose lease expired, which logs a transition. With $3,
-- return whether a task was ready before.
with due as materialized (
  select id, owner_id
  from tasks
  where wake_at <= (select treadle_now()) and ($2::boolean or owner_id is null)
  order by wake_at
  limit $1::bigint
  for update skip locked
), marked as (
  -- Effects in progress become unknown with the lease.
  update idempotency_outcomes as o
  set unknown_at = (select treadle_now())
  from due
  where o.task_id = due.id and due.owner_id is not null and o.status = 'unknown' and o.unknown_at is null
  returning o.task_id, o.idempotency_key, o.created_at, o.details
), moved as (
  select task_id, count(*)::integer as count from marked group by task_id
), woken as (
  update tasks
  set owner_id = null,
      wake_at = null,
      takeovers = tasks.takeovers + (due.owner_id is not null)::integer,
      attempt = tasks.attempt + (due.owner_id is not null and tasks.state = 'pending')::integer,
      version = tasks.version + (due.owner_id is not null)::integer + coalesce(moved.count, 0),
      -- A task that is blocked now, or whose lease expired, loses its slot under its limit, which may have been lowered since.
      blocked_by = case
        when tasks.limit_key is not null and (tasks.blocked_by <> 0 or due.owner_id is not null) then tasks.blocked_by | 1
        else tasks.blocked_by
      end
  from due
  left join moved on moved.task_id = due.id
  where tasks.id = any (array[due.id])
  returning tasks.id, tasks.queue_id, tasks.blocked_by, tasks.version, tasks.state, tasks.claim_version, tasks.run_id, tasks.root_id,
    tasks.trace_id, tasks.namespace, coalesce(tasks.limit_keys, tasks.limit_key) as limit_key, due.owner_id as loser_id, moved.count as transitions, tasks.fairness_key
), logged as (
  insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id,
    trace_id,
    data)
  select nextval('treadle_seq'), (select treadle_now()), 'task', id, version, transition, state, state, loser_id, claim_version,
    run_id, root_id, trace_id, details
  from (
    select woken.*, 'expire' as transition, null as details from woken where loser_id is not null
    union all
    select woken.id, queue_id, blocked_by,
      woken.version - 1 - transitions + (row_number() over (partition by woken.id order by marked.created_at,
        idempotency_key))::integer,
      state, claim_version, run_id, root_id, trace_id, namespace, limit_key, loser_id, transitions, fairness_key,
        'tool_call.unknown',
      details
    from woken
    join marked on marked.task_id = woken.id
    order by id, version
  ) as transitions
)
select
  (select count(*) from woken) as count,
  (select count(*) from woken where loser_id is not null) as expired,
  -- with the queues of due tasks that another transaction woke meanwhile: they stay locked until this statement ends
  array(
    select queue_id from woken where blocked_by = 0
    union
    select queue_id
    from (
      select id, queue_id
      from tasks
      where wake_at <= (select treadle_now()) and ($2::boolean or owner_id is null) and blocked_by = 0
      order by wake_at
      limit $1::bigint
    ) as seen
    where id not in (select id from woken)
  ) as queue_ids,
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
  (select json_agg(distinct jsonb_build_array(namespace, limit_key)) from woken where limit_key is not null and blocked_by <> 0) as keys,
  exists (select from tasks where limit_key is not null and blocked_by = 1 and owner_id is null and wake_at is null) as waiting,
  array(select id::text from woken where fairness_key is not null and claim_version = 0) as fair,
  $3::boolean and exists (select from tasks where owner_id is null and wake_at is null and blocked_by = 0) as ready,
  exists (select from limits where rate is not null) as rated;

-- name: extend(*rows, lease_for, within_timeout)
-- Extend held claims ($1 ids, $2 versions, $3 owners; $4 progressed, $5 progress) to $6 ms from now, never past a deadline, nor
-- past the attempt's timeout with $7; return their new ends.
with given as materialized (
  select *
  from unnest($1::uuid[], $2::integer[], $3::text[], $4::boolean[], $5::text[])
    as given (id, claim_version, owner_id, progressed, progress)
), free as materialized (
  select tasks.id, given.progressed, given.progress
  from given
  join tasks on tasks.id = any (array[given.id]) and tasks.claim_version = given.claim_version and tasks.owner_id = given.owner_id
  for update of tasks skip locked
)
update tasks
set heartbeat_at = (select treadle_now()),
    progress_at = case when free.progressed then (select treadle_now()) else tasks.progress_at end,
    progress = case when free.progressed then coalesce(free.progress, tasks.progress) else tasks.progress end,
    wake_at = least(
      (select treadle_now()) + $6::bigint,
      tasks.deadline_at,
      case when free.progressed then (select treadle_now()) else tasks.progress_at end + tasks.progress_for,
      case when $7::boolean then tasks.claimed_at + tasks.timeout_for end
    )
from free
where tasks.id = any (array[free.id])
returning tasks.id::text, tasks.wake_at, tasks.heartbeat_at;

-- name: list_held(*rows)
-- List those of the claims ($1 ids, $2 versions, $3 owners) that are held.
select tasks.id::text
from unnest($1::uuid[], $2::integer[], $3::text[]) as given (id, claim_version, owner_id)
join tasks on tasks.id = any (array[given.id]) and tasks.claim_version = given.claim_version and tasks.owner_id = given.owner_id;

-- name: expire_leases(owners)
-- Expire the leases of the owners now, if they have not expired before.
with owned as materialized (
  select id from tasks where owner_id = any ($1::text[]) and wake_at is not null order by id for update
)
update tasks set wake_at = least(tasks.wake_at, (select treadle_now())) from owned where tasks.id = any (array[owned.id]);

-- name: list_failing(queue_ids, limit)
-- List tasks of the queues $1 that wait after an error, among the 10,000 that are due next: retries are due before most
-- others, and building an index of their own would lock out claims and renewals during the upgrade.
select id::text
from (
  select id, queue_id, error from tasks where wake_at is not null and owner_id is null order by wake_at limit 10000
) as next
where error is not null and queue_id = any ($1::integer[])
limit $2::bigint;

-- name: list_unpolled(queue_ids, limit)
-- List tasks of the queues $1 that await an external job and are ready to be polled.
select id::text
from tasks
where queue_id = any ($1::integer[]) and state = 'awaiting_external' and owner_id is null and wake_at is null and blocked_by = 0
limit $2::bigint;

-- name: find_tasks(ids) on lists
-- Find live and finished tasks by id.
select found.*, queues.kind, queues.task_list, queues.name
from unnest($1::uuid[]) as given (id)
cross join lateral (
  select {all:live} from tasks where id = given.id
  union all
  select {all:finished} from finished where id = given.id
) as found
join queues on queues.id = found.queue_id;

-- name: list_tasks(states, namespace, kind, task_list, name, held, live, ended, before_at, before_id, limit) on lists
-- List live ($7) and finished ($8) tasks, newest first, after the position ($9, $10); $1 shown states, $2-$5 queue may be null for
-- any; with $6 only tasks with an owner.
with wanted as materialized (
  {sql:postgres_queue_filter}
), found as (
  (
    select {all:live}
    from tasks
    where (created_at, id) < ($9::bigint, $10::uuid) and $7::boolean and {sql:postgres_live_filter}
    order by created_at desc, id desc
    limit $11::bigint
  )
  union all
  (
    select {all:finished}
    from finished
    where (created_at, id) < ($9::bigint, $10::uuid) and $8::boolean and {sql:postgres_finished_filter}
    order by created_at desc, id desc
    limit $11::bigint
  )
)
select found.*, queues.kind, queues.task_list, queues.name
from found
join queues on queues.id = found.queue_id
order by found.created_at desc, found.id desc
limit $11::bigint;

-- name: list_run_tasks(states, namespace, kind, task_list, name, held, live, ended, before_at, before_id, limit, run_id) on lists
-- List the tasks of the run $12 as `list_tasks` does. (`+ 0` leaves only the index of runs.)
with wanted as materialized (
  {sql:postgres_queue_filter}
), found as (
  select {all:live}
  from tasks
  where run_id = $12::uuid and (created_at + 0, id) < ($9::bigint, $10::uuid) and $7::boolean and {sql:postgres_live_filter}
  union all
  select {all:finished}
  from finished
  where run_id = $12::uuid and (created_at + 0, id) < ($9::bigint, $10::uuid) and $8::boolean and {sql:postgres_finished_filter}
)
select found.*, queues.kind, queues.task_list, queues.name
from found
join queues on queues.id = found.queue_id
order by found.created_at + 0 desc, found.id desc
limit $11::bigint;

-- name: find_task_created_at(id) on hot
-- Find the time of creation of a live or finished task.
select created_at from tasks where id = $1::uuid union all select created_at from finished where id = $1::uuid limit 1;

-- name: find_unique(namespace, keys)
-- Find the task lists of the live tasks that have unique keys.
select t.unique_key, l.task_list
from tasks as t join queues as l on l.id = t.queue_id
where t.namespace = $1 and t.unique_key = any($2::text[]);

-- name: find_finished(ids) on hot
-- Find the finished tasks among $1.
select finished.*, queues.kind, queues.task_list, queues.name
from unnest($1::uuid[]) as given (id)
join finished on finished.id = any (array[given.id])
join queues on queues.id = finished.queue_id;

-- name: list_depths
-- Count the live tasks of each queue by state of readiness.
select depth.queue_id, queues.namespace, queues.kind, queues.task_list, queues.name,
  depth.ready, depth.running, depth.waiting, depth.blocked, depth.oldest_due_at, depth.paused
from (
  select queue_id,
    count(*) filter (where owner_id is null and blocked_by = 0 and wake_at is null) as ready,
    count(*) filter (where owner_id is not null) as running,
    count(*) filter (where owner_id is null and blocked_by & ~1 = 0 and wake_at is not null) as waiting,
    count(*) filter (where owner_id is null and blocked_by <> 0 and (blocked_by <> 1 or wake_at is null)) as blocked,
    min(due_at) filter (where owner_id is null and blocked_by = 0 and wake_at is null) as oldest_due_at,
    count(*) filter (where blocked_by & 8 <> 0) as paused
  from tasks
  group by queue_id
) as depth
join queues on queues.id = depth.queue_id
order by depth.queue_id;

-- name: size_finished
-- Return about how many tasks have finished; statistics alone, which follow within a second.
select coalesce(sum(greatest(c.reltuples::double precision, pg_stat_get_live_tuples(c.oid), 0)), 0)::bigint
from pg_inherits as i
join pg_class as c on c.oid = i.inhrelid
where i.inhparent = 'finished'::regclass;

-- name: sample_finished(percent)
-- Estimate the numbers of finished tasks by state from $1 percent of the pages of each partition. Dead letters are counted: few among
-- many others might not be in the sample.
select state, greatest(sum(sampled), case when state = 'failed' then (
    select count(*) from finished where finished.state = 'failed' and finished.fingerprint is distinct from ''
  ) else 0 end)::bigint as count
from (
  select state, count(*) * 100 / $1::double precision as sampled
  from finished tablesample system ($1::double precision)
  group by state
  union all
  select 'failed', 0
) as states
group by state
having sum(sampled) > 0 or state = 'failed';

-- name: count_finished
-- Count finished tasks by state.
select state, count(*) as count from finished group by state;
