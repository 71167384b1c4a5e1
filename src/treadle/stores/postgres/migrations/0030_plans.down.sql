do $$
begin
  execute replace(
    pg_get_functiondef('treadle_fence_namespace(text, text)'::regprocedure),
    'lock table dedupe, runs, records, tasks, finished, log, lists, lanes, ',
    'lock table lists, lanes, tasks, finished, runs, records, '
  );
end
$$;

create or replace function treadle_make_part(parent text, name text, lower_id uuid, upper_id uuid) returns void
language plpgsql set search_path from current as $$
begin
  execute format('create table %I (like %I including defaults including constraints including storage including indexes)
    with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
      autovacuum_analyze_scale_factor = 0.05)', name, parent);
  if parent = 'finished' then
    execute format('alter table %I set (autovacuum_vacuum_cost_delay = 0)', name);
  else
    execute format('alter table %I add primary key (seq)', name);
  end if;
  if upper_id is not null then
    perform treadle_bound_part(parent, name, lower_id, upper_id, '');
  end if;
end
$$;

-- Bound the first partitions, whose constraints are valid, and add default partitions.
create or replace function treadle_open_parts(upper_id uuid) returns void language plpgsql set search_path from current as $$
declare
  parent text;
begin
  lock table only finished, only log in access exclusive mode;
  foreach parent in array array['finished', 'log'] loop
    execute format('alter table %I detach partition %I', parent, parent || '_rest');
    perform treadle_attach_part(parent, parent || '_rest', null, upper_id);
    perform treadle_make_part(parent, parent || '_default', null, null);
    perform treadle_attach_part(parent, parent || '_default', null, null);
  end loop;
end
$$;

do $$
begin
  if (select upper_id is null from treadle_parts() where part = 'rest') then
    drop table finished_default, log_default;
  end if;
end
$$;
