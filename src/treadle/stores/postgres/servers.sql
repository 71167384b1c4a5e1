-- name: beat(id, name, host, pid, version, state, handlers, task_lists, concurrency, heartbeat_every_for, started_at, handled, failed, running, server_group, service_name, topics, counts, error, process, namespace, lost_after, release)
-- Insert or update the server; `heartbeat_at` becomes now, `started_at` keeps its first value, and it is not dead any more.
-- Return the evidence by which others took it for dead before, and count the others that are alive (that have missed less than
-- $22 heartbeats) and can be seen to die.
with saved as (
  insert into registered_servers as known (id, name, host, pid, version, state, handlers, task_lists, concurrency,
    heartbeat_every_for, started_at, heartbeat_at, handled, failed, running, server_group, service_name, topics, counts, error, process, namespace,
    release)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, coalesce(nullif($11::bigint, 0), (select treadle_now())), (select treadle_now()),
    $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $23)
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
      error = excluded.error,
      process = excluded.process,
      namespace = coalesce(excluded.namespace, known.namespace),
      release = excluded.release,
      evidence = null
)
select
  (select evidence from registered_servers where id = $1) as lost_by,
  (
    select count(*)
    from registered_servers
    where id <> $1 and state in ('starting', 'running', 'draining') and (process is not null or session is not null)
      and heartbeat_at >= (select treadle_now()) - $22::bigint * heartbeat_every_for
  ) as others;

-- name: list_sightings
-- List the servers that have not ended, with the time since their last heartbeat. With $1, also whether the session of the
-- schema $2 that each has in this instance of the database holds its lock.
with instance as materialized (
  select (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint::text as id
), held as materialized (
  select (classid::bigint << 32) | objid::bigint as key
  from pg_locks
  where $1::boolean and locktype = 'advisory' and objsubid = 1 and granted
    and database = (select oid from pg_database where datname = current_database())
)
select
  id,
  name,
  process,
  (select treadle_now()) - heartbeat_at as silent_for,
  heartbeat_every_for,
  case
    when $1::boolean and session = (select instance.id from instance)
      then exists (select from held where held.key = hashtextextended($2::text || '/' || registered_servers.id, 0))
  end as has_session
from registered_servers
where state in ('starting', 'running', 'draining') and pid <> 0;

-- name: lock
-- Hold the lock of the server $2 in the schema $1 until the session ends. It is shared: an earlier session of the server, which
-- the database has not found broken yet, must not delay it.
select pg_advisory_lock_shared(hashtextextended($1::text || '/' || $2::text, 0));

-- name: unlock
-- Release the lock of the server $2 in the schema $1.
select pg_advisory_unlock_shared(hashtextextended($1::text || '/' || $2::text, 0));

-- name: record_session
-- Record that the server $1 holds its lock in this instance of the database.
update registered_servers
set session = (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint::text
where id = $1::text and state in ('starting', 'running', 'draining');

-- name: end_servers(*rows)
-- Record the end of servers ($1 ids, $2 evidence) that have not ended; return their ids.
update registered_servers
set state = 'stopped', running = 0, session = null, evidence = given.evidence
from unnest($1::text[], $2::text[]) as given (id, evidence)
where registered_servers.id = given.id and registered_servers.state in ('starting', 'running', 'draining')
returning registered_servers.id;

-- name: touch_servers(*rows)
-- Record heartbeats of servers ($1 ids, $2 states, $3 handled, $4 failed, $5 running) that have not stopped; return their
-- rows.
update registered_servers
set heartbeat_at = (select treadle_now()),
    state = coalesce(given.state, registered_servers.state),
    handled = registered_servers.handled + given.handled,
    failed = registered_servers.failed + given.failed,
    running = coalesce(given.running, registered_servers.running)
from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::integer[]) as given (id, state, handled, failed, running)
where registered_servers.id = given.id and registered_servers.state <> 'stopped'
returning registered_servers.*;

-- name: list_servers(namespace)
-- List the servers of the namespace $1 and those without one, or all, newest first.
select *
from registered_servers
where $1::text is null or coalesce(namespace, $1) = $1
order by started_at desc, id desc;
