-- name: list_queues
-- List all queues.
select id, namespace, kind, task_list, name, slowed from queues order by id;

-- name: insert_queues(*rows)
-- Create missing queues with the settings of their list and their handler's limit.
insert into queues (namespace, kind, task_list, name, paused, accepting, limit_key)
select given.*, coalesce(lists.paused, false), coalesce(lists.accepting, true), limits.key
from unnest($1::text[], $2::text[], $3::text[], $4::text[]) as given (namespace, kind, task_list, name)
left join lists on lists.namespace = given.namespace and lists.task_list = given.task_list
left join limits on limits.namespace = given.namespace and given.kind = 'handler' and limits.key = 'handler:' || given.name
  and limits.by_operator
on conflict do nothing;

-- name: lock_lists
-- Serialize changes of list settings and the creation of queues, which copy them.
lock table lists in share row exclusive mode;

-- name: next_token_for(queue_ids) on hot
-- Return the milliseconds until a token arrives for those of the queues $1 that have a rate and ready tasks, and are not
-- paused. A millionth is for errors of rounding, as in model/lists.py.
select min(greatest(0, ceil((1 - 0.000001 - least(burst, tokens + rate * greatest((select treadle_now()) - tokens_at, 0) / 1000))
  * 1000 / rate)))
from queues
where slowed and rate is not null and not paused and id = any ($1::integer[])
  and exists (select from tasks where tasks.queue_id = queues.id and owner_id is null and wake_at is null and blocked_by = 0);

-- name: lock_guarded(queue_ids)
-- Lock and return those of the queues that have settings which an insert must obey.
select id, accepting, backlog_limit, limit_key
from queues
where guarded and id = any ($1::integer[])
order by id
for no key update;

-- name: count_backlog(queue_id, most)
-- Count the ready tasks of a queue, including those that a limit holds back, up to one more than the cap.
select (select count(*) from (
    select from tasks where queue_id = $1::integer and owner_id is null and wake_at is null and blocked_by = 0 limit $2::bigint
  ) as ready) + (select count(*) from (
    select from tasks where queue_id = $1::integer and owner_id is null and wake_at is null and blocked_by - 1 = 0 limit $2::bigint
  ) as held_back);
