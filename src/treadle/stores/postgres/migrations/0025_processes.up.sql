-- How other servers see that a server is dead: its process, its session with the database, and the evidence of its end.
-- Versions up to 0.2 accept no further columns of `servers`, so it becomes a view of the columns that they know.

alter table servers rename to registered_servers;
alter table registered_servers add column process text;
alter table registered_servers add column session text;
alter table registered_servers add column evidence text;

create view servers as
select id, name, host, pid, version, state, handlers, task_lists, concurrency, heartbeat_every_for, started_at, heartbeat_at, handled,
  failed, running, server_group, service_name, topics, counts, error
from registered_servers;
