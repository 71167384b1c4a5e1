do $$
declare
  source text := pg_get_functiondef('treadle_enqueue_v1(json)'::regprocedure);
begin
  source := replace(source, $a$      'root_id', 'compare', 'notify')$a$, $a$      'root_id')$a$);
  source := replace(source, $a$  compare constant boolean := coalesce((spec ->> 'compare')::boolean, true);
  notify constant boolean := coalesce((spec ->> 'notify')::boolean, false);
$a$, '');
  source := replace(source, $a$      if compare and not treadle_repeats_v1(found_id, task_list_, name_, unique_, payload_) then
        raise exception 'treadle_enqueue_v1: the idempotency key % was used for a different request, whose task is %', once, found_id
          using errcode = 'TR003';
      end if;
$a$, '');
  source := replace(source, $a$      if notify and found_id = new_id and delay_for = 0 then
        perform pg_notify('treadle_' || current_schema(), lane.id::text);
      end if;
$a$, '');
  execute source;
end
$$;

drop function treadle_repeats_v1(uuid, text, text, text, text);
