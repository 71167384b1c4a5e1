-- The queue: lanes, live tasks, finished tasks, the log of moves, servers and handlers' lines.

-- The seqs of moves, shared by the log and finished tasks.
create table seqs (
  name text primary key,
  value integer not null
) strict, without rowid;

insert into seqs (name, value) values ('move', 0);

create table lanes (
  id integer primary key autoincrement,
  namespace text not null,
  kind text not null,
  task_list text not null,
  name text not null,
  unique (namespace, kind, task_list, name)
) strict;

create table tasks (
  id text primary key not null,
  lane_id integer not null references lanes (id),
  namespace text not null,
  priority integer not null,
  due_at integer not null,
  hold integer not null,
  state text not null check (state in ('pending', 'awaiting_external', 'awaiting_approval')),
  wake_at integer,
  owner_id text,
  claim_version integer not null,
  claimed_at integer,
  heartbeat_at integer,
  attempt integer not null,
  failures integer not null,
  takeovers integer not null,
  version integer not null,
  created_at integer not null,
  deadline_at integer,
  timeout_for integer,
  progress_for integer,
  progress_at integer,
  progress text,
  run_id text,
  step_id text,
  flow_id text,
  scope text,
  root_id text not null,
  trace_id text,
  limit_key text,
  unique_key text,
  policy text,
  payload text not null,
  checkpoint text,
  error text,
  check (owner_id is null or wake_at is not null)
) strict;

create index tasks_ready on tasks (lane_id, priority, due_at, id) where owner_id is null and wake_at is null and hold = 0;
create index tasks_wake on tasks (wake_at) where wake_at is not null;
create index tasks_run on tasks (run_id) where run_id is not null;
create unique index tasks_step on tasks (step_id) where step_id is not null;
create index tasks_limit on tasks (limit_key, priority, due_at) where limit_key is not null;
create unique index tasks_unique_key on tasks (namespace, unique_key) where unique_key is not null;

create table finished (
  id text primary key not null,
  seq integer not null,
  lane_id integer not null references lanes (id),
  namespace text not null,
  state text not null check (state in ('completed', 'failed', 'canceled', 'ignored')),
  move text not null,
  from_state text not null,
  actor text,
  owner_id text,
  claim_version integer not null,
  version integer not null,
  attempt integer not null,
  failures integer not null,
  takeovers integer not null,
  priority integer not null,
  created_at integer not null,
  due_at integer not null,
  claimed_at integer,
  finished_at integer not null,
  deadline_at integer,
  timeout_for integer,
  progress_for integer,
  progress text,
  run_id text,
  step_id text,
  flow_id text,
  scope text,
  root_id text not null,
  trace_id text,
  limit_key text,
  unique_key text,
  policy text,
  payload text not null,
  checkpoint text,
  result text,
  error text,
  error_code text,
  fingerprint text
) strict;

create index finished_seq on finished (seq);
create index finished_failed on finished (seq) where state = 'failed';
create index finished_run on finished (run_id) where run_id is not null;

create table log (
  seq integer primary key,
  at integer not null,
  entity text not null,
  entity_id text not null,
  version integer not null,
  move text not null,
  from_state text not null,
  to_state text not null,
  actor text,
  claim_version integer,
  run_id text,
  root_id text,
  trace_id text,
  data text,
  unique (entity_id, version)
) strict;

create table servers (
  id text primary key,
  name text not null,
  host text not null,
  pid integer not null,
  version text not null,
  state text not null check (state in ('starting', 'running', 'draining', 'stopped', 'error')),
  handlers text not null,
  task_lists text not null,
  concurrency integer not null,
  heartbeat_every_for integer not null,
  started_at integer not null,
  heartbeat_at integer not null,
  handled integer not null,
  failed integer not null,
  running integer not null
) strict;

create table lines (
  id integer primary key autoincrement,
  task_id text not null,
  at integer not null,
  level text not null,
  message text not null,
  details text,
  run_id text,
  step_id text
) strict;

create index lines_task on lines (task_id, id);
