-- All tables of Treadle 0.3: tasks, runs, records and their log, with what finds, limits and prunes them; and `treadle_enqueue_v1`.

-- The clock that every lease is compared with; whole milliseconds since 1970. Stable, so that predicates keep their
-- index. Tests move it by the setting treadle.clock_offset_ms of their connections.
create function treadle_now() returns bigint language sql stable parallel safe as $$
  select (extract(epoch from statement_timestamp()) * 1000)::bigint
       + coalesce(nullif(current_setting('treadle.clock_offset_ms', true), ''), '0')::bigint
$$;

-- The seqs of transitions, shared by the log and finished tasks.
create sequence treadle_seq as bigint cache 1;

-- The words of an error (JSON): of its code, and of the beginning of its message. Any other text has none.
create function treadle_words(error text) returns tsvector language plpgsql immutable cost 100 as $$
declare
  found jsonb;
begin
  if left(error, 1) <> '{' then
    return ''::tsvector;
  end if;
  found := error::jsonb;
  return array_to_tsvector(array(
    select distinct left(word, 64)
    from regexp_split_to_table(
      translate(left(coalesce(found ->> 'code', '') || ' ' || coalesce(found ->> 'message', ''), 2000),
        'ABCDEFGHIJKLMNOPQRSTUVWXYZ', 'abcdefghijklmnopqrstuvwxyz'),
      '[\x01-\x2f\x3a-\x40\x5b-\x60\x7b-\x7f]+') as word
    where word <> ''
  ));
exception when others then
  return ''::tsvector;
end
$$;

-- Never removed, and known by id before a task names them: tables that do have no foreign key, as checking it would cost
-- more than the rest of an insert, and lock the one row of a busy queue.
create table queues (
  id integer generated always as identity primary key,
  namespace text not null,
  kind text not null,
  task_list text not null,
  name text not null,
  paused boolean not null default false,
  accepting boolean not null default true,
  rate double precision check (rate > 0),
  burst integer check (burst > 0),
  tokens double precision,
  tokens_at bigint,
  backlog_limit integer check (backlog_limit > 0),
  limit_key text,
  slowed boolean generated always as (paused or rate is not null) stored,
  guarded boolean generated always as (not accepting or backlog_limit is not null or limit_key is not null) stored,
  unique (namespace, kind, task_list, name)
);
create index queues_slowed on queues (id) where slowed;
create index queues_guarded on queues (id) where guarded;

create table tasks (
  id uuid primary key,
  queue_id integer not null,
  namespace text not null,
  priority integer not null,
  due_at bigint not null,
  blocked_by integer not null,
  state text not null check (state in ('pending', 'awaiting_approval')),
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
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
        autovacuum_analyze_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
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

-- The indexes of live tasks come after the large ones, because each locks out claims and renewals until the transaction ends.
create index tasks_created on tasks (created_at, id);
create index tasks_error on tasks (created_at, id) where error is not null;

-- Last, because it locks out claims and renewals until the transaction ends.
create index tasks_trace on tasks (trace_id) where root_id = id and trace_id is not null;

-- The first partition of finished tasks: whatever has no other one. Rows are inserted and, at most once, deleted: no room for
-- updates is needed on a page. Vacuum after 5 % of inserts marks pages as visible to all, for counts from an index alone, and
-- freezes them while they are in memory. Statistics give the counts by state.
create table finished_rest (
  id uuid constraint finished_pkey primary key,
  seq bigint not null,
  queue_id integer not null,
  namespace text not null,
  state text not null constraint finished_state_check check (state in ('completed', 'failed', 'canceled', 'ignored')),
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
) with (autovacuum_vacuum_insert_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_cost_delay = 0);
create index finished_rest_seq on finished_rest (seq);
create index finished_rest_failed on finished_rest (seq) include (queue_id, run_id) where state = 'failed' and fingerprint is
  distinct from '';
create index finished_rest_run on finished_rest (run_id) where run_id is not null;
create index finished_rest_root on finished_rest (root_id) where root_id <> id;
create index finished_rest_created on finished_rest (created_at, id);
create index finished_rest_error on finished_rest (namespace, created_at, id) where error is not null;
create index finished_rest_words on finished_rest using gin (treadle_words(error)) where error is not null;
create index finished_rest_trace on finished_rest (trace_id) where root_id = id and trace_id is not null;
create index finished_rest_changes on finished_rest (seq)
  where actor not like '________-____-____-____-____________' and transition not in ('approve', 'deny');

-- Partitioned by the time in the ids, so that retention drops tables instead of deleting rows. The pruning task bounds the first
-- partition later, beside running workers, and adds partitions for new ids. Ids are UUIDv7, and derived ids have the time of their
-- run, so a tree is in one partition, or in few. Whatever has no partition of its own goes to a default partition.
create table finished (like finished_rest including defaults including constraints including storage) partition by range (id);
alter table finished add constraint finished_key primary key (id);
create index finished_seq on finished (seq);
create index finished_failed on finished (seq) include (queue_id, run_id) where state = 'failed' and fingerprint is distinct from
  '';
create index finished_run on finished (run_id) where run_id is not null;
create index finished_root on finished (root_id) where root_id <> id;
create index finished_created on finished (created_at, id);
create index finished_error on finished (namespace, created_at, id) where error is not null;
create index finished_words on finished using gin (treadle_words(error)) where error is not null;
create index finished_trace on finished (trace_id) where root_id = id and trace_id is not null;
create index finished_changes on finished (seq)
  where actor not like '________-____-____-____-____________' and transition not in ('approve', 'deny');
alter table finished attach partition finished_rest for values from (minvalue) to (maxvalue);

-- The first partition of the log. A seq is unique in each partition, and comes from one sequence; an index of the parent would have
-- to include the entity.
create table log_rest (
  seq bigint constraint log_pkey primary key,
  at bigint not null,
  entity text not null,
  entity_id uuid not null,
  version integer not null,
  transition text not null,
  from_state text not null,
  to_state text not null,
  actor text,
  claim_version integer,
  run_id uuid,
  root_id uuid,
  trace_id text,
  data text,
  unique (entity_id, version)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05);
create index log_rest_takeovers on log_rest (run_id, seq) where transition = 'expire';
-- Changes by operators: workers act under their ids, which no token can have as its name.
create index log_rest_changes on log_rest (seq)
  where actor not like '________-____-____-____-____________' and transition <> 'start'
    and (entity <> 'task' or transition not in ('approve', 'deny'));

create table log (like log_rest including defaults including constraints including storage) partition by range (entity_id);
alter table log add constraint log_entity_id_version_key unique (entity_id, version);
create index log_takeovers on log (run_id, seq) where transition = 'expire';
create index log_changes on log (seq)
  where actor not like '________-____-____-____-____________' and transition <> 'start'
    and (entity <> 'task' or transition not in ('approve', 'deny'));
alter table log attach partition log_rest for values from (minvalue) to (maxvalue);

create table registered_servers (
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
  running bigint not null,
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
);

-- The columns of servers that versions up to 0.2 know.
create view servers as
select id, name, host, pid, version, state, handlers, task_lists, concurrency, heartbeat_every_for, started_at, heartbeat_at,
  handled,
  failed, running, server_group, service_name, topics, counts, error
from registered_servers;

-- Roll-ups by minute, hour and day. Each histogram is a JSON object: the number of durations by the least one of their bucket.
create table metrics (
  step_for bigint not null check (step_for in (60000, 3600000, 86400000)),
  at bigint not null,
  namespace text not null,
  kind text not null,
  task_list text not null,
  name text not null,
  release text not null,
  started bigint not null,
  completed bigint not null,
  failed bigint not null,
  canceled bigint not null,
  retried bigint not null,
  taken_over bigint not null,
  waited_for bigint not null,
  depth bigint not null,
  oldest_for bigint not null,
  cost_micros bigint not null,
  tokens bigint not null,
  durations text not null,
  waits text not null,
  primary key (step_for, at, namespace, kind, task_list, name, release)
);

-- The seq up to which transitions are in the roll-ups.
create table metrics_cursor (
  id integer primary key check (id = 1),
  seq bigint not null
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
create index lines_run on lines (run_id, id) where run_id is not null;
alter table lines set (autovacuum_vacuum_scale_factor = 0.05);

-- Settings of a list; a list without a row has the defaults.
create table lists (
  namespace text not null,
  task_list text not null,
  paused boolean not null default false,
  accepting boolean not null default true,
  no_handler text not null default 'wait' check (no_handler in ('wait', 'ignore')),
  keep_completed_for bigint,
  keep_failed_for bigint,
  primary key (namespace, task_list)
);

-- How many tasks with the key may be admitted at once, and how fast they start. Admitted are those whose over-limit bit (1) is
-- clear. A rate that a task has set gives way to that of an operator or a program.
create table limits (
  namespace text not null,
  key text not null,
  max_running integer check (max_running > 0),
  by_operator boolean not null,
  rate double precision check (rate > 0),
  burst integer check (burst > 0),
  tokens double precision,
  tokens_at bigint,
  rate_of_task boolean not null default false,
  primary key (namespace, key),
  check (max_running is not null or rate is not null),
  check ((rate is null) = (burst is null) and (rate is null) = (tokens is null) and (rate is null) = (tokens_at is null))
);
create index limits_rated on limits (namespace, key) where rate is not null;

-- The further keys under which admitted tasks with several limit keys count. A row of a task that is not admitted does not count.
create table limit_slots (
  namespace text not null,
  key text not null,
  task_id uuid not null,
  primary key (namespace, key, task_id)
);
create index limit_slots_task on limit_slots (task_id);

-- The task that an idempotency key identifies; the key has its own lifetime and may outlive the task.
create table dedupe (
  namespace text not null,
  key text not null,
  task_id uuid not null,
  expires_at bigint not null,
  primary key (namespace, key)
);
create index dedupe_expires on dedupe (expires_at);

-- Small next to their churn: dead rows and index entries must be reclaimed before they outgrow the live ones.
alter table dedupe set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay =
  0);

-- Values over 8 KiB, once each; a value lives as long as a tree that uses it.
create table blobs (
  digest text primary key,
  value text not null
);

create table blob_uses (
  root_id uuid not null,
  digest text not null references blobs (digest),
  primary key (root_id, digest)
);
create index blob_uses_digest on blob_uses (digest);

create table flows (
  id text primary key,
  namespace text not null,
  sources text not null,
  program text not null,
  created_at bigint not null
);

create table flow_versions (
  namespace text not null,
  name text not null,
  version integer not null,
  flow_id text not null references flows (id),
  actor text,
  published_at bigint not null,
  primary key (namespace, name, version)
);

create table runs (
  id uuid primary key,
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
  failed_step_id uuid,
  idempotency_key text,
  parent_id uuid,
  root_id uuid not null,
  trace_id text,
  created_at bigint not null,
  finished_at bigint,
  parent_step_id uuid,
  awaiting integer not null default 0,
  deadline_at bigint,
  fairness_key text,
  lineage_id uuid,
  link integer not null default 0,
  baggage text
) with (fillfactor = 80);
create unique index runs_idempotency_key on runs (namespace, idempotency_key) where idempotency_key is not null;
create index runs_created on runs (created_at, id);
create index runs_state on runs (namespace, state, created_at, id);
create index runs_root on runs (root_id) where root_id <> id;
create index runs_parent on runs (parent_id) where parent_step_id is not null;
create index runs_failed on runs (namespace, finished_at) where state = 'failed';
create index runs_workflow on runs (workflow collate "C", created_at, id);
create index runs_error on runs (namespace, created_at, id) where error is not null;
create index runs_words on runs using gin (treadle_words(error)) where error is not null;
create index runs_trace on runs (trace_id) where root_id = id and trace_id <> id::text;
create unique index runs_chain on runs (lineage_id, link) where lineage_id is not null;
alter table runs set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table steps (
  id uuid primary key,
  run_id uuid not null,
  parent_id uuid,
  ordinal integer not null,
  kind text not null,
  name text not null,
  facet text,
  state text not null,
  document text not null,
  inbox text,
  created_at bigint not null,
  updated_at bigint not null
) with (fillfactor = 80);
create index steps_run on steps (run_id, id);
create index steps_parent on steps (parent_id) where kind <> 'item';
create index steps_items on steps (parent_id) where kind = 'item';
create index steps_inbox on steps (run_id, id) where inbox is not null;
alter table steps set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table handler_registrations (
  namespace text not null,
  facet_name text not null,
  module_uri text not null,
  entrypoint text not null,
  version text not null,
  checksum text not null,
  timeout_for bigint not null,
  requirements text not null,
  metadata text not null,
  created_at bigint not null,
  updated_at bigint not null,
  primary key (namespace, facet_name)
);

create table llm_budgets (
  run_id uuid primary key not null,
  limit_micros bigint check (limit_micros >= 0),
  committed_micros bigint not null
);

create table llm_usage (
  id uuid primary key not null,
  run_id uuid not null,
  step_id uuid,
  task_id uuid not null,
  attempt integer not null,
  request_no integer not null,
  model text not null,
  state text not null check (state in ('reserved', 'settled')),
  reserved_micros bigint not null check (reserved_micros >= 0),
  cost_micros bigint not null check (cost_micros >= 0),
  input_tokens bigint not null,
  output_tokens bigint not null,
  cache_write_tokens bigint not null,
  cache_read_tokens bigint not null,
  interrupted integer not null,
  at bigint not null,
  unique (task_id, attempt, request_no)
);
create index llm_usage_run on llm_usage (run_id);

-- Entities with a state machine that are small documents: approvals, schedules, watchers.
create table records (
  id uuid primary key,
  namespace text not null,
  entity text not null,
  name text,
  state text not null,
  version integer not null,
  transitions integer not null,
  document text not null,
  task_id uuid,
  run_id uuid,
  root_id uuid,
  trace_id text,
  created_at bigint not null,
  updated_at bigint not null,
  ended_at bigint
) with (fillfactor = 80);
create unique index records_name on records (namespace, entity, name) where name is not null and ended_at is null;
create index records_live on records (namespace, entity, id) where ended_at is null;
create index records_ended on records (ended_at) where root_id is null and ended_at is not null;
create index records_state on records (namespace, entity, state, id);
create index records_task on records (task_id) where task_id is not null;
create index records_run on records (run_id) where run_id is not null;
create index records_root on records (root_id) where root_id is not null;

create table record_items (
  record_id uuid not null references records (id) on delete cascade,
  key text collate "C" not null,
  value text not null,
  primary key (record_id, key)
);

-- Messages that function runs have not consumed.
create table mail (
  id uuid primary key,
  seq bigint generated always as identity,
  run_id uuid not null,
  step_id uuid,
  name text,
  document text not null,
  at bigint not null
);
create index mail_run on mail (run_id, seq);

create table idempotency_outcomes (
  idempotency_key text primary key,
  tool_call_id text not null,
  status text not null check (status in ('succeeded', 'failed', 'unknown')),
  response_hash text,
  response text,
  root_id uuid not null,
  created_at bigint not null,
  resolved_at bigint,
  task_id uuid,
  details text,
  unknown_at bigint
);
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
);

-- The limit key that a handler's tasks get if they have none; queues copy it.
create table handler_keys (
  namespace text not null,
  name text not null,
  key text not null,
  primary key (namespace, name)
);

create table tags (
  owner_id uuid not null,
  key text not null,
  value text collate "C" not null,
  entity text not null check (entity in ('run', 'task')),
  namespace text not null,
  created_at bigint not null,
  primary key (owner_id, key)
);
create index tags_value on tags (namespace, entity, key, value, created_at, owner_id);

create table streams (
  owner_id uuid not null,
  name text collate "C" not null,
  namespace text not null,
  root_id uuid not null,
  next_offset bigint not null default 0,
  bytes bigint not null default 0,
  truncated boolean not null default false,
  created_at bigint not null,
  updated_at bigint not null,
  primary key (owner_id, name)
) with (fillfactor = 80);
create index streams_root on streams (root_id);

create table stream_chunks (
  owner_id uuid not null,
  name text collate "C" not null,
  first_offset bigint not null,
  count integer not null,
  kind text not null check (kind in ('entries', 'abandoned', 'truncated')),
  writer text not null,
  session text not null,
  start bigint not null,
  generation integer not null,
  since bigint not null,
  bytes bigint not null,
  continues boolean not null,
  entries text not null,
  created_at bigint not null,
  primary key (owner_id, name, first_offset)
);
create index stream_chunks_writer on stream_chunks (owner_id, name, writer, first_offset);

-- A new UUIDv7.
create function treadle_new_id() returns uuid language sql volatile as $$
  select encode(set_byte(bytes, 6, get_byte(bytes, 6) & 15 | 112), 'hex')::uuid
  from (
    select overlay(uuid_send(gen_random_uuid())
      placing substring(int8send((extract(epoch from clock_timestamp()) * 1000)::bigint) from 3) from 1 for 6) as bytes
  ) as made
$$;

-- Enqueue a task inside the caller's own transaction, from any driver; answers the id of the task that now stands for it.
-- Keys: name (required), payload (an object) or encoded (text after a codec), namespace, task_list, priority, delay_for,
-- unique_key, idempotency_key, idempotency_for, limit_key, policy, timeout_for, progress_for, deadline_for, trace_id, root_id, id.
-- Durations are in milliseconds. Raises 22023 for what cannot be used, TR001 for a list that drains, TR002 for a full queue.
create function treadle_enqueue_v1(spec json) returns uuid language plpgsql volatile set search_path from current as $$
declare
  now_at constant bigint := treadle_now();
  new_id constant uuid := coalesce((spec ->> 'id')::uuid, treadle_new_id());
  namespace_ constant text := coalesce(spec ->> 'namespace', 'default');
  task_list_ constant text := coalesce(spec ->> 'task_list', 'default');
  name_ constant text := spec ->> 'name';
  payload_ constant text := coalesce(spec ->> 'encoded', (spec -> 'payload')::text, '{}');
  delay_for constant bigint := coalesce((spec ->> 'delay_for')::bigint, 0);
  unique_ constant text := spec ->> 'unique_key';
  once constant text := spec ->> 'idempotency_key';
  compare constant boolean := coalesce((spec ->> 'compare')::boolean, true);
  notify constant boolean := coalesce((spec ->> 'notify')::boolean, false);
  queue record;
  key text := spec ->> 'limit_key';
  found_id uuid;
  problem text;
begin
  problem := coalesce((
    select 'the key ' || quote_literal(given) || ' is not known'
    from json_object_keys(spec) as given
    where given not in ('id', 'name', 'payload', 'encoded', 'namespace', 'task_list', 'priority', 'delay_for', 'unique_key',
      'idempotency_key', 'idempotency_for', 'limit_key', 'policy', 'timeout_for', 'progress_for', 'deadline_for', 'trace_id',
      'root_id', 'compare', 'notify', 'created_by')
    limit 1
  ), (
    select what || ' ' || quote_nullable(given) || ' is not a valid name'
    from (values ('name', name_), ('namespace', namespace_), ('task_list', task_list_)) as names (what, given)
    where given is null or length(given) > 200 or given !~ '^[A-Za-z_][A-Za-z0-9_]*([.:/-][A-Za-z0-9_]+)*$'
    limit 1
  ), (
    select what || ' must be 1 to 512 characters, none of them a control character'
    from (values ('unique_key', unique_), ('idempotency_key', once), ('limit_key', key), ('trace_id', spec ->> 'trace_id'),
      ('created_by', spec ->> 'created_by')) as keys (what, given)
    where length(given) not between 1 and 512 or given ~ '[\x01-\x1f\x7f]'
    limit 1
  ), (
    select what || ' must be a duration in milliseconds, ' || smallest || ' or more'
    from (values ('delay_for', delay_for, 0), ('timeout_for', (spec ->> 'timeout_for')::bigint, 1),
      ('progress_for', (spec ->> 'progress_for')::bigint, 1), ('deadline_for', (spec ->> 'deadline_for')::bigint, 1),
      ('idempotency_for', (spec ->> 'idempotency_for')::bigint, 1)) as durations (what, given, smallest)
    where given < smallest or given > 100000000000000
    limit 1
  ), (
    select 'the policy has the unknown key ' || quote_literal(given)
    from json_object_keys(coalesce(nullif((spec -> 'policy')::text, 'null')::json, '{}')) as given
    where given is null -- a policy is any object: a newer version may have added fields
    limit 1
  ));
  if problem is null and spec ->> 'encoded' is null and json_typeof(coalesce(spec -> 'payload', '{}')) <> 'object' then
    problem := 'the payload must be an object';
  end if;
  if problem is null and coalesce((spec ->> 'priority')::integer, 0) not between -1000000 and 1000000 then
    problem := 'priority must be from -1000000 to 1000000';
  end if;
  if problem is not null then
    raise exception 'treadle_enqueue_v1: %', problem using errcode = '22023';
  end if;
  perform spec::jsonb; -- refuses U+0000 and half surrogate pairs, which no store keeps

  if once is not null then
    insert into dedupe as d (namespace, key, task_id, expires_at)
    values (namespace_, once, new_id, now_at + coalesce((spec ->> 'idempotency_for')::bigint, 604800000))
    on conflict on constraint dedupe_pkey do update
    set task_id = excluded.task_id, expires_at = excluded.expires_at
    where d.expires_at <= now_at
    returning d.task_id into found_id;
    if found_id is null then
      select d.task_id into found_id from dedupe as d where d.namespace = namespace_ and d.key = once;
      if found_id is null then
        raise exception 'treadle_enqueue_v1: the idempotency key % changed hands meanwhile; try again', once using errcode =
          '40001';
      end if;
      if compare and not treadle_repeats_v1(found_id, task_list_, name_, unique_, payload_) then
        raise exception 'treadle_enqueue_v1: the idempotency key % was used for a different request, whose task is %', once,
          found_id
          using errcode = 'TR003';
      end if;
      return found_id;
    end if;
  end if;

  select l.* into queue
  from queues as l
  where l.namespace = namespace_ and l.kind = 'handler' and l.task_list = task_list_ and l.name = name_;
  if queue.id is null then
    lock table lists in share row exclusive mode;
    insert into queues (namespace, kind, task_list, name, paused, accepting, limit_key)
    select namespace_, 'handler', task_list_, name_, coalesce(said.paused, false), coalesce(said.accepting, true), m.key
    from (select) as one
    left join lists as said on said.namespace = namespace_ and said.task_list = task_list_
    left join limits as m on m.namespace = namespace_ and m.key = 'handler:' || name_ and m.by_operator
    on conflict do nothing;
    select l.* into strict queue
    from queues as l
    where l.namespace = namespace_ and l.kind = 'handler' and l.task_list = task_list_ and l.name = name_;
  end if;
  if not queue.accepting then
    raise exception 'treadle_enqueue_v1: the task list % takes no new work', task_list_ using errcode = 'TR001';
  end if;
  if queue.backlog_limit is not null and delay_for = 0 then
    perform from queues as l where l.id = queue.id for no key update;
    if (
      select count(*)
      from (
        select from tasks as t
        where t.queue_id = queue.id and t.owner_id is null and t.wake_at is null and t.blocked_by in (0, 1)
        limit queue.backlog_limit
      ) as waiting
    ) >= queue.backlog_limit then
      raise exception 'treadle_enqueue_v1: % tasks of % wait already, which is the cap', queue.backlog_limit, name_
        using errcode = 'TR002';
    end if;
  end if;
  key := coalesce(key, queue.limit_key);

  for attempt in 1 .. 5 loop
    -- With a limit key it waits to be admitted, which workers do for it within a second.
    insert into tasks (id, queue_id, namespace, priority, due_at, blocked_by, state, wake_at, claim_version, attempt, failures, takeovers,
      version, created_at, deadline_at, timeout_for, progress_for, root_id, trace_id, limit_key, unique_key, policy, payload,
      created_by)
    select new_id, queue.id, namespace_, coalesce((spec ->> 'priority')::integer, 0), now_at + delay_for,
      (key is not null)::integer, 'pending', case when delay_for > 0 then now_at + delay_for end, 0, 1, 0, 0,
      0, now_at, now_at + (spec ->> 'deadline_for')::bigint, (spec ->> 'timeout_for')::bigint, (spec ->> 'progress_for')::bigint,
      coalesce((spec ->> 'root_id')::uuid, new_id), spec ->> 'trace_id', key, unique_, nullif((spec -> 'policy')::text, 'null'),
        payload_,
      coalesce(spec ->> 'created_by', 'sql:' || session_user)
    where not exists (select from finished as f where f.id = new_id) and not exists (select from tasks as t where t.id = new_id)
    on conflict do nothing
    returning id into found_id;
    if not found then
      select t.id into found_id from tasks as t where t.id = new_id;
      if not found then
        select f.id into found_id from finished as f where f.id = new_id;
      end if;
      if not found then
        select t.id into found_id from tasks as t where t.namespace = namespace_ and t.unique_key = unique_;
        if found and once is not null then
          update dedupe as d set task_id = found_id where d.namespace = namespace_ and d.key = once;
        end if;
      end if;
    end if;
    if found_id is not null then
      if notify and found_id = new_id and delay_for = 0 then
        perform pg_notify('treadle_' || current_schema(), queue.id::text);
      end if;
      return found_id;
    end if;
  end loop;
  raise exception 'treadle_enqueue_v1: the unique key % changed hands meanwhile; try again', unique_ using errcode = '40001';
end
$$;

-- Pruning a run deletes its usage.
create function treadle_forget_usage() returns trigger language plpgsql as $$
begin
  delete from llm_usage where run_id = old.id;
  delete from llm_budgets where run_id = old.id;
  return null;
end
$$;

create function treadle_refuse_transition() returns trigger language plpgsql as $$
declare
  entity_name text := case when tg_table_name = 'runs' then 'run' else to_jsonb(new) ->> 'entity' end;
begin
  if not exists (select from legal_transitions where entity = entity_name and from_state = old.state and to_state = new.state) then
    raise exception 'a % cannot go from % to %', entity_name, old.state, new.state using errcode = 'check_violation';
  end if;
  return new;
end
$$;

-- Pruning a run deletes its messages.
create function treadle_forget_mail() returns trigger language plpgsql as $$
begin
  delete from mail where run_id = old.id;
  return null;
end
$$;

-- A task that ends or loses its limit keys gives up its slots under further ones.
create function treadle_forget_slots() returns trigger language plpgsql as $$
begin
  delete from limit_slots where task_id = old.id;
  return null;
end
$$;

-- Entities without a transition never change.
create function treadle_written_once() returns trigger language plpgsql as $$
begin
  raise exception 'a % is written once', old.entity using errcode = 'check_violation';
end
$$;

create function treadle_repeats_v1(stored_id uuid, task_list_ text, name_ text, unique_ text, payload_ text) returns boolean
language plpgsql stable set search_path from current as $$
declare
  stored record;
begin
  select queues.kind, queues.task_list, queues.name, found.unique_key, found.payload into stored
  from (
    select tasks.queue_id, tasks.unique_key, tasks.payload from tasks where tasks.id = stored_id
    union all
    select finished.queue_id, finished.unique_key, finished.payload from finished where finished.id = stored_id
  ) as found
  join queues on queues.id = found.queue_id;
  if not found or stored.unique_key = unique_ then
    return true;
  end if;
  if (stored.kind, stored.task_list, stored.name) <> ('handler', task_list_, name_) then
    return false;
  end if;
  if stored.payload like '@%' or payload_ like '@%' then
    return true; -- stored with a codec or in parts, which only the engine can compare
  end if;
  return stored.payload::jsonb = payload_::jsonb
    or exists (select from log where log.entity_id = stored_id and log.transition = 'requeue'); -- an operator may have edited it
end
$$;

-- Queues are created by workers and by `treadle_enqueue_v1`.
create function treadle_key_of_queue() returns trigger language plpgsql set search_path from current as $$
begin
  new.limit_key := coalesce(
    (
      select h.key
      from handler_keys as h
      where h.namespace = new.namespace
        and (h.name = new.name or (strpos(h.name, '.') = 0 and right(new.name, length(h.name) + 1) = '.' || h.name))
      order by length(h.name) desc
      limit 1
    ),
    new.limit_key,
    (select m.key from limits as m where m.namespace = new.namespace and m.key = 'handler:' || new.name and m.rate is not null)
  );
  return new;
end
$$;

create function treadle_forget_tags() returns trigger language plpgsql as $$
begin
  delete from tags where owner_id = old.id;
  return null;
end
$$;

-- The smallest id of an instant (ms).
create function treadle_first_id(at bigint) returns uuid language sql immutable parallel safe as $$
  select (lpad(to_hex(greatest(at, 0)), 12, '0') || repeat('0', 20))::uuid
$$;

-- The instant (ms) in an id.
create function treadle_id_time(id uuid) returns bigint language sql immutable parallel safe as $$
  select ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint
$$;

-- The partitions in order, by the end of their names: bounds (null for none), and whether the constraints that repeat the bounds
-- are valid. They let bounds be changed without reading the rows.
create function treadle_parts() returns table (part text, lower_id uuid, upper_id uuid, is_default boolean, is_valid boolean)
language sql stable set search_path from current as $$
  select substr(c.relname, length('finished_') + 1),
    (regexp_match(bound, 'FROM \(''([0-9a-f-]{36})''\)'))[1]::uuid, (regexp_match(bound, 'TO \(''([0-9a-f-]{36})''\)'))[1]::uuid,
    bound = 'DEFAULT',
    (
      select count(*) = 2
      from pg_constraint as k
      where k.conrelid in (c.oid, to_regclass('log_' || substr(c.relname, length('finished_') + 1))) and k.conname = 'bounds'
        and k.convalidated
    )
  from pg_inherits as i
  join pg_class as c on c.oid = i.inhrelid
  cross join lateral (select pg_get_expr(c.relpartbound, c.oid) as bound) as shown
  where i.inhparent = 'finished'::regclass
  order by 4, 2 nulls first
$$;

-- Create a table beside the partitions of finished tasks or of the log, with the bounds as a constraint if it has any.
create function treadle_make_part(parent text, name text, lower_id uuid, upper_id uuid) returns void
language plpgsql set search_path from current as $$
declare
  key text;
begin
  execute format('create table %I (like %I including defaults including constraints including storage including indexes)
    with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
      autovacuum_analyze_scale_factor = 0.05)', name, parent);
  if parent = 'finished' then
    execute format('alter table %I set (autovacuum_vacuum_cost_delay = 0)', name);
    -- (a partition that had this name before may still have the key's usual name)
    select conname into strict key from pg_constraint where conrelid = format('%I', name)::regclass and contype = 'p';
    execute format('alter table %I drop constraint %I, add primary key (id)', name, key);
  else
    execute format('alter table %I add primary key (seq)', name);
  end if;
  if upper_id is not null then
    perform treadle_bound_part(parent, name, lower_id, upper_id, '');
  end if;
end
$$;

create function treadle_bound_part(parent text, name text, lower_id uuid, upper_id uuid, validity text) returns void
language plpgsql set search_path from current as $$
declare
  key constant text := case parent when 'finished' then 'id' else 'entity_id' end;
begin
  execute format('alter table %I drop constraint if exists bounds', name);
  execute format('alter table %I add constraint bounds check (%s%I < %L) %s', name,
    case when lower_id is null then '' else format('%I >= %L and ', key, lower_id) end, key, upper_id, validity);
end
$$;

create function treadle_attach_part(parent text, name text, lower_id uuid, upper_id uuid) returns void
language plpgsql set search_path from current as $$
begin
  if upper_id is null then
    execute format('alter table %I attach partition %I default', parent, name);
  else
    execute format('alter table %I attach partition %I for values from (%s) to (%L)', parent, name,
      coalesce(quote_literal(lower_id), 'minvalue'), upper_id);
  end if;
end
$$;

-- Add a partition for the ids of a time, in both tables.
create function treadle_add_part(lower_id uuid, upper_id uuid) returns void language plpgsql set search_path from current as $$
declare
  part constant text := to_char(to_timestamp(treadle_id_time(lower_id) / 1000) at time zone 'utc', 'YYYYMMDD"_"HH24MI');
  parent text;
begin
  foreach parent in array array['finished', 'log'] loop
    perform treadle_make_part(parent, parent || '_' || part, lower_id, upper_id);
    perform treadle_attach_part(parent, parent || '_' || part, lower_id, upper_id);
  end loop;
end
$$;

-- Check the bounds of a partition; this reads all its rows beside writers.
create function treadle_validate_part(part text) returns void language plpgsql set search_path from current as $$
begin
  execute format('alter table %I validate constraint bounds', 'finished_' || part);
  execute format('alter table %I validate constraint bounds', 'log_' || part);
end
$$;

-- Bound the first partitions, whose constraints are valid.
create function treadle_open_parts(upper_id uuid) returns void language plpgsql set search_path from current as $$
declare
  parent text;
begin
  lock table only finished, only log in access exclusive mode;
  foreach parent in array array['finished', 'log'] loop
    execute format('alter table %I detach partition %I', parent, parent || '_rest');
    perform treadle_attach_part(parent, parent || '_rest', null, upper_id);
  end loop;
end
$$;

-- Roots in a range of ids whose trees may have more than a finished task and its transitions.
create function treadle_mixed(lower_id uuid, upper_id uuid) returns setof uuid language sql stable rows 1000
set search_path from current as $$
  select id from tasks where id >= lower_id and id < upper_id
  union select root_id from tasks where root_id >= lower_id and root_id < upper_id and root_id <> id
  union select root_id from finished where root_id >= lower_id and root_id < upper_id and root_id <> id
  union select id from runs where id >= lower_id and id < upper_id
  union select root_id from runs where root_id >= lower_id and root_id < upper_id and root_id <> id
  union select task_id from lines where task_id >= lower_id and task_id < upper_id
  union select owner_id from tags where owner_id >= lower_id and owner_id < upper_id
  union select root_id from idempotency_outcomes where root_id >= lower_id and root_id < upper_id
  union select root_id from streams where root_id >= lower_id and root_id < upper_id
  union select root_id from blob_uses where root_id >= lower_id and root_id < upper_id
  union select root_id from records where root_id >= lower_id and root_id < upper_id
$$;

-- Drop a partition with its expired single tasks of the namespace; the rest of its rows are copied first, and stay. Returns the
-- number of removed tasks and transitions; nulls if more than half of the tasks would stay, or if something changed meanwhile.
--
-- The copy is made without a lock that others would wait for. Then both tables are locked for some milliseconds: this waits for
-- all transactions that use them, gives up after half a second, and checks that no row was added, changed or removed since. Rows
-- that are added have a recent time, because transactions last seconds.
create function treadle_drop_part(part text, namespace_ text, completed_for bigint, failed_for bigint, out tasks bigint,
  out transitions bigint)
language plpgsql set search_path from current as $$
declare
  now_at constant bigint := treadle_now();
  old constant text := 'finished_' || part;
  new constant text := 'finished_' || part || '_new';
  old_log constant text := 'log_' || part;
  new_log constant text := 'log_' || part || '_new';
  lower_ uuid;
  upper_ uuid;
  before record;
  kept bigint;
  kept_transitions bigint;
  all_tasks bigint;
  all_transitions bigint;
  unchanged boolean;
begin
  select p.lower_id, p.upper_id into strict lower_, upper_ from treadle_parts() as p where p.part = treadle_drop_part.part;
  execute format('select count(*) from %I', old) into all_tasks;
  create temporary table treadle_kept (id uuid primary key, mark text not null) on commit drop;
  execute format($sql$
    insert into treadle_kept
    select f.id, f.xmin::text
    from %I as f
    join queues on queues.id = f.queue_id
    left join lists on lists.namespace = queues.namespace and lists.task_list = queues.task_list
    where f.namespace <> $1 or f.root_id <> f.id or f.run_id is not null
      or f.finished_at > $2 - case when f.state = 'failed' then coalesce(lists.keep_failed_for, $4)
        else coalesce(lists.keep_completed_for, $3) end
      or f.id in (select treadle_mixed($5, $6))
    $sql$, old) using namespace_, now_at, completed_for, failed_for, lower_, upper_;
  get diagnostics kept = row_count;
  if kept * 2 > all_tasks then
    drop table treadle_kept;
    return;
  end if;
  analyze treadle_kept;
  execute format('select count(*) from %I', old_log) into all_transitions;
  perform treadle_make_part('finished', new, lower_, upper_), treadle_make_part('log', new_log, lower_, upper_);
  execute format('insert into %I select o.* from treadle_kept as k join %I as o on o.id = k.id and o.xmin::text = k.mark', new,
    old);
  execute format('insert into %I select o.* from %I as o where not exists (select from %I as f where f.id = o.entity_id)
    or exists (select from treadle_kept as k where k.id = o.entity_id)', new_log, old_log, old);
  get diagnostics kept_transitions = row_count;

  perform set_config('lock_timeout', '500ms', true);
  lock table only finished, only log in access exclusive mode;
  execute format($sql$
    select not exists (select from (select finished_at from %1$I order by seq desc limit 1000) as f where finished_at > $1 - 60000)
      and not exists (select from (select at from %3$I order by seq desc limit 1000) as l where at > $1 - 60000)
      and $2 = (select count(*) from treadle_kept as k join %1$I as o on o.id = k.id and o.xmin::text = k.mark)
      and $2 = (select count(*) from %2$I)
      and $3 = (select count(*) from %4$I as n join %3$I as o on o.seq = n.seq)
      and not exists (
        select
        from treadle_mixed($4, $5) as m (id)
        where exists (select from %1$I as o where o.id = m.id) and not exists (select from treadle_kept as k where k.id = m.id)
      )
    $sql$, old, new, old_log, new_log) into unchanged using now_at, kept, kept_transitions, lower_, upper_;
  if not unchanged then
    execute format('drop table %I, %I, treadle_kept', new, new_log);
    return;
  end if;
  select p.* into before from treadle_parts() as p where p.upper_id = lower_;
  perform treadle_replace_part('finished', old, new, lower_, upper_, before.part, before.lower_id, kept <= 20000 and
    before.is_valid),
    treadle_replace_part('log', old_log, new_log, lower_, upper_, before.part, before.lower_id, kept <= 20000 and before.is_valid);
  drop table treadle_kept;
  tasks := all_tasks - kept;
  transitions := all_transitions - kept_transitions;
end
$$;

-- Put a new table in the place of a partition; if `merged`, give its rows and ids to the partition before.
create function treadle_replace_part(parent text, old text, new text, lower_ uuid, upper_ uuid, before text, before_lower uuid,
  merged boolean) returns void language plpgsql set search_path from current as $$
begin
  execute format('alter table %I detach partition %I', parent, old);
  execute format('drop table %I', old);
  if merged then
    execute format('alter table %I detach partition %I', parent, parent || '_' || before);
    perform treadle_attach_part(parent, parent || '_' || before, before_lower, upper_);
    perform treadle_bound_part(parent, parent || '_' || before, before_lower, upper_, 'not valid');
    execute format('insert into %I select * from %I', parent, new);
    execute format('drop table %I', new);
  else
    perform treadle_attach_part(parent, new, lower_, upper_);
    execute format('alter table %I rename to %I', new, old);
  end if;
end
$$;

-- Refuse roles that may not change tasks: functions with the rights of the owner can be called by every role that sees the schema.
create function treadle_check_writer() returns void language plpgsql set search_path from current as $$
begin
  if not has_table_privilege(session_user, 'tasks', 'update') then
    raise insufficient_privilege using message = format('permission denied for role %s: it may not change tasks', session_user);
  end if;
end
$$;

-- Remove the bounds of the first partitions, which are not attached with them yet: the split starts again later. With the rights of
-- the owner, because a worker whose task has a later id must not wait for it.
create function treadle_open_rest() returns void language plpgsql security definer as $$
begin
  perform treadle_check_writer();
  if (select upper_id is null from treadle_parts() where part = 'rest') then
    alter table finished_rest drop constraint if exists bounds;
    alter table log_rest drop constraint if exists bounds;
  end if;
end
$$;

-- Ended tasks whose errors have the words of the query, in any order. The session plans it once, as planning for all partitions
-- takes several times as long as finding a rare word, and without scans of tables, whatever size these had then. The memory holds
-- the positions of a common word; less makes that several times slower. (`coalesce` and `+ 0` leave
-- only the index of words.)
create function treadle_some_with_words(namespace_ text, before_at bigint, before_id uuid, after_at bigint, query tsquery, most
  bigint)
returns table (created_at bigint, id uuid)
language plpgsql stable set plan_cache_mode = force_generic_plan set enable_seqscan = off set work_mem = '64MB'
set search_path from current as $$
begin
  return query
    select f.created_at, f.id
    from finished as f
    where treadle_words(f.error) @@ query and f.error is not null and coalesce(f.namespace, '') = namespace_
      and (f.created_at + 0, f.id) < (before_at, before_id) and f.created_at + 0 >= after_at
    limit most;
end
$$;

-- Functions with the rights of the owner never find temporary tables of their callers.
do $$
begin
  execute format('alter function treadle_open_rest() set search_path = %I, pg_temp', current_schema());
end
$$;

create trigger llm_usage_goes_with_its_run after delete on runs for each row execute function treadle_forget_usage();

create trigger runs_make_legal_transitions before update of state on runs for each row
  when (old.state is distinct from new.state) execute function treadle_refuse_transition();

create trigger records_make_legal_transitions before update of state on records for each row
  when (old.state is distinct from new.state) execute function treadle_refuse_transition();

create trigger slots_go_with_their_task after delete or update of limit_keys on tasks for each row
  when (old.limit_keys is not null) execute function treadle_forget_slots();

create trigger mail_goes_with_its_run after delete on runs for each row execute function treadle_forget_mail();

create trigger records_written_once before update on records for each row
  when (old.entity in ('context_snapshot', 'output_bundle', 'run_record', 'pause_state')) execute function treadle_written_once();

create trigger queues_key before insert on queues for each row when (new.kind = 'handler') execute function treadle_key_of_queue();

create trigger tags_go_with_their_run after delete on runs for each row execute function treadle_forget_tags();

-- PostgreSQL 18 may scan a table with a single partition although scans are disabled. So the default partitions exist from the
-- beginning, where they have no ids, because the first partitions have all. A partition that was vacuumed while it was empty has no
-- rows for the planner, and all its indexes with a column cost the same; it then takes the newest one. So the primary key of
-- finished tasks is the newest index of each partition.
do $$
declare
  parent text;
begin
  foreach parent in array array['finished', 'log'] loop
    perform treadle_make_part(parent, parent || '_default', null, null);
    perform treadle_attach_part(parent, parent || '_default', null, null);
  end loop;
end
$$;
alter table finished drop constraint finished_key;
alter table finished_rest add constraint finished_pkey primary key (id);
alter table finished_default add constraint finished_default_pkey primary key (id);
alter table finished add constraint finished_key primary key (id);

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
