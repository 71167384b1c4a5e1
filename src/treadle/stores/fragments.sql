-- name: doing
-- The rank (model/activity.py) of what the live task `t` of lane `l` is doing. A parked function has stored what it waits for.
case
  when (t.hold & ~1) <> 0 then {rank:held}
  when t.owner_id is not null and t.state = 'pending' then {rank:running}
  when t.state = 'awaiting_approval' then {rank:waiting_for_approval}
  when t.state = 'awaiting_external' then {rank:waiting_for_external_job}
  when t.wake_at is not null and t.error is not null then {rank:retrying}
  when t.wake_at is not null then case t.doing
    when 'waiting_for_signal' then {rank:waiting_for_signal}
    when 'waiting_for_child' then {rank:waiting_for_child}
    when 'retrying' then {rank:retrying}
    when 'waiting_for_task' then {rank:waiting_for_task}
    else {rank:sleeping}
  end
  when t.hold <> 0 or l.paused then {rank:held}
  else {rank:waiting_for_worker}
end

-- name: run_doing
-- The rank of what the unfinished run `runs` is doing.
case when runs.state = 'paused' then {rank:held} else coalesce(
  (select min({sql:doing}) from tasks as t join lanes as l on l.id = t.lane_id where t.run_id = runs.id), {rank:stuck}
) end

-- name: sqlite_run_filter
-- The conditions of a `RunFilter` for the table `runs`.
id < coalesce(:before_id, x'')
  and +namespace = coalesce(:namespace, namespace)
  and workflow = coalesce(:workflow, workflow)
  and kind = coalesce(:kind, kind)
  and task_list = coalesce(:task_list, task_list)
  and +root_id = coalesce(:root_id, root_id)
  and created_at >= coalesce(:created_after, created_at)
  and created_at < coalesce(:created_before, created_at + 1)
  and (:flow_ids is null or flow_id in (select value from json_each(:flow_ids)))
  and (:states is null or state in (select value from json_each(:states)))
  and (:search is null
    or instr(lower(workflow), :search) > 0
    or instr(lower(coalesce(idempotency_key, '')), :search) > 0
    or instr(id, :search) = 1)
  and (:doing is null or state in ('pending', 'running', 'paused') and {sql:run_doing} = :doing)

-- name: postgres_run_filter
-- The conditions of a `RunFilter` for the table `runs`.
($1::text[] is null or state = any($1::text[]))
  and ($2::text is null or namespace = $2::text)
  and ($3::text is null or workflow = $3::text)
  and ($4::text[] is null or flow_id = any($4::text[]))
  and ($5::uuid is null or id < $5::uuid)
  and ($6::text is null or kind = $6::text)
  and ($7::text is null or task_list = $7::text)
  and ($8::uuid is null or root_id = $8::uuid)
  and ($9::bigint is null or created_at >= $9::bigint)
  and ($10::bigint is null or created_at < $10::bigint)
  and ($11::text is null
    or strpos(lower(workflow), $11::text) > 0
    or strpos(lower(idempotency_key), $11::text) > 0
    or strpos(id::text, $11::text) = 1)
  and ($12::integer is null or state in ('pending', 'running', 'paused') and {sql:run_doing} = $12::integer)
