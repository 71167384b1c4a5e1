-- name: activity
-- The rank (`model/runs.py`) of the activity of the live task `t` of queue `l`. A suspended function has stored what it waits for.
case
  when (t.blocked_by & ~1) <> 0 then {rank:blocked}
  when t.owner_id is not null and t.state = 'pending' then {rank:running}
  when t.state = 'awaiting_approval' then {rank:waiting_for_approval}
  when t.state = 'awaiting_external' then {rank:waiting_for_external_job}
  when t.wake_at is not null and t.error is not null then {rank:retrying}
  when t.wake_at is not null then case t.activity
    when 'waiting_for_signal' then {rank:waiting_for_signal}
    when 'waiting_for_child' then {rank:waiting_for_child}
    when 'retrying' then {rank:retrying}
    when 'waiting_for_task' then {rank:waiting_for_task}
    else {rank:sleeping}
  end
  when t.blocked_by <> 0 or l.paused then {rank:blocked}
  else {rank:waiting_for_worker}
end

-- name: run_activity
-- The rank of the activity of the unfinished run `runs`.
case when runs.state = 'paused' then {rank:blocked} else coalesce(
  (select min({sql:activity}) from tasks as t join queues as l on l.id = t.queue_id where t.run_id = runs.id), {rank:stuck}
) end

-- name: sqlite_run_filter
-- The conditions of a `RunFilter` for the table `runs`.
(created_at, id) < (:before_at, :before_id)
  and +namespace = coalesce(:namespace, namespace)
  and workflow = coalesce(:workflow, workflow)
  and kind = coalesce(:kind, kind)
  and task_list = coalesce(:task_list, task_list)
  and +root_id = coalesce(:root_id, root_id)
  and created_at >= :created_after
  and +created_at < :created_before
  and (:flow_ids is null or flow_id in (select value from json_each(:flow_ids)))
  and (:states is null or state in (select value from json_each(:states)))
  and (:search is null
    or instr(lower(workflow), :search) > 0
    or instr(lower(coalesce(idempotency_key, '')), :search) > 0
    or instr(id, :search) = 1)
  and (:activity is null or state in ('pending', 'running', 'paused') and {sql:run_activity} = :activity)

-- name: postgres_run_filter
-- The conditions of a `RunFilter` for the table `runs`.
($1::text[] is null or state = any($1::text[]))
  and ($2::text is null or namespace = $2::text)
  and ($3::text is null or workflow = $3::text)
  and ($4::text[] is null or flow_id = any($4::text[]))
  and (created_at, id) < ($13::bigint, $5::uuid)
  and ($6::text is null or kind = $6::text)
  and ($7::text is null or task_list = $7::text)
  and ($8::uuid is null or root_id = $8::uuid)
  and created_at >= $9::bigint
  and created_at < $10::bigint
  and ($11::text is null
    or strpos(lower(workflow), $11::text) > 0
    or strpos(lower(idempotency_key), $11::text) > 0
    or strpos(id::text, $11::text) = 1)
  and ($12::integer is null or state in ('pending', 'running', 'paused') and {sql:run_activity} = $12::integer)

-- name: postgres_queue_filter
-- The queues of a `TaskFilter`.
select id
from queues
where ($2::text is null or namespace = $2::text) and ($3::text is null or kind = $3::text)
  and ($4::text is null or task_list = $4::text) and ($5::text is null or name = $5::text)

-- name: postgres_live_filter
-- The conditions of a `TaskFilter` for the table `tasks`. (`coalesce` prevents a join, which would change the order of rows.)
($1::text[] is null
    or case when blocked_by & ~1 <> 0 then 'paused' when owner_id is not null and state = 'pending' then 'running' else state end
      = any ($1::text[]))
  and (coalesce($2, $3, $4, $5) is null or queue_id in (select id from wanted))
  and (not $6::boolean or owner_id is not null)

-- name: postgres_finished_filter
-- The conditions of a `TaskFilter` for the table `finished`.
($1::text[] is null or state = any ($1::text[]))
  and (coalesce($2, $3, $4, $5) is null or queue_id in (select id from wanted))
  and not $6::boolean

-- name: sqlite_handler_key
-- The limit key of the handler of `queues`: its own (by full or short name), or that of its limit, or null.
coalesce(
  (
    select h.key
    from handler_keys as h
    where h.namespace = queues.namespace
      and (h.name = queues.name or (instr(h.name, '.') = 0 and substr(queues.name, -length(h.name) - 1) = '.' || h.name))
    order by length(h.name) desc
    limit 1
  ),
  (
    select m.key
    from limits as m
    where m.namespace = queues.namespace and m.key = 'handler:' || queues.name and (m.by_operator or m.rate is not null)
  )
)

-- name: sqlite_named
-- Whether `queues` belongs to the handler :name, by its full or its short name.
queues.namespace = :namespace and queues.kind = 'handler'
  and (queues.name = :name or (instr(:name, '.') = 0 and substr(queues.name, -length(:name) - 1) = '.' || :name))

-- name: postgres_handler_key
-- The limit key of the handler of `queues`: its own (by full or short name), or that of its limit, or null.
coalesce(
  (
    select h.key
    from handler_keys as h
    where h.namespace = queues.namespace
      and (h.name = queues.name or (strpos(h.name, '.') = 0 and right(queues.name, length(h.name) + 1) = '.' || h.name))
    order by length(h.name) desc
    limit 1
  ),
  (
    select m.key
    from limits as m
    where m.namespace = queues.namespace and m.key = 'handler:' || queues.name and (m.by_operator or m.rate is not null)
  )
)

-- name: postgres_named
-- Whether `queues` belongs to the handler $2, by its full or its short name.
queues.namespace = $1::text and queues.kind = 'handler'
  and (queues.name = $2::text or (strpos($2::text, '.') = 0 and right(queues.name, length($2::text) + 1) = '.' || $2::text))

-- name: sqlite_room
-- The number of tasks that the limit `m` lets start now, negative if too many are admitted; each unclaimed one reserves a token.
min(
  coalesce(m.max_running - (
    select count(*) from tasks as a where a.namespace = m.namespace and a.limit_key = m.key and (a.blocked_by & 1) = 0
  ) - (
    select count(*)
    from limit_slots as s cross join tasks as a on a.id = s.task_id
    where s.namespace = m.namespace and s.key = m.key and (a.blocked_by & 1) = 0 and a.limit_key <> s.key
  ), 1000000000),
  coalesce(cast(min(m.burst, m.tokens + m.rate * max(:now - m.tokens_at, 0) / 1000.0) + 0.000001 as integer) - (
    select count(*)
    from tasks as a
    where a.namespace = m.namespace and a.limit_key = m.key and (a.blocked_by & 1) = 0 and a.owner_id is null
  ) - (
    select count(*)
    from limit_slots as s cross join tasks as a on a.id = s.task_id
    where s.namespace = m.namespace and s.key = m.key and (a.blocked_by & 1) = 0 and a.limit_key <> s.key and a.owner_id is null
  ), 1000000000)
)

-- name: postgres_room
-- The number of tasks that the limit lets start now, negative if too many are admitted; each unclaimed one reserves a token.
least(
  limits.max_running - (
    select count(*)
    from tasks
    where tasks.namespace = limits.namespace and tasks.limit_key = limits.key and tasks.limit_key is not null and (blocked_by & 1) = 0
  ) - {sql:postgres_slots},
  case when limits.rate is not null then
    floor(least(limits.burst, limits.tokens + limits.rate * greatest((select treadle_now()) - limits.tokens_at, 0) / 1000) +
      0.000001)::bigint
    - (
      select count(*)
      from tasks
      where tasks.namespace = limits.namespace and tasks.limit_key = limits.key and tasks.limit_key is not null and (blocked_by & 1) = 0
        and owner_id is null
    ) - {sql:postgres_unclaimed_slots}
  end
)

-- name: postgres_slots
-- The number of admitted tasks that wait for none of `limits`, and count under it too. (The inner query has no other index than
-- the primary key: a join planned on small tables reads all admitted tasks for each slot.)
(
  select count(*)
  from limit_slots as slots
  where slots.namespace = limits.namespace and slots.key = limits.key
    and (select (tasks.blocked_by & 1) = 0 and tasks.limit_key <> slots.key from tasks where tasks.id = any (array[slots.task_id]))
)

-- name: postgres_unclaimed_slots
-- The number of those that no worker has claimed.
(
  select count(*)
  from limit_slots as slots
  where slots.namespace = limits.namespace and slots.key = limits.key and (
    select (tasks.blocked_by & 1) = 0 and tasks.limit_key <> slots.key and tasks.owner_id is null
    from tasks
    where tasks.id = any (array[slots.task_id])
  )
)

-- name: charged
-- Take the tokens of the tasks in `taken` from their keys, whose rows are locked in order.
charged as (
  update limits
  set tokens = least(limits.burst, limits.tokens + limits.rate * greatest((select treadle_now()) - limits.tokens_at, 0) / 1000)
        - used.count,
      tokens_at = greatest(limits.tokens_at, (select treadle_now()))
  from (
    select rated.namespace, rated.key, counted.count
    from (
      select namespace, key, count(*) as count
      from taken
      cross join lateral unnest(string_to_array(limit_key, chr(10))) as one (key)
      where limit_key is not null
      group by namespace, key
    ) as counted
    join limits as rated on rated.namespace = counted.namespace and rated.key = counted.key and rated.rate is not null
    order by rated.namespace, rated.key
    for update of rated
  ) as used
  where limits.namespace = used.namespace and limits.key = used.key
)

-- name: sqlite_task_filter
-- The conditions of a `TaskFilter` for the views `live` and `ended`.
(created_at, id) < (:before_at, :before_id)
        and namespace = coalesce(:namespace, namespace)
        and kind = coalesce(:kind, kind)
        and task_list = coalesce(:task_list, task_list)
        and name = coalesce(:name, name)
        and (:states is null or shown_state in (select value from json_each(:states)))

-- name: sqlite_first_seq
-- The first of the seqs that a statement has taken for its rows.
(select value - json_array_length(:rows) + 1 from seqs where name = 'transition')

-- name: to_cancel
-- The live tasks of the run to cancel; with an inbox, those that are not in progress.
run_id = :run_id and (:inbox is null or (step_id is not null and (state = 'awaiting_approval'
    or (owner_id is null and state = 'pending' and (claim_version = 0 or failures > 0)))))
