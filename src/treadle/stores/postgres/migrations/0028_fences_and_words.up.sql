-- Namespaces that were moved to another store, whose work may not change here any more; the end of an unfinished split of
-- partitions by a role that does not own them; and the search of errors with a plan that is kept.

create table moved_namespaces (
  namespace text primary key,
  moved_at bigint not null
);

create function treadle_refuse_moved() returns trigger language plpgsql set search_path from current as $$
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

-- Disabled until a namespace is moved. Changes that a server makes for all namespaces (waking, takeovers, admission, refills) pass: a
-- move copies their input, and the new place makes them again.
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

-- Let the triggers of moved namespaces fire (`enable`) or not (`disable`), on tables and their partitions.
create function treadle_switch_fences(change text) returns void language plpgsql set search_path from current as $$
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

-- Refuse roles that may not change tasks: functions with the rights of the owner can be called by every role that sees the schema.
create function treadle_check_writer() returns void language plpgsql set search_path from current as $$
begin
  if not has_table_privilege(session_user, 'tasks', 'update') then
    raise insufficient_privilege using message = format('permission denied for role %s: it may not change tasks', session_user);
  end if;
end
$$;

-- Refuse changes to the work of a namespace. The locks wait for transactions that began before. With the rights of the owner, as
-- only the owner may change triggers.
create function treadle_fence_namespace(name text) returns void language plpgsql security definer as $$
begin
  perform treadle_check_writer();
  lock table tasks, finished, runs, records, mail, limits, handler_keys, handler_registrations, flow_versions
    in share row exclusive mode;
  insert into moved_namespaces (namespace, moved_at) values (name, treadle_now()) on conflict do nothing;
  perform treadle_switch_fences('enable');
end
$$;

-- Allow changes to the work of a namespace again.
create function treadle_unfence_namespace(name text) returns void language plpgsql security definer as $$
begin
  perform treadle_check_writer();
  delete from moved_namespaces where namespace = name;
  if found and not exists (select from moved_namespaces) then
    perform treadle_switch_fences('disable');
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

-- Functions with the rights of the owner never find temporary tables of their callers.
do $$
declare
  name text;
begin
  foreach name in array array['treadle_fence_namespace(text)', 'treadle_unfence_namespace(text)', 'treadle_open_rest()'] loop
    execute format('alter function %s set search_path = %I, pg_temp', name, current_schema());
  end loop;
  perform treadle_switch_fences('disable');
end
$$;

-- Ended tasks whose errors have the words of the query, in any order. The session plans it once, as planning for all partitions takes
-- several times as long as finding a rare word, and without scans of tables, whatever size these had then. The memory holds the
-- positions of a common word; less makes that several times slower. (`coalesce` and `+ 0` leave
-- only the index of words.)
create function treadle_some_with_words(namespace_ text, before_at bigint, before_id uuid, after_at bigint, query tsquery, most bigint)
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
