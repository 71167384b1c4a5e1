-- name: renew
-- Extend the claims ($1 ids, $2 versions, $3 owners) that are held to $4 ms from now; $5 progressed, $6 progress.
with given as materialized (
  select *
  from unnest($1::uuid[], $2::integer[], $3::text[], $5::boolean[], $6::text[])
    as given (id, claim_version, owner_id, progressed, progress)
), free as materialized (
  select tasks.id, given.progressed, given.progress
  from given
  join tasks on tasks.id = given.id and tasks.claim_version = given.claim_version and tasks.owner_id = given.owner_id
  for update of tasks skip locked
)
update tasks
set heartbeat_at = (select treadle_now()),
    progress_at = case when free.progressed then (select treadle_now()) else tasks.progress_at end,
    progress = case when free.progressed then coalesce(free.progress, tasks.progress) else tasks.progress end,
    wake_at = least(
      (select treadle_now()) + $4::bigint,
      tasks.deadline_at,
      case when free.progressed then (select treadle_now()) else tasks.progress_at end + tasks.progress_for
    )
from free
where tasks.id = free.id
returning tasks.id::text;

-- name: extend
-- As `renew`, but not past the longest time of an attempt either; until when the claims hold.
with given as materialized (
  select *
  from unnest($1::uuid[], $2::integer[], $3::text[], $5::boolean[], $6::text[])
    as given (id, claim_version, owner_id, progressed, progress)
), free as materialized (
  select tasks.id, given.progressed, given.progress
  from given
  join tasks on tasks.id = given.id and tasks.claim_version = given.claim_version and tasks.owner_id = given.owner_id
  for update of tasks skip locked
)
update tasks
set heartbeat_at = (select treadle_now()),
    progress_at = case when free.progressed then (select treadle_now()) else tasks.progress_at end,
    progress = case when free.progressed then coalesce(free.progress, tasks.progress) else tasks.progress end,
    wake_at = least(
      (select treadle_now()) + $4::bigint,
      tasks.deadline_at,
      case when free.progressed then (select treadle_now()) else tasks.progress_at end + tasks.progress_for,
      tasks.claimed_at + tasks.timeout_for
    )
from free
where tasks.id = free.id
returning tasks.id::text, tasks.wake_at, tasks.heartbeat_at;

-- name: held
-- Which of the claims ($1 ids, $2 versions, $3 owners) are still held.
select tasks.id::text
from unnest($1::uuid[], $2::integer[], $3::text[]) as given (id, claim_version, owner_id)
join tasks on tasks.id = given.id and tasks.claim_version = given.claim_version and tasks.owner_id = given.owner_id;

-- name: beat
-- Insert the server, or update it; its heartbeat is now, its start stays what it was.
insert into servers (id, name, host, pid, version, state, handlers, task_lists, concurrency, heartbeat_every_for, started_at,
  heartbeat_at, handled, failed, running, server_group, service_name, topics, counts, error)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, coalesce(nullif($11::bigint, 0), (select treadle_now())), (select treadle_now()),
  $12, $13, $14, $15, $16, $17, $18, $19)
on conflict (id) do update
set name = excluded.name,
    host = excluded.host,
    pid = excluded.pid,
    version = excluded.version,
    state = excluded.state,
    handlers = excluded.handlers,
    task_lists = excluded.task_lists,
    concurrency = excluded.concurrency,
    heartbeat_every_for = excluded.heartbeat_every_for,
    heartbeat_at = excluded.heartbeat_at,
    handled = excluded.handled,
    failed = excluded.failed,
    running = excluded.running,
    server_group = excluded.server_group,
    service_name = excluded.service_name,
    topics = excluded.topics,
    counts = excluded.counts,
    error = excluded.error;

-- name: touch_servers
-- Note that servers ($1 ids, $2 states, $3 handled, $4 failed, $5 running) which have not stopped are alive; their rows.
update servers
set heartbeat_at = (select treadle_now()),
    state = coalesce(given.state, servers.state),
    handled = servers.handled + given.handled,
    failed = servers.failed + given.failed,
    running = coalesce(given.running, servers.running)
from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::integer[]) as given (id, state, handled, failed, running)
where servers.id = given.id and servers.state <> 'stopped'
returning servers.*;

-- name: now
-- The store's clock.
select treadle_now();
