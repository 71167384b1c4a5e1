select treadle_create_fences();

drop function treadle_drop_fences();
drop function treadle_create_fences();

-- Let the triggers of moved namespaces fire (`enable`) or not (`disable`), on tables and their partitions.
create function treadle_switch_fences(change text) returns void language plpgsql set search_path from current as $$
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

create or replace function treadle_fence_namespace(name text, target text) returns void language plpgsql security definer as $$
begin
  perform treadle_check_writer();
  lock table dedupe, runs, records, tasks, finished, log, lists, lanes, record_items, steps, mail, log, lines, limits, handler_keys,
    handler_registrations, flows, flow_versions, tags, streams, stream_chunks, dedupe, blob_uses, idempotency_outcomes, llm_budgets,
    llm_usage in share row exclusive mode;
  insert into moved_namespaces (namespace, moved_at, moved_to) values (name, treadle_now(), target)
  on conflict (namespace) do update set moved_to = excluded.moved_to;
  perform treadle_write_fences();
  perform treadle_switch_fences('enable');
end
$$;

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

drop function treadle_lock_fenced(text);
drop table fences;
