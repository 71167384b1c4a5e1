-- All tables of Treadle 0.3: tasks, runs, records and their log, with what finds, limits and prunes them.

-- The seqs of transitions, shared by the log and finished tasks.
create table seqs (
  name text primary key,
  value integer not null
) strict, without rowid;

create table queues (
  id integer primary key autoincrement,
  namespace text not null,
  kind text not null,
  task_list text not null,
  name text not null,
  paused integer not null default 0,
  accepting integer not null default 1,
  rate real check (rate > 0),
  burst integer check (burst > 0),
  tokens real,
  tokens_at integer,
  backlog_limit integer check (backlog_limit > 0),
  limit_key text,
  slowed integer generated always as (paused or rate is not null) virtual,
  guarded integer generated always as (not accepting or backlog_limit is not null or limit_key is not null) virtual,
  unique (namespace, kind, task_list, name)
) strict;
create index queues_slowed on queues (id) where slowed;
create index queues_guarded on queues (id) where guarded;

create table tasks (
  id text primary key not null,
  queue_id integer not null references queues (id),
  namespace text not null,
  priority integer not null,
  due_at integer not null,
  blocked_by integer not null,
  state text not null check (state in ('pending', 'awaiting_approval')),
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
  limit_keys text,
  unique_key text,
  policy text,
  payload text not null,
  checkpoint text,
  error text,
  activity text,
  fairness_key text,
  created_by text,
  baggage text,
  check (owner_id is null or wake_at is not null)
) strict;
create index tasks_ready on tasks (queue_id, priority, due_at, id) where owner_id is null and wake_at is null and blocked_by = 0;
create index tasks_wake on tasks (wake_at) where wake_at is not null;
create index tasks_run on tasks (run_id) where run_id is not null;
create unique index tasks_step on tasks (step_id) where step_id is not null;
create unique index tasks_unique_key on tasks (namespace, unique_key) where unique_key is not null;
create index tasks_admitted on tasks (namespace, limit_key) where limit_key is not null and (blocked_by & 1) = 0;
create index tasks_over_limit on tasks (namespace, limit_key, priority, due_at, id)
  where limit_key is not null and blocked_by = 1 and owner_id is null and wake_at is null;
create index tasks_several_keys on tasks (namespace, limit_key)
  where limit_keys is not null and blocked_by = 1 and owner_id is null and wake_at is null;

-- Written so that no query is taken to mean this one by mistake, which would then sort all that waits for any key.
create index tasks_over_limit_queue on tasks (queue_id) where blocked_by - 1 = 0 and owner_id is null and wake_at is null;

-- Members of a tree other than its root.
create index tasks_root on tasks (root_id) where root_id <> id;
create index tasks_fairness on tasks (queue_id, priority, fairness_key, due_at)
  where fairness_key is not null and owner_id is null and wake_at is null;
create index tasks_fairness_heads on tasks (queue_id, priority, due_at)
  where fairness_key is not null and owner_id is null and wake_at is null and (blocked_by & ~1) = 0;
create index tasks_created on tasks (created_at, id);
create index tasks_error on tasks (created_at, id) where error is not null;
create index tasks_trace on tasks (trace_id) where root_id = id and trace_id is not null;

create table finished (
  id text primary key not null,
  seq integer not null,
  queue_id integer not null references queues (id),
  namespace text not null,
  state text not null check (state in ('completed', 'failed', 'canceled', 'ignored')),
  transition text not null,
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
  limit_keys text,
  unique_key text,
  policy text,
  payload text not null,
  checkpoint text,
  result text,
  error text,
  error_code text,
  fingerprint text,
  fairness_key text,
  created_by text,
  baggage text
) strict;
create index finished_seq on finished (seq);
create index finished_run on finished (run_id) where run_id is not null;
create index finished_root on finished (root_id) where root_id <> id;
create index finished_failed on finished (seq) where state = 'failed' and fingerprint is not '';
create index finished_failed_queue on finished (queue_id, seq, run_id, fingerprint) where state = 'failed' and fingerprint is not
  '';
create index finished_created on finished (created_at, id);
create index finished_trace on finished (trace_id) where root_id = id and trace_id is not null;
create index finished_changes on finished (seq)
  where actor not like '________-____-____-____-____________' and transition not in ('approve', 'deny');

create table log (
  seq integer primary key,
  at integer not null,
  entity text not null,
  entity_id text not null,
  version integer not null,
  transition text not null,
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
create index log_takeovers on log (run_id, seq) where transition = 'expire';
-- Changes by operators: workers act under their ids, which no token can have as its name.
create index log_changes on log (seq)
  where actor not like '________-____-____-____-____________' and transition <> 'start'
    and (entity <> 'task' or transition not in ('approve', 'deny'));

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
  running integer not null,
  server_group text not null default 'default',
  service_name text not null default '',
  topics text not null default '[]',
  counts text not null default '{}',
  error text,
  process text,
  session text,
  evidence text,
  namespace text,
  release text not null default ''
) strict;

-- Roll-ups by minute, hour and day. Each histogram is a JSON object: the number of durations by the least one of their bucket.
create table metrics (
  step_for integer not null check (step_for in (60000, 3600000, 86400000)),
  at integer not null,
  namespace text not null,
  kind text not null,
  task_list text not null,
  name text not null,
  release text not null,
  started integer not null,
  completed integer not null,
  failed integer not null,
  canceled integer not null,
  retried integer not null,
  taken_over integer not null,
  waited_for integer not null,
  depth integer not null,
  oldest_for integer not null,
  cost_micros integer not null,
  tokens integer not null,
  durations text not null,
  waits text not null,
  primary key (step_for, at, namespace, kind, task_list, name, release)
) strict, without rowid;

-- The seq up to which transitions are in the roll-ups.
create table metrics_cursor (
  id integer primary key check (id = 1),
  seq integer not null
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
create index lines_run on lines (run_id, id) where run_id is not null;

-- Settings of a list; a list without a row has the defaults.
create table lists (
  namespace text not null,
  task_list text not null,
  paused integer not null default 0,
  accepting integer not null default 1,
  no_handler text not null default 'wait' check (no_handler in ('wait', 'ignore')),
  keep_completed_for integer,
  keep_failed_for integer,
  primary key (namespace, task_list)
) strict;

-- The task that an idempotency key identifies; the key has its own lifetime and may outlive the task.
create table dedupe (
  namespace text not null,
  key text not null,
  task_id text not null,
  expires_at integer not null,
  primary key (namespace, key)
) strict;
create index dedupe_expires on dedupe (expires_at);

-- Values over 8 KiB, once each; a value lives as long as a tree that uses it.
create table blobs (
  digest text primary key not null,
  value text not null
) strict;

create table blob_uses (
  root_id text not null,
  digest text not null references blobs (digest),
  primary key (root_id, digest)
) strict;
create index blob_uses_digest on blob_uses (digest);

create table flows (
  id text primary key not null,
  namespace text not null,
  sources text not null,
  program text not null,
  created_at integer not null
) strict;

create table flow_versions (
  namespace text not null,
  name text not null,
  version integer not null,
  flow_id text not null references flows (id),
  actor text,
  published_at integer not null,
  primary key (namespace, name, version)
) strict;

create table runs (
  id text primary key not null,
  namespace text not null,
  kind text not null,
  flow_id text not null,
  workflow text not null,
  state text not null check (state in ('pending', 'running', 'completed', 'failed', 'paused', 'canceled')),
  version integer not null,
  transitions integer not null,
  steps integer not null,
  task_list text not null,
  priority integer not null,
  inputs text not null,
  outputs text,
  error text,
  failed_step_id text,
  idempotency_key text,
  parent_id text,
  root_id text not null,
  trace_id text,
  created_at integer not null,
  finished_at integer,
  parent_step_id text,
  awaiting integer not null default 0,
  deadline_at integer,
  fairness_key text,
  lineage_id text,
  link integer not null default 0,
  baggage text
) strict;
create unique index runs_idempotency_key on runs (namespace, idempotency_key) where idempotency_key is not null;
create index runs_root on runs (root_id) where root_id <> id;
create index runs_parent on runs (parent_id) where parent_step_id is not null;
create index runs_failed on runs (namespace, finished_at) where state = 'failed';
create index runs_created on runs (created_at, id);
create index runs_workflow on runs (workflow, created_at, id);
create index runs_state on runs (namespace, state, created_at, id);
create index runs_trace on runs (trace_id) where root_id = id and trace_id <> id;
create unique index runs_chain on runs (lineage_id, link) where lineage_id is not null;

create table steps (
  id text primary key not null,
  run_id text not null,
  parent_id text,
  ordinal integer not null,
  kind text not null,
  name text not null,
  facet text,
  state text not null,
  document text not null,
  inbox text,
  created_at integer not null,
  updated_at integer not null
) strict;
create index steps_run on steps (run_id, id);
create index steps_parent on steps (parent_id) where kind <> 'item';
create index steps_items on steps (parent_id) where kind = 'item';
create index steps_inbox on steps (run_id, id) where inbox is not null;

create table handler_registrations (
  namespace text not null,
  facet_name text not null,
  module_uri text not null,
  entrypoint text not null,
  version text not null,
  checksum text not null,
  timeout_for integer not null,
  requirements text not null,
  metadata text not null,
  created_at integer not null,
  updated_at integer not null,
  primary key (namespace, facet_name)
) strict;

create table llm_budgets (
  run_id text primary key not null,
  limit_micros integer check (limit_micros >= 0),
  committed_micros integer not null
) strict;

create table llm_usage (
  id text primary key not null,
  run_id text not null,
  step_id text,
  task_id text not null,
  attempt integer not null,
  request_no integer not null,
  model text not null,
  state text not null check (state in ('reserved', 'settled')),
  reserved_micros integer not null check (reserved_micros >= 0),
  cost_micros integer not null check (cost_micros >= 0),
  input_tokens integer not null,
  output_tokens integer not null,
  cache_write_tokens integer not null,
  cache_read_tokens integer not null,
  interrupted integer not null,
  at integer not null,
  unique (task_id, attempt, request_no)
) strict;
create index llm_usage_run on llm_usage (run_id);

-- Entities with a state machine that are small documents: approvals, schedules, watchers.
create table records (
  id text primary key not null,
  namespace text not null,
  entity text not null,
  name text,
  state text not null,
  version integer not null,
  transitions integer not null,
  document text not null,
  task_id text,
  run_id text,
  root_id text,
  trace_id text,
  created_at integer not null,
  updated_at integer not null,
  ended_at integer
) strict;
create unique index records_name on records (namespace, entity, name) where name is not null and ended_at is null;
create index records_live on records (namespace, entity, id) where ended_at is null;
create index records_ended on records (ended_at) where root_id is null and ended_at is not null;
create index records_state on records (namespace, entity, state, id);
create index records_task on records (task_id) where task_id is not null;
create index records_run on records (run_id) where run_id is not null;
create index records_root on records (root_id) where root_id is not null;

create table record_items (
  record_id text not null,
  key text not null,
  value text not null,
  primary key (record_id, key)
) strict, without rowid;

-- Messages that function runs have not consumed.
create table mail (
  seq integer primary key autoincrement,
  id text not null unique,
  run_id text not null,
  step_id text,
  name text,
  document text not null,
  at integer not null
) strict;
create index mail_run on mail (run_id, seq);

create table idempotency_outcomes (
  idempotency_key text primary key not null,
  tool_call_id text not null,
  status text not null check (status in ('succeeded', 'failed', 'unknown')),
  response_hash text,
  response text,
  root_id text not null,
  created_at integer not null,
  resolved_at integer,
  task_id text,
  details text,
  unknown_at integer
) strict;
create index idempotency_outcomes_root on idempotency_outcomes (root_id);
create index idempotency_outcomes_in_progress on idempotency_outcomes (task_id) where status = 'unknown' and unknown_at is null;
create index idempotency_outcomes_unknown on idempotency_outcomes (unknown_at, idempotency_key)
  where status = 'unknown' and unknown_at is not null;

-- The transitions between states that there are (treadle/model/states.py); the database refuses all others.
create table legal_transitions (
  entity text not null,
  from_state text not null,
  to_state text not null,
  primary key (entity, from_state, to_state)
) strict, without rowid;

-- How many tasks with the key may be admitted at once. Admitted are those whose over-limit bit (1) is clear. A rate that a task has
-- set gives way to that of an operator or a program.
create table limits (
  namespace text not null,
  key text not null,
  max_running integer check (max_running > 0),
  by_operator integer not null,
  rate real check (rate > 0),
  burst integer check (burst > 0),
  tokens real,
  tokens_at integer,
  rate_of_task integer not null default 0,
  primary key (namespace, key),
  check (max_running is not null or rate is not null),
  check ((rate is null) = (burst is null) and (rate is null) = (tokens is null) and (rate is null) = (tokens_at is null))
) strict;
create index limits_rated on limits (namespace, key) where rate is not null;

-- The further keys under which admitted tasks with several limit keys count. A row of a task that is not admitted does not count.
create table limit_slots (
  namespace text not null,
  key text not null,
  task_id text not null,
  primary key (namespace, key, task_id)
) strict, without rowid;
create index limit_slots_task on limit_slots (task_id);

-- The limit key that a handler's tasks get if they have none; queues copy it.
create table handler_keys (
  namespace text not null,
  name text not null,
  key text not null,
  primary key (namespace, name)
) strict;

create table tags (
  owner_id text not null,
  key text not null,
  value text not null,
  entity text not null check (entity in ('run', 'task')),
  namespace text not null,
  created_at integer not null,
  primary key (owner_id, key)
) strict, without rowid;
create index tags_value on tags (namespace, entity, key, value, created_at, owner_id);

-- The errors of ended runs and tasks. The rowid rises with the time of creation, so the index of their words is read newest first.
create table error_texts (
  number integer primary key,
  owner_id text not null unique,
  entity text not null,
  namespace text not null,
  created_at integer not null,
  words text not null
) strict;

create virtual table error_words using fts5 (words, content='error_texts', content_rowid='number', tokenize='ascii');

create table streams (
  owner_id text not null,
  name text not null,
  namespace text not null,
  root_id text not null,
  next_offset integer not null default 0,
  bytes integer not null default 0,
  truncated integer not null default 0,
  created_at integer not null,
  updated_at integer not null,
  primary key (owner_id, name)
) strict, without rowid;
create index streams_root on streams (root_id);

create table stream_chunks (
  owner_id text not null,
  name text not null,
  first_offset integer not null,
  count integer not null,
  kind text not null check (kind in ('entries', 'abandoned', 'truncated')),
  writer text not null,
  session text not null,
  start integer not null,
  generation integer not null,
  since integer not null,
  bytes integer not null,
  continues integer not null,
  entries text not null,
  created_at integer not null,
  primary key (owner_id, name, first_offset)
) strict;
create index stream_chunks_writer on stream_chunks (owner_id, name, writer, first_offset);

create table finished_counts (
  state text primary key,
  count integer not null
) strict, without rowid;

create view new_error_texts (owner_id, entity, namespace, created_at, error) as
select id, 'run', namespace, created_at, error from runs where error is not null
union all
select id, 'task', namespace, created_at, error from finished where error is not null;

-- Pruning a run deletes its usage.
create trigger llm_usage_goes_with_its_run after delete on runs begin
  delete from llm_usage where run_id = old.id;
  delete from llm_budgets where run_id = old.id;
end;

-- A task that ends or loses its limit keys gives up its slots under further ones.
create trigger slots_go_with_their_task after delete on tasks when old.limit_keys is not null begin
  delete from limit_slots where task_id = old.id;
end;

create trigger slots_go_with_their_keys after update of limit_keys on tasks when old.limit_keys is not null begin
  delete from limit_slots where task_id = old.id;
end;

create trigger items_go_with_their_record after delete on records begin
  delete from record_items where record_id = old.id;
end;

create trigger runs_make_legal_transitions before update of state on runs
when old.state <> new.state
  and not exists (select 1 from legal_transitions where entity = 'run' and from_state = old.state and to_state = new.state)
begin
  select raise(abort, 'a run cannot make that transition');
end;

create trigger records_make_legal_transitions before update of state on records
when old.state <> new.state
  and not exists (select 1 from legal_transitions where entity = new.entity and from_state = old.state and to_state = new.state)
begin
  select raise(abort, 'a record cannot make that transition');
end;

-- Pruning a run deletes its messages.
create trigger mail_goes_with_its_run after delete on runs begin
  delete from mail where run_id = old.id;
end;

-- Entities without a transition never change.
create trigger records_written_once before update on records
when old.entity in ('context_snapshot', 'output_bundle', 'run_record', 'pause_state')
begin
  select raise(abort, 'such a record is written once');
end;

create trigger error_texts_add_words after insert on error_texts begin
  insert into error_words (rowid, words) values (new.number, new.words);
end;

create trigger error_texts_drop_words after delete on error_texts begin
  insert into error_words (error_words, rowid, words) values ('delete', old.number, old.words);
end;

create trigger new_error_texts_are_kept instead of insert on new_error_texts begin
  delete from error_texts where owner_id = new.owner_id;
  insert into error_texts (number, owner_id, entity, namespace, created_at, words)
  select
    coalesce(
      (select max(number) + 1 from error_texts where number >= new.created_at << 20 and number < (new.created_at + 1) << 20),
      new.created_at << 20),
    new.owner_id, new.entity, new.namespace, new.created_at,
    substr(coalesce(new.error ->> '$.code', '') || ' ' || coalesce(new.error ->> '$.message', ''), 1, 2000)
  where json_valid(new.error) and json_type(new.error) = 'object';
end;

create trigger runs_keep_error_texts after update of error on runs when new.error is not null and new.error is not old.error begin
  insert into new_error_texts (owner_id, entity, namespace, created_at, error)
  values (new.id, 'run', new.namespace, new.created_at, new.error);
end;

create trigger runs_drop_error_texts after update of error on runs when new.error is null and old.error is not null begin
  delete from error_texts where owner_id = new.id;
end;

create trigger runs_drop_search after delete on runs begin
  delete from error_texts where owner_id = old.id;
  delete from tags where owner_id = old.id;
end;

create trigger finished_keep_error_texts after insert on finished when new.error is not null begin
  insert into new_error_texts (owner_id, entity, namespace, created_at, error)
  values (new.id, 'task', new.namespace, new.created_at, new.error);
end;

create trigger finished_drop_error_texts after delete on finished when old.error is not null begin
  delete from error_texts where owner_id = old.id;
end;

create trigger finished_count_in after insert on finished begin
  update finished_counts set count = count + 1 where state = new.state;
end;

create trigger finished_count_out after delete on finished begin
  update finished_counts set count = count - 1 where state = old.state;
end;

create trigger finished_count_on after update of state on finished when old.state <> new.state begin
  update finished_counts set count = count - 1 where state = old.state;
  update finished_counts set count = count + 1 where state = new.state;
end;

insert into seqs (name, value) values ('transition', 0);

insert into finished_counts (state, count) values ('completed', 0), ('failed', 0), ('canceled', 0), ('ignored', 0);

insert into legal_transitions (entity, from_state, to_state) values
  ('run', 'pending', 'running'), ('run', 'pending', 'canceled'), ('run', 'running', 'completed'), ('run', 'running', 'failed'),
  ('run', 'running', 'paused'), ('run', 'running', 'canceled'), ('run', 'paused', 'running'), ('run', 'paused', 'canceled'),
  ('run', 'failed', 'running'), ('run', 'canceled', 'running'),
  ('approval', 'pending', 'approved'), ('approval', 'pending', 'denied'), ('approval', 'pending', 'expired'),
  ('approval', 'pending', 'canceled'),
  ('schedule', 'active', 'paused'), ('schedule', 'paused', 'active'), ('schedule', 'active', 'removed'),
  ('schedule', 'paused', 'removed'), ('schedule', 'active', 'finished'),
  ('watcher', 'active', 'paused'), ('watcher', 'paused', 'active'), ('watcher', 'active', 'removed'),
  ('watcher', 'paused', 'removed'),
  ('objective', 'NEW', 'TODO'), ('objective', 'TODO', 'IN_PROGRESS'), ('objective', 'TODO', 'BLOCKED'),
  ('objective', 'IN_PROGRESS', 'DONE'), ('objective', 'IN_PROGRESS', 'TODO'), ('objective', 'IN_PROGRESS', 'BLOCKED'),
  ('objective', 'BLOCKED', 'TODO'),
  ('readiness_event', 'unprocessed', 'processed'),
  ('workorder', 'CREATED', 'EXECUTED'),
  ('token', 'new', 'active'), ('token', 'active', 'revoked'), ('token', 'active', 'expired'),
  ('session', 'new', 'open'), ('session', 'open', 'closed'), ('session', 'open', 'expired'),
  ('alert_rule', 'active', 'removed'), ('alert', 'firing', 'resolved'),
  ('thread', 'kept', 'removed');
