-- name: beat
-- Insert or update the server; `heartbeat_at` becomes now, `started_at` keeps its first value, and it is not dead any more. Return the
-- evidence by which others took it for dead before, and count the others that are alive and can be seen to die.
select
  (select evidence from servers where id = :id),
  (
    select count(*)
    from servers
    where id <> :id and state in ('starting', 'running', 'draining') and (process is not null or session is not null)
      and heartbeat_at >= :now - :lost_after * heartbeat_every_for
  );
insert into servers (id, name, host, pid, version, state, handlers, task_lists, concurrency, heartbeat_every_for, started_at,
  heartbeat_at, handled, failed, running, server_group, service_name, topics, counts, error, process, namespace, release)
values (:id, :name, :host, :pid, :version, :state, :handlers, :task_lists, :concurrency, :heartbeat_every_for,
  coalesce(nullif(:started_at, 0), :now), :now, :handled, :failed, :running,
  :server_group, :service_name, :topics, :counts, :error, :process, :namespace, :release)
on conflict (id) do update
set name = excluded.name, host = excluded.host, pid = excluded.pid, version = excluded.version, state = excluded.state,
  handlers = excluded.handlers, task_lists = excluded.task_lists, concurrency = excluded.concurrency,
  heartbeat_every_for = excluded.heartbeat_every_for, heartbeat_at = excluded.heartbeat_at, handled = excluded.handled,
  failed = excluded.failed, running = excluded.running, server_group = excluded.server_group,
  service_name = excluded.service_name, topics = excluded.topics, counts = excluded.counts, error = excluded.error,
  process = excluded.process, namespace = coalesce(excluded.namespace, namespace), release = excluded.release,
  evidence = null;

-- name: list_sightings
-- List the servers that have not ended, with the time since their last heartbeat.
select id, name, process, :now - heartbeat_at, heartbeat_every_for
from servers
where state in ('starting', 'running', 'draining') and pid <> 0;

-- name: end_servers
-- Record the end of servers (id, evidence) that have not ended; return their ids.
update servers
set state = 'stopped', running = 0, session = null, evidence = r.value ->> 1
from jsonb_each(:rows) as r
where servers.id = r.value ->> 0 and servers.state in ('starting', 'running', 'draining')
returning id;

-- name: touch_servers
-- Record heartbeats of servers (id, state, handled, failed, running) that have not stopped; return their rows.
update servers
set heartbeat_at = :now,
  state = coalesce(r.value ->> 1, state),
  handled = handled + (r.value ->> 2),
  failed = failed + (r.value ->> 3),
  running = coalesce(r.value ->> 4, running)
from jsonb_each(:rows) as r
where servers.id = r.value ->> 0 and servers.state <> 'stopped'
returning *;

-- name: list_servers
-- List the servers of the namespace and those without one, or all, newest first.
select * from servers where :namespace is null or coalesce(namespace, :namespace) = :namespace order by started_at desc, id desc;

-- name: list_by_arrival
-- List the ids of all servers in the order in which they registered, whatever their clocks say.
select id from servers order by rowid;
