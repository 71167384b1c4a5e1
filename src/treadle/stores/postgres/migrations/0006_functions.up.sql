-- Durable functions and what people and time do: records, mail, outcomes of effects; and moves that the database refuses.

alter table runs add column parent_step_id uuid;
alter table runs add column awaiting integer not null default 0;
create index runs_parent on runs (parent_id) where parent_step_id is not null;

-- Entities with a state machine that are small documents: approvals, schedules, watchers.
create table records (
  id uuid primary key,
  namespace text not null,
  entity text not null,
  name text,
  state text not null,
  version integer not null,
  moves integer not null,
  body text not null,
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
  body text not null,
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
  resolved_at bigint
);

create index idempotency_outcomes_root on idempotency_outcomes (root_id);

create index lines_run on lines (run_id, id) where run_id is not null;

-- The moves between states that there are (treadle/model/states.py); the database refuses all others.
create table legal_moves (
  entity text not null,
  from_state text not null,
  to_state text not null,
  primary key (entity, from_state, to_state)
);

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

create function treadle_refuse_move() returns trigger language plpgsql as $$
declare
  entity_name text := case when tg_table_name = 'runs' then 'run' else to_jsonb(new) ->> 'entity' end;
begin
  if not exists (select from legal_moves where entity = entity_name and from_state = old.state and to_state = new.state) then
    raise exception 'a % cannot go from % to %', entity_name, old.state, new.state using errcode = 'check_violation';
  end if;
  return new;
end
$$;

create trigger runs_make_legal_moves before update of state on runs for each row
  when (old.state is distinct from new.state) execute function treadle_refuse_move();
create trigger records_make_legal_moves before update of state on records for each row
  when (old.state is distinct from new.state) execute function treadle_refuse_move();

-- Pruning a run deletes its messages.
create function treadle_forget_mail() returns trigger language plpgsql as $$
begin
  delete from mail where run_id = old.id;
  return null;
end
$$;

create trigger mail_goes_with_its_run after delete on runs for each row execute function treadle_forget_mail();
