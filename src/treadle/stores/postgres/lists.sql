-- name: lock_lists
-- One at a time: what is said about lists, and making lanes, which are as their list says.
lock table lists in share row exclusive mode;

-- name: list_lists
-- The lists that something was said about.
select namespace, task_list, paused, accepting, no_handler, keep_completed_for, keep_failed_for from lists order by namespace, task_list;

-- name: set_list
-- Change what is not null of a list.
insert into lists (namespace, task_list, paused, accepting, no_handler)
values ($1::text, $2::text, coalesce($3::boolean, false), coalesce($4::boolean, true), coalesce($5::text, 'wait'))
on conflict (namespace, task_list) do update
set paused = coalesce($3::boolean, lists.paused),
    accepting = coalesce($4::boolean, lists.accepting),
    no_handler = coalesce($5::text, lists.no_handler);

-- name: mark_lanes
-- Let the lanes of a list be as the list is; their ids.
with those as materialized (
  select lanes.id, lists.paused, lists.accepting
  from lanes
  join lists on lists.namespace = lanes.namespace and lists.task_list = lanes.task_list
  where lanes.namespace = $1::text and lanes.task_list = $2::text
  order by lanes.id
  for update of lanes
)
update lanes set paused = those.paused, accepting = those.accepting from those where lanes.id = those.id returning lanes.id;

-- name: list_lane_rules
-- All lanes and what was said about them.
select id, namespace, kind, task_list, name, paused, accepting, rate, burst, tokens, tokens_at, backlog_limit, limit_key
from lanes
order by id;

-- name: next_token_for
-- Milliseconds until a token comes for those of the lanes $1 that have a rate and ready tasks, and are not paused.
select min(greatest(0, ceil((1 - least(burst, tokens + rate * greatest((select treadle_now()) - tokens_at, 0) / 1000)) * 1000 / rate)))
from lanes
where slowed and rate is not null and not paused and id = any ($1::integer[])
  and exists (select from tasks where tasks.lane_id = lanes.id and owner_id is null and wake_at is null and hold = 0);

-- name: set_rate
-- A lane's rate; it starts with a full bucket.
update lanes
set rate = $2::double precision, burst = $3::integer, tokens = $3::integer,
  tokens_at = case when $2::double precision is not null then (select treadle_now()) end
where id = $1::integer;

-- name: set_backlog_limit
-- A lane's cap on ready tasks.
update lanes set backlog_limit = $2::integer where id = $1::integer;

-- name: lock_guarded
-- Those of the lanes that new tasks cannot simply be put into; nobody else puts any there until the transaction ends.
select id, accepting, backlog_limit, limit_key
from lanes
where guarded and id = any ($1::integer[])
order by id
for no key update;

-- name: count_backlog
-- Ready tasks of a lane, those held back by a limit among them; no more than one over the cap is counted.
select (select count(*) from (
    select from tasks where lane_id = $1::integer and owner_id is null and wake_at is null and hold = 0 limit $2::bigint
  ) as ready) + (select count(*) from (
    select from tasks where lane_id = $1::integer and owner_id is null and wake_at is null and hold - 1 = 0 limit $2::bigint
  ) as held_back);
