-- Runs of workflows: flows, runs and their steps.

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
  moves integer not null,
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
  finished_at bigint
) with (fillfactor = 80);

create unique index runs_idempotency_key on runs (namespace, idempotency_key) where idempotency_key is not null;
create index runs_state on runs (namespace, state, id);
create index runs_root on runs (root_id) where root_id <> id;

create table steps (
  id uuid primary key,
  run_id uuid not null,
  parent_id uuid,
  ordinal integer not null,
  kind text not null,
  name text not null,
  facet text,
  state text not null,
  body text not null,
  inbox text,
  created_at bigint not null,
  updated_at bigint not null
) with (fillfactor = 80);

create index steps_run on steps (run_id, id);
create index steps_parent on steps (parent_id) where kind <> 'item';
create index steps_items on steps (parent_id) where kind = 'item';
create index steps_inbox on steps (run_id, id) where inbox is not null;
