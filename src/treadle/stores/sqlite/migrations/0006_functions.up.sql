-- Durable functions and what people and time do: records, mail, outcomes of effects; and moves that the database refuses.

alter table runs add column parent_step_id text;
alter table runs add column awaiting integer not null default 0;
create index runs_parent on runs (parent_id) where parent_step_id is not null;

-- Entities with a state machine that are small documents: approvals, schedules, watchers.
create table records (
  id text primary key not null,
  namespace text not null,
  entity text not null,
  name text,
  state text not null,
  version integer not null,
  moves integer not null,
  body text not null,
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

create trigger items_go_with_their_record after delete on records begin
  delete from record_items where record_id = old.id;
end;

-- Messages that function runs have not consumed.
create table mail (
  seq integer primary key autoincrement,
  id text not null unique,
  run_id text not null,
  step_id text,
  name text,
  body text not null,
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
  resolved_at integer
) strict;

create index idempotency_outcomes_root on idempotency_outcomes (root_id);

create index lines_run on lines (run_id, id) where run_id is not null;

-- The moves between states that there are (treadle/model/states.py); the database refuses all others.
create table legal_moves (
  entity text not null,
  from_state text not null,
  to_state text not null,
  primary key (entity, from_state, to_state)
) strict, without rowid;

insert into legal_moves (entity, from_state, to_state) values
  ('run', 'pending', 'running'), ('run', 'pending', 'canceled'), ('run', 'running', 'completed'), ('run', 'running', 'failed'),
  ('run', 'running', 'paused'), ('run', 'running', 'canceled'), ('run', 'paused', 'running'), ('run', 'paused', 'canceled'),
  ('run', 'failed', 'running'),
  ('approval', 'pending', 'approved'), ('approval', 'pending', 'denied'), ('approval', 'pending', 'expired'),
  ('approval', 'pending', 'canceled'),
  ('schedule', 'active', 'paused'), ('schedule', 'paused', 'active'), ('schedule', 'active', 'removed'),
  ('schedule', 'paused', 'removed'), ('schedule', 'active', 'finished'),
  ('watcher', 'active', 'paused'), ('watcher', 'paused', 'active'), ('watcher', 'active', 'removed'),
  ('watcher', 'paused', 'removed');

create trigger runs_make_legal_moves before update of state on runs
when old.state <> new.state
  and not exists (select 1 from legal_moves where entity = 'run' and from_state = old.state and to_state = new.state)
begin
  select raise(abort, 'a run cannot make that move');
end;

create trigger records_make_legal_moves before update of state on records
when old.state <> new.state
  and not exists (select 1 from legal_moves where entity = new.entity and from_state = old.state and to_state = new.state)
begin
  select raise(abort, 'a record cannot make that move');
end;

-- Pruning a run deletes its messages.
create trigger mail_goes_with_its_run after delete on runs begin
  delete from mail where run_id = old.id;
end;
