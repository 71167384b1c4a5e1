-- Partition finished tasks and the log by the time in their ids, so that retention drops tables instead of deleting rows.
--
-- The existing tables become the first partitions, `finished_rest` and `log_rest`, for all ids: this changes catalogs only and
-- reads no rows. The pruning task bounds them later, beside running workers, and adds partitions for new ids
-- (`treadle_open_parts`, `treadle_add_part`). Ids are UUIDv7, and derived ids have the time of their run, so a tree is in one
-- partition, or in few. Whatever has no partition of its own goes to a default partition.

-- The primary key keeps its name, by which older versions recognise its violation.
alter table finished rename to finished_rest;
alter index finished_seq rename to finished_rest_seq;
alter index finished_failed rename to finished_rest_failed;
alter index finished_run rename to finished_rest_run;
alter index finished_root rename to finished_rest_root;
alter index finished_created rename to finished_rest_created;
alter index finished_error rename to finished_rest_error;
alter index finished_words rename to finished_rest_words;
alter index finished_trace rename to finished_rest_trace;

create table finished (like finished_rest including defaults including constraints including storage) partition by range (id);
alter table finished add constraint finished_key primary key (id);
create index finished_seq on finished (seq);
create index finished_failed on finished (seq) include (lane_id, run_id) where state = 'failed' and fingerprint is distinct from '';
create index finished_run on finished (run_id) where run_id is not null;
create index finished_root on finished (root_id) where root_id <> id;
create index finished_created on finished (created_at, id);
create index finished_error on finished (namespace, created_at, id) where error is not null;
create index finished_words on finished using gin (treadle_words(error)) where error is not null;
create index finished_trace on finished (trace_id) where root_id = id and trace_id is not null;
alter table finished attach partition finished_rest for values from (minvalue) to (maxvalue);

-- A seq is unique in each partition, and comes from one sequence; an index of the parent would have to include the entity.
alter table log rename to log_rest;
alter index log_takeovers rename to log_rest_takeovers;
alter table log_rest rename constraint log_entity_id_version_key to log_rest_entity_id_version_key;

create table log (like log_rest including defaults including constraints including storage) partition by range (entity_id);
alter table log add constraint log_entity_id_version_key unique (entity_id, version);
create index log_takeovers on log (run_id, seq) where move = 'expire';
alter table log attach partition log_rest for values from (minvalue) to (maxvalue);

-- Rows are inserted and, at most once, deleted: no room for updates is needed on a page. Vacuum after 5 % of inserts marks pages as
-- visible to all, for counts from an index alone, and freezes them while they are in memory. Statistics give the counts by state.
alter table finished_rest set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
alter table log_rest set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05);
-- Small next to their churn: dead rows and index entries must be reclaimed before they outgrow the live ones.
alter table dedupe set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
alter table runs set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
alter table steps set (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);
alter table lines set (autovacuum_vacuum_scale_factor = 0.05);

-- The smallest id of an instant (ms).
create function treadle_first_id(at bigint) returns uuid language sql immutable parallel safe as $$
  select (lpad(to_hex(greatest(at, 0)), 12, '0') || repeat('0', 20))::uuid
$$;

-- The instant (ms) in an id.
create function treadle_id_time(id uuid) returns bigint language sql immutable parallel safe as $$
  select ('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint
$$;

-- The partitions in order, by the end of their names: bounds (null for none), and whether the constraints that repeat the bounds
-- are valid. They let bounds be changed without reading the rows.
create function treadle_parts() returns table (part text, lower_id uuid, upper_id uuid, is_default boolean, is_valid boolean)
language sql stable set search_path from current as $$
  select substr(c.relname, length('finished_') + 1),
    (regexp_match(bound, 'FROM \(''([0-9a-f-]{36})''\)'))[1]::uuid, (regexp_match(bound, 'TO \(''([0-9a-f-]{36})''\)'))[1]::uuid,
    bound = 'DEFAULT',
    (
      select count(*) = 2
      from pg_constraint as k
      where k.conrelid in (c.oid, to_regclass('log_' || substr(c.relname, length('finished_') + 1))) and k.conname = 'bounds'
        and k.convalidated
    )
  from pg_inherits as i
  join pg_class as c on c.oid = i.inhrelid
  cross join lateral (select pg_get_expr(c.relpartbound, c.oid) as bound) as shown
  where i.inhparent = 'finished'::regclass
  order by 4, 2 nulls first
$$;

-- Create a table beside the partitions of finished tasks or of the log, with the bounds as a constraint if it has any.
create function treadle_make_part(parent text, name text, lower_id uuid, upper_id uuid) returns void
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

create function treadle_bound_part(parent text, name text, lower_id uuid, upper_id uuid, validity text) returns void
language plpgsql set search_path from current as $$
declare
  key constant text := case parent when 'finished' then 'id' else 'entity_id' end;
begin
  execute format('alter table %I drop constraint if exists bounds', name);
  execute format('alter table %I add constraint bounds check (%s%I < %L) %s', name,
    case when lower_id is null then '' else format('%I >= %L and ', key, lower_id) end, key, upper_id, validity);
end
$$;

create function treadle_attach_part(parent text, name text, lower_id uuid, upper_id uuid) returns void
language plpgsql set search_path from current as $$
begin
  if upper_id is null then
    execute format('alter table %I attach partition %I default', parent, name);
  else
    execute format('alter table %I attach partition %I for values from (%s) to (%L)', parent, name,
      coalesce(quote_literal(lower_id), 'minvalue'), upper_id);
  end if;
end
$$;

-- Add a partition for the ids of a time, in both tables.
create function treadle_add_part(lower_id uuid, upper_id uuid) returns void language plpgsql set search_path from current as $$
declare
  part constant text := to_char(to_timestamp(treadle_id_time(lower_id) / 1000) at time zone 'utc', 'YYYYMMDD"_"HH24MI');
  parent text;
begin
  foreach parent in array array['finished', 'log'] loop
    perform treadle_make_part(parent, parent || '_' || part, lower_id, upper_id);
    perform treadle_attach_part(parent, parent || '_' || part, lower_id, upper_id);
  end loop;
end
$$;

-- Check the bounds of a partition; this reads all its rows beside writers.
create function treadle_validate_part(part text) returns void language plpgsql set search_path from current as $$
begin
  execute format('alter table %I validate constraint bounds', 'finished_' || part);
  execute format('alter table %I validate constraint bounds', 'log_' || part);
end
$$;

-- Bound the first partitions, whose constraints are valid, and add default partitions.
create function treadle_open_parts(upper_id uuid) returns void language plpgsql set search_path from current as $$
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

-- Roots in a range of ids whose trees may have more than a finished task and its moves.
create function treadle_mixed(lower_id uuid, upper_id uuid) returns setof uuid language sql stable rows 1000
set search_path from current as $$
  select id from tasks where id >= lower_id and id < upper_id
  union select root_id from tasks where root_id >= lower_id and root_id < upper_id and root_id <> id
  union select root_id from finished where root_id >= lower_id and root_id < upper_id and root_id <> id
  union select id from runs where id >= lower_id and id < upper_id
  union select root_id from runs where root_id >= lower_id and root_id < upper_id and root_id <> id
  union select task_id from lines where task_id >= lower_id and task_id < upper_id
  union select owner_id from tags where owner_id >= lower_id and owner_id < upper_id
  union select root_id from idempotency_outcomes where root_id >= lower_id and root_id < upper_id
  union select root_id from streams where root_id >= lower_id and root_id < upper_id
  union select root_id from blob_uses where root_id >= lower_id and root_id < upper_id
  union select root_id from records where root_id >= lower_id and root_id < upper_id
$$;

-- Drop a partition with its expired single tasks of the namespace; the rest of its rows are copied first, and stay. Returns the
-- number of removed tasks and moves; nulls if more than half of the tasks would stay, or if something changed meanwhile.
--
-- The copy is made without a lock that others would wait for. Then both tables are locked for some milliseconds: this waits for
-- all transactions that use them, gives up after half a second, and checks that no row was added, changed or removed since. Rows
-- that are added have a recent time, because transactions last seconds.
create function treadle_drop_part(part text, namespace_ text, completed_for bigint, failed_for bigint, out tasks bigint,
  out moves bigint)
language plpgsql set search_path from current as $$
declare
  now_at constant bigint := treadle_now();
  old constant text := 'finished_' || part;
  new constant text := 'finished_' || part || '_new';
  old_log constant text := 'log_' || part;
  new_log constant text := 'log_' || part || '_new';
  lower_ uuid;
  upper_ uuid;
  before record;
  kept bigint;
  kept_moves bigint;
  all_tasks bigint;
  all_moves bigint;
  unchanged boolean;
begin
  select p.lower_id, p.upper_id into strict lower_, upper_ from treadle_parts() as p where p.part = treadle_drop_part.part;
  execute format('select count(*) from %I', old) into all_tasks;
  create temporary table treadle_kept (id uuid primary key, mark text not null) on commit drop;
  execute format($sql$
    insert into treadle_kept
    select f.id, f.xmin::text
    from %I as f
    join lanes on lanes.id = f.lane_id
    left join lists on lists.namespace = lanes.namespace and lists.task_list = lanes.task_list
    where f.namespace <> $1 or f.root_id <> f.id or f.run_id is not null
      or f.finished_at > $2 - case when f.state = 'failed' then coalesce(lists.keep_failed_for, $4)
        else coalesce(lists.keep_completed_for, $3) end
      or f.id in (select treadle_mixed($5, $6))
    $sql$, old) using namespace_, now_at, completed_for, failed_for, lower_, upper_;
  get diagnostics kept = row_count;
  if kept * 2 > all_tasks then
    drop table treadle_kept;
    return;
  end if;
  analyze treadle_kept;
  execute format('select count(*) from %I', old_log) into all_moves;
  perform treadle_make_part('finished', new, lower_, upper_), treadle_make_part('log', new_log, lower_, upper_);
  execute format('insert into %I select o.* from treadle_kept as k join %I as o on o.id = k.id and o.xmin::text = k.mark', new, old);
  execute format('insert into %I select o.* from %I as o where not exists (select from %I as f where f.id = o.entity_id)
    or exists (select from treadle_kept as k where k.id = o.entity_id)', new_log, old_log, old);
  get diagnostics kept_moves = row_count;

  perform set_config('lock_timeout', '500ms', true);
  lock table only finished, only log in access exclusive mode;
  execute format($sql$
    select not exists (select from (select finished_at from %1$I order by seq desc limit 1000) as f where finished_at > $1 - 60000)
      and not exists (select from (select at from %3$I order by seq desc limit 1000) as l where at > $1 - 60000)
      and $2 = (select count(*) from treadle_kept as k join %1$I as o on o.id = k.id and o.xmin::text = k.mark)
      and $2 = (select count(*) from %2$I)
      and $3 = (select count(*) from %4$I as n join %3$I as o on o.seq = n.seq)
      and not exists (
        select
        from treadle_mixed($4, $5) as m (id)
        where exists (select from %1$I as o where o.id = m.id) and not exists (select from treadle_kept as k where k.id = m.id)
      )
    $sql$, old, new, old_log, new_log) into unchanged using now_at, kept, kept_moves, lower_, upper_;
  if not unchanged then
    execute format('drop table %I, %I, treadle_kept', new, new_log);
    return;
  end if;
  select p.* into before from treadle_parts() as p where p.upper_id = lower_;
  perform treadle_replace_part('finished', old, new, lower_, upper_, before.part, before.lower_id, kept <= 20000 and before.is_valid),
    treadle_replace_part('log', old_log, new_log, lower_, upper_, before.part, before.lower_id, kept <= 20000 and before.is_valid);
  drop table treadle_kept;
  tasks := all_tasks - kept;
  moves := all_moves - kept_moves;
end
$$;

-- Put a new table in the place of a partition; if `merged`, give its rows and ids to the partition before.
create function treadle_replace_part(parent text, old text, new text, lower_ uuid, upper_ uuid, before text, before_lower uuid,
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
