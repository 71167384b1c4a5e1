-- name: beat
-- Insert or update the server; `heartbeat_at` becomes now, `started_at` keeps its first value.
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
-- Record heartbeats of servers ($1 ids, $2 states, $3 handled, $4 failed, $5 running) that have not stopped; return their
-- rows.
update servers
set heartbeat_at = (select treadle_now()),
    state = coalesce(given.state, servers.state),
    handled = servers.handled + given.handled,
    failed = servers.failed + given.failed,
    running = coalesce(given.running, servers.running)
from unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::integer[]) as given (id, state, handled, failed, running)
where servers.id = given.id and servers.state <> 'stopped'
returning servers.*;

-- name: list_servers
-- List all servers, newest first.
select * from servers order by started_at desc, id desc;
