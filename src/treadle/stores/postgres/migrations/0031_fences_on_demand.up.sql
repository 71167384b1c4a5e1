-- Create the triggers of moved namespaces with the first one, instead of enabling them: a disabled trigger still locks every row
-- that its table updates or deletes.

create table fences (
  relation text not null,
  name text not null,
  definition text not null,
  primary key (relation, name)
);

insert into fences (relation, name, definition)
select c.relname, t.tgname, pg_get_triggerdef(t.oid, true)
from pg_trigger as t
join pg_class as c on c.oid = t.tgrelid
where t.tgname in ('moved', 'moved_in', 'moved_on', 'moved_out') and t.tgparentid = 0
  and c.relnamespace = (select relnamespace from pg_class where oid = 'tasks'::regclass);

-- Lock the tables with fences in the order in which commits write: in another one, both would often wait for each other.
create function treadle_lock_fenced(mode text) returns void language plpgsql set search_path from current as $$
begin
  execute format('lock table dedupe, runs, records, tasks, finished, log, lists, lanes, record_items, steps, mail, lines, limits,
    handler_keys, handler_registrations, flows, flow_versions, tags, streams, stream_chunks, blob_uses, idempotency_outcomes,
    llm_budgets, llm_usage in %s mode', mode);
end
$$;

drop function treadle_switch_fences(text);

-- Create the triggers of moved namespaces.
create function treadle_create_fences() returns void language plpgsql set search_path from current as $$
declare
  each fences;
begin
  for each in
    select f.*
    from fences as f
    where not exists (select from pg_trigger as t where t.tgrelid = f.relation::regclass and t.tgname = f.name)
    order by f.relation, f.name
  loop
    execute each.definition;
  end loop;
end
$$;

-- Drop the triggers of moved namespaces.
create function treadle_drop_fences() returns void language plpgsql set search_path from current as $$
declare
  each fences;
begin
  for each in select * from fences order by relation, name loop
    execute format('drop trigger if exists %I on %I', each.name, each.relation);
  end loop;
end
$$;

-- Refuse changes in a namespace that moved to the store `target`. The locks wait for transactions that began before. With the rights
-- of the owner, as only the owner may change triggers and functions.
create or replace function treadle_fence_namespace(name text, target text) returns void language plpgsql security definer as $$
begin
  perform treadle_check_writer();
  perform treadle_lock_fenced('share row exclusive');
  insert into moved_namespaces (namespace, moved_at, moved_to) values (name, treadle_now(), target)
  on conflict (namespace) do update set moved_to = excluded.moved_to;
  perform treadle_write_fences();
  perform treadle_create_fences();
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
      perform treadle_lock_fenced('access exclusive');
      perform treadle_drop_fences();
    end if;
  end if;
end
$$;

-- Functions with the rights of the owner never find temporary tables of their callers.
do $$
declare
  name text;
begin
  foreach name in array array['treadle_fence_namespace(text, text)', 'treadle_unfence_namespace(text)'] loop
    execute format('alter function %s set search_path = %I, pg_temp', name, current_schema());
  end loop;
  if not exists (select from moved_namespaces) then
    perform treadle_lock_fenced('access exclusive');
    perform treadle_drop_fences();
  end if;
end
$$;
