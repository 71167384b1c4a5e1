-- The queue: lanes, live tasks, finished tasks, the log of moves, servers and handlers' lines.

-- The clock that every lease is compared with; whole milliseconds since 1970. Stable, so that predicates keep their
-- index. Tests move it by the setting treadle.clock_offset_ms of their connections.
create function treadle_now() returns bigint language sql stable parallel safe as $$
  select (extract(epoch from statement_timestamp()) * 1000)::bigint
       + coalesce(nullif(current_setting('treadle.clock_offset_ms', true), ''), '0')::bigint
$$;

-- The seqs of moves, shared by the log and finished tasks.
create sequence treadle_seq as bigint cache 1;

-- Never removed, and known by id before a task names them: tables that do have no foreign key, as checking it would cost
-- more than the rest of an insert, and lock the one row of a busy lane.
create table lanes (
  id integer generated always as identity primary key,
  namespace text not null,
  kind text not null,
  task_list text not null,
  name text not null,
  unique (namespace, kind, task_list, name)
);

create table tasks (
  id uuid primary key,
  lane_id integer not null,
  namespace text not null,
  priority integer not null,
  due_at bigint not null,
  hold integer not null,
  state text not null check (state in ('pending', 'awaiting_external', 'awaiting_approval')),
  wake_at bigint,
  owner_id text,
  claim_version integer not null,
  claimed_at bigint,
  heartbeat_at bigint,
  attempt integer not null,
  failures integer not null,
  takeovers integer not null,
  version integer not null,
  created_at bigint not null,
  deadline_at bigint,
  timeout_for bigint,
  progress_for bigint,
  progress_at bigint,
  progress text,
  run_id uuid,
  step_id uuid,
  flow_id text,
  scope text,
  root_id uuid not null,
  trace_id text,
  limit_key text,
  unique_key text,
  policy text,
  payload text not null,
  checkpoint text,
  error text,
  check (owner_id is null or wake_at is not null)
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

create index tasks_ready on tasks (lane_id, priority, due_at, id) where owner_id is null and wake_at is null and hold = 0;
create index tasks_wake on tasks (wake_at) where wake_at is not null;
create index tasks_run on tasks (run_id) where run_id is not null;
create unique index tasks_step on tasks (step_id) where step_id is not null;
create index tasks_limit on tasks (limit_key, priority, due_at) where limit_key is not null;
create unique index tasks_unique_key on tasks (namespace, unique_key) where unique_key is not null;

create table finished (
  id uuid primary key,
  seq bigint not null,
  lane_id integer not null,
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
  created_at bigint not null,
  due_at bigint not null,
  claimed_at bigint,
  finished_at bigint not null,
  deadline_at bigint,
  timeout_for bigint,
  progress_for bigint,
  progress text,
  run_id uuid,
  step_id uuid,
  flow_id text,
  scope text,
  root_id uuid not null,
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
) with (autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.2);

create index finished_seq on finished (seq);
create index finished_failed on finished (seq) where state = 'failed';
create index finished_run on finished (run_id) where run_id is not null;

create table log (
  seq bigint primary key,
  at bigint not null,
  entity text not null,
  entity_id uuid not null,
  version integer not null,
  move text not null,
  from_state text not null,
  to_state text not null,
  actor text,
  claim_version integer,
  run_id uuid,
  root_id uuid,
  trace_id text,
  data text,
  unique (entity_id, version)
);

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
  heartbeat_every_for bigint not null,
  started_at bigint not null,
  heartbeat_at bigint not null,
  handled bigint not null,
  failed bigint not null,
  running bigint not null
);

create table lines (
  id bigint generated always as identity primary key,
  task_id uuid not null,
  at bigint not null,
  level text not null,
  message text not null,
  details text,
  run_id uuid,
  step_id uuid
);

create index lines_task on lines (task_id, id);
