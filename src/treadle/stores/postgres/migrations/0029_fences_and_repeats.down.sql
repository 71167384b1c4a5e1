do $$
begin
  execute replace(
    pg_get_functiondef('treadle_enqueue_v1(json)'::regprocedure),
    'where not exists (select from finished as f where f.id = new_id) and not exists (select from tasks as t where t.id = new_id)',
    'where not exists (select from finished as f where f.id = new_id)'
  );
end
$$;

-- Back to the fences of tasks, finished tasks, runs, records, mail, limits, handlers and versions of flows.

drop trigger moved_on on idempotency_outcomes;
drop trigger moved on idempotency_outcomes;
drop trigger moved on blob_uses;
drop trigger moved on log;
drop trigger moved on stream_chunks;
drop trigger moved on record_items;
drop trigger moved on lines;
drop trigger moved on llm_usage;
drop trigger moved on llm_budgets;
drop trigger moved on mail;
drop trigger moved on steps;
drop trigger moved_out on dedupe;
drop trigger moved on dedupe;
drop trigger moved_out on streams;
drop trigger moved on streams;
drop trigger moved_out on tags;
drop trigger moved on tags;
drop trigger moved_out on flow_versions;
drop trigger moved on flow_versions;
drop trigger moved on flows;
drop trigger moved_out on handler_registrations;
drop trigger moved on handler_registrations;
drop trigger moved_out on handler_keys;
drop trigger moved on handler_keys;
drop trigger moved_out on lists;
drop trigger moved on lists;
drop trigger moved_out on lanes;
drop trigger moved on lanes;
drop trigger moved_in on lanes;
drop trigger moved_out on limits;
drop trigger moved on limits;
drop trigger moved_in on limits;
drop trigger moved_out on records;
drop trigger moved on records;
drop trigger moved_out on runs;
drop trigger moved on runs;
drop trigger moved_out on finished;
drop trigger moved on finished;
drop trigger moved_out on tasks;
drop trigger moved on tasks;
drop trigger moved_in on tasks;
drop function treadle_fence_namespace(text, text);
drop function treadle_refuse_moved_out();
drop function treadle_refuse_moved_of_root();
drop function treadle_refuse_moved_of_entity();
drop function treadle_refuse_moved_of_stream();
drop function treadle_refuse_moved_of_record();
drop function treadle_refuse_moved_of_task();
drop function treadle_refuse_moved_of_run();
drop function treadle_write_fences();
drop function treadle_refuse(text);
alter table moved_namespaces drop column moved_to;

create or replace function treadle_refuse_moved() returns trigger language plpgsql set search_path from current as $$
begin
  if exists (select from moved_namespaces where namespace = new.namespace) then
    raise exception using errcode = 'TR001', message = new.namespace;
  end if;
  return new;
end
$$;

create function treadle_refuse_moved_mail() returns trigger language plpgsql set search_path from current as $$
declare
  moved text := (select r.namespace from runs as r join moved_namespaces as m on m.namespace = r.namespace where r.id = new.run_id);
begin
  if moved is not null then
    raise exception using errcode = 'TR001', message = moved;
  end if;
  return new;
end
$$;

create or replace function treadle_switch_fences(change text) returns void language plpgsql set search_path from current as $$
declare
  each record;
begin
  for each in
    select t.tgrelid::regclass as relation, t.tgname as name
    from pg_trigger as t
    join pg_class as c on c.oid = t.tgrelid
    where t.tgname in ('moved', 'moved_in') and c.relnamespace = (select relnamespace from pg_class where oid = 'tasks'::regclass)
      and (t.tgenabled = 'D') = (change = 'enable')
  loop
    execute format('alter table only %s %s trigger %I', each.relation, change, each.name);
  end loop;
end
$$;

create function treadle_fence_namespace(name text) returns void language plpgsql security definer as $$
begin
  perform treadle_check_writer();
  lock table tasks, finished, runs, records, mail, limits, handler_keys, handler_registrations, flow_versions
    in share row exclusive mode;
  insert into moved_namespaces (namespace, moved_at) values (name, treadle_now()) on conflict do nothing;
  perform treadle_switch_fences('enable');
end
$$;

create or replace function treadle_unfence_namespace(name text) returns void language plpgsql security definer as $$
begin
  perform treadle_check_writer();
  delete from moved_namespaces where namespace = name;
  if found and not exists (select from moved_namespaces) then
    perform treadle_switch_fences('disable');
  end if;
end
$$;

create or replace function treadle_replace_part(parent text, old text, new text, lower_ uuid, upper_ uuid, before text, before_lower uuid,
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

create trigger moved_in before insert on tasks for each row execute function treadle_refuse_moved();
create trigger moved before update on tasks for each row
  when (new.version <> old.version and new.takeovers <= old.takeovers) execute function treadle_refuse_moved();
create trigger moved before insert or update on finished for each row execute function treadle_refuse_moved();
create trigger moved before insert or update on runs for each row execute function treadle_refuse_moved();
create trigger moved before insert or update on records for each row execute function treadle_refuse_moved();
create trigger moved before insert on mail for each row execute function treadle_refuse_moved_mail();
create trigger moved_in before insert on limits for each row execute function treadle_refuse_moved();
create trigger moved before update on limits for each row
  when ((new.max_running, new.rate, new.burst) is distinct from (old.max_running, old.rate, old.burst))
  execute function treadle_refuse_moved();
create trigger moved before insert or update on handler_keys for each row execute function treadle_refuse_moved();
create trigger moved before insert or update on handler_registrations for each row execute function treadle_refuse_moved();
create trigger moved before insert or update on flow_versions for each row execute function treadle_refuse_moved();

do $$
declare
  name text;
begin
  foreach name in array array['treadle_fence_namespace(text)', 'treadle_unfence_namespace(text)'] loop
    execute format('alter function %s set search_path = %I, pg_temp', name, current_schema());
  end loop;
  if not exists (select from moved_namespaces) then
    perform treadle_switch_fences('disable');
  end if;
end
$$;
