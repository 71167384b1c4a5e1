-- name: insert_queues
-- Create missing queues (namespace, kind, task list, name) with the settings of their list and their handler's limit, and set the
-- limit keys of queues whose handler has one of its own.
insert into queues (namespace, kind, task_list, name, paused, accepting, limit_key)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, coalesce(settings.paused, 0), coalesce(settings.accepting, 1),
  m.key
from jsonb_each(:rows) as r
left join lists as settings on settings.namespace = r.value ->> 0 and settings.task_list = r.value ->> 2
left join limits as m on m.namespace = r.value ->> 0 and r.value ->> 1 = 'handler' and m.key = 'handler:' || (r.value ->> 3)
  and (m.by_operator or m.rate is not null)
where true
on conflict do nothing;
update queues
set limit_key = {sql:sqlite_handler_key}
where kind = 'handler' and exists (select 1 from handler_keys) and limit_key is not {sql:sqlite_handler_key};

-- name: list_queues
-- List all queues.
select id, namespace, kind, task_list, name from queues order by id;

-- name: list_slowed
-- List queues that are paused or have a rate.
select id, namespace, kind, task_list, name, paused, accepting, rate, burst, tokens, tokens_at, backlog_limit, limit_key
from queues
where slowed;

-- name: list_rated_queues
-- List those of the queues that have a rate and ready tasks, and are not paused.
select l.id, l.namespace, l.kind, l.task_list, l.name, l.paused, l.accepting, l.rate, l.burst, l.tokens, l.tokens_at,
  l.backlog_limit, l.limit_key
from queues as l
where l.slowed and l.rate is not null and not l.paused and l.id in (select value from json_each(:queue_ids))
  and exists (select 1 from tasks as t where t.queue_id = l.id and t.owner_id is null and t.wake_at is null and t.blocked_by = 0);

-- name: spend
-- Store the tokens that a queue has left.
update queues set tokens = :tokens, tokens_at = :now where id = :queue_id;

-- name: lock_guarded
-- Return those of the queues that have settings which an insert must obey.
select id, accepting, backlog_limit, limit_key from queues where guarded and +id in (select value from json_each(:queue_ids));

-- name: count_backlog
-- Count the ready tasks of a queue, including those that a limit holds back, up to one more than the cap.
select (select count(*) from (
    select 1 from tasks where queue_id = :queue_id and owner_id is null and wake_at is null and blocked_by = 0 limit :most
  )) + (select count(*) from (
    select 1 from tasks where queue_id = :queue_id and owner_id is null and wake_at is null and blocked_by - 1 = 0 limit :most
  ));
