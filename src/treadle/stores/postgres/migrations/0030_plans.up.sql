-- Make plans that sessions keep independent of the statistics of empty partitions.
--
-- A partition that was vacuumed while it was empty has no rows for the planner, and all its indexes with a column cost the same; it
-- then takes the newest one. So the primary key of finished tasks is the newest index of each partition: otherwise, lookups by id
-- used the index by time of creation, which also contains ids, and read all of it for each id, until the next vacuum.

-- Create a table beside the partitions of finished tasks or of the log, with the bounds as a constraint if it has any.
create or replace function treadle_make_part(parent text, name text, lower_id uuid, upper_id uuid) returns void
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

-- Bound the first partitions, whose constraints are valid.
create or replace function treadle_open_parts(upper_id uuid) returns void language plpgsql set search_path from current as $$
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

-- PostgreSQL 18 may scan a table with a single partition although scans are disabled. So the default partitions exist from the
-- beginning, where they have no ids, because the first partitions have all.
do $$
declare
  parent text;
begin
  if to_regclass('finished_default') is null then
    foreach parent in array array['finished', 'log'] loop
      perform treadle_make_part(parent, parent || '_default', null, null);
      perform treadle_attach_part(parent, parent || '_default', null, null);
    end loop;
  end if;
  -- With rows, the index remains: to build another one would stop all workers meanwhile.
  if not exists (select from finished) then
    alter table finished drop constraint finished_key;
    for parent in select 'finished_' || part from treadle_parts() loop
      execute format('alter table %I add constraint %I primary key (id)', parent,
        case parent when 'finished_rest' then 'finished_pkey' else parent || '_pkey' end);
    end loop;
    alter table finished add constraint finished_key primary key (id);
  end if;
end
$$;

-- The locks of a fence in the order in which commits write: in another one, both would often wait for each other.
do $$
begin
  execute replace(
    pg_get_functiondef('treadle_fence_namespace(text, text)'::regprocedure),
    'lock table lists, lanes, tasks, finished, runs, records, ',
    'lock table dedupe, runs, records, tasks, finished, log, lists, lanes, '
  );
end
$$;
