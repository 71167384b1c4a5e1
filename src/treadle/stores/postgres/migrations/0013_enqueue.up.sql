-- `treadle_enqueue_v1` rejects an idempotency key that was used for a different request, unless `compare` is false, and notifies
-- workers when the transaction commits, if `notify` is true.

create function treadle_repeats_v1(stored_id uuid, task_list_ text, name_ text, unique_ text, payload_ text) returns boolean
language plpgsql stable set search_path from current as $$
declare
  stored record;
begin
  select lanes.kind, lanes.task_list, lanes.name, found.unique_key, found.payload into stored
  from (
    select tasks.lane_id, tasks.unique_key, tasks.payload from tasks where tasks.id = stored_id
    union all
    select finished.lane_id, finished.unique_key, finished.payload from finished where finished.id = stored_id
  ) as found
  join lanes on lanes.id = found.lane_id;
  if not found or stored.unique_key = unique_ then
    return true;
  end if;
  if (stored.kind, stored.task_list, stored.name) <> ('handler', task_list_, name_) then
    return false;
  end if;
  if stored.payload like '@%' or payload_ like '@%' then
    return true; -- stored with a codec or in parts, which only the engine can compare
  end if;
  return stored.payload::jsonb = payload_::jsonb
    or exists (select from log where log.entity_id = stored_id and log.move = 'requeue'); -- an operator may have edited it
end
$$;

do $$
declare
  source text := pg_get_functiondef('treadle_enqueue_v1(json)'::regprocedure);
begin
  source := replace(source, $a$      'root_id')$a$, $a$      'root_id', 'compare', 'notify')$a$);
  source := replace(source, $a$  once constant text := spec ->> 'idempotency_key';
$a$, $a$  once constant text := spec ->> 'idempotency_key';
  compare constant boolean := coalesce((spec ->> 'compare')::boolean, true);
  notify constant boolean := coalesce((spec ->> 'notify')::boolean, false);
$a$);
  source := replace(source, $a$      end if;
      return found_id;
$a$, $a$      end if;
      if compare and not treadle_repeats_v1(found_id, task_list_, name_, unique_, payload_) then
        raise exception 'treadle_enqueue_v1: the idempotency key % was used for a different request, whose task is %', once, found_id
          using errcode = 'TR003';
      end if;
      return found_id;
$a$);
  source := replace(source, $a$    if found_id is not null then
      return found_id;
$a$, $a$    if found_id is not null then
      if notify and found_id = new_id and delay_for = 0 then
        perform pg_notify('treadle_' || current_schema(), lane.id::text);
      end if;
      return found_id;
$a$);
  execute source;
end
$$;
