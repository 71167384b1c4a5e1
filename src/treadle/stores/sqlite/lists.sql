-- name: list_lists
-- The lists that something was said about.
select namespace, task_list, paused, accepting, no_handler, keep_completed_for, keep_failed_for from lists order by namespace, task_list;

-- name: set_list
-- Change what is not null of a list.
insert into lists (namespace, task_list, paused, accepting, no_handler)
values (:namespace, :task_list, coalesce(:paused, 0), coalesce(:accepting, 1), coalesce(:no_handler, 'wait'))
on conflict (namespace, task_list) do update
set paused = coalesce(:paused, paused), accepting = coalesce(:accepting, accepting), no_handler = coalesce(:no_handler, no_handler);

-- name: mark_lanes
-- Let the lanes of a list be as the list is; their ids.
update lanes
set (paused, accepting) = (select paused, accepting from lists where namespace = :namespace and task_list = :task_list)
where namespace = :namespace and task_list = :task_list
returning id;

-- name: list_lane_rules
-- All lanes and what was said about them.
select id, namespace, kind, task_list, name, paused, accepting, rate, burst, tokens, tokens_at, backlog_limit, limit_key
from lanes
order by id;

-- name: list_slowed
-- Lanes that are paused or have a rate.
select id, namespace, kind, task_list, name, paused, accepting, rate, burst, tokens, tokens_at, backlog_limit, limit_key
from lanes
where slowed;

-- name: list_rated
-- Those of the lanes that have a rate, are not paused, and have ready tasks.
select l.id, l.namespace, l.kind, l.task_list, l.name, l.paused, l.accepting, l.rate, l.burst, l.tokens, l.tokens_at,
  l.backlog_limit, l.limit_key
from lanes as l
where l.slowed and l.rate is not null and not l.paused and l.id in (select value from json_each(:lane_ids))
  and exists (select 1 from tasks as t where t.lane_id = l.id and t.owner_id is null and t.wake_at is null and t.hold = 0);

-- name: spend
-- Tokens that are left in a lane.
update lanes set tokens = :tokens, tokens_at = :now where id = :lane_id;

-- name: set_rate
-- A lane's rate; it starts with a full bucket.
update lanes set rate = :rate, burst = :burst, tokens = :burst, tokens_at = iif(:rate is null, null, :now) where id = :lane_id;

-- name: set_backlog_limit
-- A lane's cap on ready tasks.
update lanes set backlog_limit = :backlog_limit where id = :lane_id;

-- name: list_guarded
-- Lanes that new tasks cannot simply be put into.
select id, accepting, backlog_limit, limit_key from lanes where guarded;

-- name: count_backlog
-- Ready tasks of a lane, those held back by a limit among them; no more than one over the cap is counted.
select (select count(*) from (
    select 1 from tasks where lane_id = :lane_id and owner_id is null and wake_at is null and hold = 0 limit :most
  )) + (select count(*) from (
    select 1 from tasks where lane_id = :lane_id and owner_id is null and wake_at is null and hold - 1 = 0 limit :most
  ));
