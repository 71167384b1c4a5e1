-- Fences of moved namespaces on all their tables, for deletions too. The function that most triggers call contains the names of the
-- moved namespaces, so that a row of another namespace costs no query.

alter table moved_namespaces add column moved_to text not null default '';

drop trigger moved on flow_versions;
drop trigger moved on handler_registrations;
drop trigger moved on handler_keys;
drop trigger moved on limits;
drop trigger moved_in on limits;
drop trigger moved on mail;
drop trigger moved on records;
drop trigger moved on runs;
drop trigger moved on finished;
drop trigger moved on tasks;
drop trigger moved_in on tasks;
drop function treadle_refuse_moved_mail();

-- Refuse a change in a moved namespace, unless the transaction is part of a move.
create function treadle_refuse(name text) returns void language plpgsql set search_path from current as $$
begin
  if coalesce(current_setting('treadle.moving', true), '') <> 'on' then
    raise exception using errcode = 'TR004', message = name,
      detail = coalesce((select moved_to from moved_namespaces where namespace = name), '');
  end if;
end
$$;

-- Replace the functions that refuse rows with a namespace, after a change of `moved_namespaces`.
create function treadle_write_fences() returns void language plpgsql set search_path from current as $$
declare
  names constant text := quote_literal(array(select namespace from moved_namespaces order by namespace)::text);
begin
  execute format('create or replace function treadle_refuse_moved() returns trigger language plpgsql as %L', format('
begin
  if new.namespace = any (%s::text[]) then
    perform %I.treadle_refuse(new.namespace);
  end if;
  return new;
end
', names, current_schema()));
  execute format('create or replace function treadle_refuse_moved_out() returns trigger language plpgsql as %L', format('
begin
  if old.namespace = any (%s::text[]) then
    perform %I.treadle_refuse(old.namespace);
  end if;
  return old;
end
', names, current_schema()));
end
$$;

select treadle_write_fences();

create function treadle_refuse_moved_of_run() returns trigger language plpgsql set search_path from current as $$
declare
  each record;
  moved text;
begin
  if tg_op = 'DELETE' then
    each := old;
  else
    each := new;
  end if;
  select m.namespace into moved from runs as r join moved_namespaces as m on m.namespace = r.namespace where r.id = each.run_id;
  if moved is not null then
    perform treadle_refuse(moved);
  end if;
  return each;
end
$$;

create function treadle_refuse_moved_of_task() returns trigger language plpgsql set search_path from current as $$
declare
  each record;
  moved text;
begin
  if tg_op = 'DELETE' then
    each := old;
  else
    each := new;
  end if;
  select m.namespace into moved
  from moved_namespaces as m
  where exists (select from tasks as r where r.id = each.task_id and r.namespace = m.namespace)
    or exists (select from finished as r where r.id = each.task_id and r.namespace = m.namespace);
  if moved is not null then
    perform treadle_refuse(moved);
  end if;
  return each;
end
$$;

create function treadle_refuse_moved_of_record() returns trigger language plpgsql set search_path from current as $$
declare
  each record;
  moved text;
begin
  if tg_op = 'DELETE' then
    each := old;
  else
    each := new;
  end if;
  select m.namespace into moved from records as r join moved_namespaces as m on m.namespace = r.namespace where r.id = each.record_id;
  if moved is not null then
    perform treadle_refuse(moved);
  end if;
  return each;
end
$$;

create function treadle_refuse_moved_of_stream() returns trigger language plpgsql set search_path from current as $$
declare
  each record;
  moved text;
begin
  if tg_op = 'DELETE' then
    each := old;
  else
    each := new;
  end if;
  select m.namespace into moved
  from streams as r
  join moved_namespaces as m on m.namespace = r.namespace
  where r.owner_id = each.owner_id and r.name = each.name;
  if moved is not null then
    perform treadle_refuse(moved);
  end if;
  return each;
end
$$;

create function treadle_refuse_moved_of_entity() returns trigger language plpgsql set search_path from current as $$
declare
  each record;
  moved text;
begin
  if tg_op = 'DELETE' then
    each := old;
  else
    each := new;
  end if;
  select m.namespace into moved
  from moved_namespaces as m
  where exists (select from tasks as r where r.id = each.entity_id and r.namespace = m.namespace)
    or exists (select from finished as r where r.id = each.entity_id and r.namespace = m.namespace)
    or exists (select from runs as r where r.id = each.entity_id and r.namespace = m.namespace)
    or exists (select from records as r where r.id = each.entity_id and r.namespace = m.namespace);
  if moved is not null then
    perform treadle_refuse(moved);
  end if;
  return each;
end
$$;

create function treadle_refuse_moved_of_root() returns trigger language plpgsql set search_path from current as $$
declare
  each record;
  moved text;
begin
  if tg_op = 'DELETE' then
    each := old;
  else
    each := new;
  end if;
  select m.namespace into moved
  from moved_namespaces as m
  where exists (select from tasks as r where r.id = each.root_id and r.namespace = m.namespace)
    or exists (select from tasks as r where r.root_id = each.root_id and r.root_id <> r.id and r.namespace = m.namespace)
    or exists (select from finished as r where r.id = each.root_id and r.namespace = m.namespace)
    or exists (select from finished as r where r.root_id = each.root_id and r.root_id <> r.id and r.namespace = m.namespace)
    or exists (select from runs as r where r.id = each.root_id and r.namespace = m.namespace)
    or exists (select from runs as r where r.root_id = each.root_id and r.root_id <> r.id and r.namespace = m.namespace)
    or exists (select from records as r where r.root_id = each.root_id and r.namespace = m.namespace);
  if moved is not null then
    perform treadle_refuse(moved);
  end if;
  return each;
end
$$;

-- Disabled until a namespace is moved. Changes that a server makes for all namespaces (waking, takeovers, admission, refills) pass: a
-- move copies their input, and the new place makes them again. A held task ends with an insert into `finished`.
create trigger moved_in before insert on tasks for each row execute function treadle_refuse_moved();
create trigger moved before update on tasks for each row
  when (new.version <> old.version and new.takeovers <= old.takeovers) execute function treadle_refuse_moved();
create trigger moved_out before delete on tasks for each row when (old.owner_id is null) execute function treadle_refuse_moved_out();
create trigger moved before insert or update on finished for each row execute function treadle_refuse_moved();
create trigger moved_out before delete on finished for each row execute function treadle_refuse_moved_out();
create trigger moved before insert or update on runs for each row execute function treadle_refuse_moved();
create trigger moved_out before delete on runs for each row execute function treadle_refuse_moved_out();
create trigger moved before insert or update on records for each row execute function treadle_refuse_moved();
create trigger moved_out before delete on records for each row execute function treadle_refuse_moved_out();
create trigger moved_in before insert on limits for each row execute function treadle_refuse_moved();
create trigger moved before update on limits for each row
  when ((new.max_running, new.by_operator, new.rate, new.burst) is distinct from (old.max_running, old.by_operator, old.rate, old.burst))
  execute function treadle_refuse_moved();
create trigger moved_out before delete on limits for each row execute function treadle_refuse_moved_out();
create trigger moved_in before insert on lanes for each row execute function treadle_refuse_moved();
create trigger moved before update on lanes for each row
  when ((new.paused, new.accepting, new.rate, new.burst, new.backlog_limit, new.limit_key)
    is distinct from (old.paused, old.accepting, old.rate, old.burst, old.backlog_limit, old.limit_key))
  execute function treadle_refuse_moved();
create trigger moved_out before delete on lanes for each row execute function treadle_refuse_moved_out();
create trigger moved before insert or update on lists for each row execute function treadle_refuse_moved();
create trigger moved_out before delete on lists for each row execute function treadle_refuse_moved_out();
create trigger moved before insert or update on handler_keys for each row execute function treadle_refuse_moved();
create trigger moved_out before delete on handler_keys for each row execute function treadle_refuse_moved_out();
create trigger moved before insert or update on handler_registrations for each row execute function treadle_refuse_moved();
create trigger moved_out before delete on handler_registrations for each row execute function treadle_refuse_moved_out();
create trigger moved before insert on flows for each row execute function treadle_refuse_moved();
create trigger moved before insert or update on flow_versions for each row execute function treadle_refuse_moved();
create trigger moved_out before delete on flow_versions for each row execute function treadle_refuse_moved_out();
create trigger moved before insert or update on tags for each row execute function treadle_refuse_moved();
create trigger moved_out before delete on tags for each row execute function treadle_refuse_moved_out();
create trigger moved before insert or update on streams for each row execute function treadle_refuse_moved();
create trigger moved_out before delete on streams for each row execute function treadle_refuse_moved_out();
create trigger moved before insert or update on dedupe for each row execute function treadle_refuse_moved();
create trigger moved_out before delete on dedupe for each row execute function treadle_refuse_moved_out();
create trigger moved before delete on steps for each row execute function treadle_refuse_moved_of_run();
create trigger moved before insert or update on mail for each row execute function treadle_refuse_moved_of_run();
create trigger moved before insert or update or delete on llm_budgets for each row execute function treadle_refuse_moved_of_run();
create trigger moved before insert or update or delete on llm_usage for each row execute function treadle_refuse_moved_of_run();
create trigger moved before insert or update or delete on lines for each row execute function treadle_refuse_moved_of_task();
create trigger moved before insert or update or delete on record_items for each row execute function treadle_refuse_moved_of_record();
create trigger moved before insert or update or delete on stream_chunks for each row execute function treadle_refuse_moved_of_stream();
create trigger moved before update or delete on log for each row execute function treadle_refuse_moved_of_entity();
create trigger moved before insert or update or delete on blob_uses for each row execute function treadle_refuse_moved_of_root();
create trigger moved before insert or delete on idempotency_outcomes for each row execute function treadle_refuse_moved_of_root();
create trigger moved_on before update on idempotency_outcomes for each row
  when (not (new.status = old.status and old.unknown_at is null and new.unknown_at is not null))
  execute function treadle_refuse_moved_of_root();

-- Let the triggers of moved namespaces fire (`enable`) or not (`disable`), on tables and their partitions.
create or replace function treadle_switch_fences(change text) returns void language plpgsql set search_path from current as $$
declare
  each record;
begin
  for each in
    select t.tgrelid::regclass as relation, t.tgname as name
    from pg_trigger as t
    join pg_class as c on c.oid = t.tgrelid
    where t.tgname in ('moved', 'moved_in', 'moved_on', 'moved_out')
      and c.relnamespace = (select relnamespace from pg_class where oid = 'tasks'::regclass)
      and (t.tgenabled = 'D') = (change = 'enable')
    order by t.tgrelid, t.tgname
  loop
    execute format('alter table only %s %s trigger %I', each.relation, change, each.name);
  end loop;
end
$$;

drop function treadle_fence_namespace(text);

-- Refuse changes in a namespace that moved to the store `target`. The locks wait for transactions that began before. With the rights
-- of the owner, as only the owner may change triggers and functions.
create function treadle_fence_namespace(name text, target text) returns void language plpgsql security definer as $$
begin
  perform treadle_check_writer();
  lock table lists, lanes, tasks, finished, runs, records, record_items, steps, mail, log, lines, limits, handler_keys,
    handler_registrations, flows, flow_versions, tags, streams, stream_chunks, dedupe, blob_uses, idempotency_outcomes, llm_budgets,
    llm_usage in share row exclusive mode;
  insert into moved_namespaces (namespace, moved_at, moved_to) values (name, treadle_now(), target)
  on conflict (namespace) do update set moved_to = excluded.moved_to;
  perform treadle_write_fences();
  perform treadle_switch_fences('enable');
end
$$;

-- Allow changes in a namespace again.
create or replace function treadle_unfence_namespace(name text) returns void language plpgsql security definer as $$
begin
  perform treadle_check_writer();
  delete from moved_namespaces where namespace = name;
  if found then
    perform treadle_write_fences();
    if not exists (select from moved_namespaces) then
      perform treadle_switch_fences('disable');
    end if;
  end if;
end
$$;

-- Put a new table in the place of a partition; if `merged`, give its rows and ids to the partition before. Rows of moved namespaces
-- may be among them.
create or replace function treadle_replace_part(parent text, old text, new text, lower_ uuid, upper_ uuid, before text,
  before_lower uuid, merged boolean) returns void language plpgsql set search_path from current as $$
begin
  execute format('alter table %I detach partition %I', parent, old);
  execute format('drop table %I', old);
  if merged then
    execute format('alter table %I detach partition %I', parent, parent || '_' || before);
    perform treadle_attach_part(parent, parent || '_' || before, before_lower, upper_);
    perform treadle_bound_part(parent, parent || '_' || before, before_lower, upper_, 'not valid');
    perform set_config('treadle.moving', 'on', true);
    execute format('insert into %I select * from %I', parent, new);
    perform set_config('treadle.moving', '', true);
    execute format('drop table %I', new);
  else
    perform treadle_attach_part(parent, new, lower_, upper_);
    execute format('alter table %I rename to %I', new, old);
  end if;
end
$$;

-- Functions with the rights of the owner never find temporary tables of their callers. The triggers are enabled only if there are
-- moved namespaces.
do $$
declare
  name text;
begin
  foreach name in array array['treadle_fence_namespace(text, text)', 'treadle_unfence_namespace(text)'] loop
    execute format('alter function %s set search_path = %I, pg_temp', name, current_schema());
  end loop;
  if not exists (select from moved_namespaces) then
    perform treadle_switch_fences('disable');
  end if;
end
$$;

-- `treadle_enqueue_v1` with an id does not store a task again whose end it crosses: every snapshot has a stored task in one of
-- the two tables.

do $$
begin
  execute replace(
    pg_get_functiondef('treadle_enqueue_v1(json)'::regprocedure),
    'where not exists (select from finished as f where f.id = new_id)',
    'where not exists (select from finished as f where f.id = new_id) and not exists (select from tasks as t where t.id = new_id)'
  );
end
$$;
