-- name: insert_lanes
-- Create missing lanes (namespace, kind, task list, name) with the settings of their list and their handler's limit, and set the limit keys of lanes
-- whose handler has one of its own.
insert into lanes (namespace, kind, task_list, name, paused, accepting, limit_key)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, coalesce(settings.paused, 0), coalesce(settings.accepting, 1),
  m.key
from jsonb_each(:rows) as r
left join lists as settings on settings.namespace = r.value ->> 0 and settings.task_list = r.value ->> 2
left join limits as m on m.namespace = r.value ->> 0 and r.value ->> 1 = 'handler' and m.key = 'handler:' || (r.value ->> 3)
  and (m.by_operator or m.rate is not null)
where true
on conflict do nothing;
update lanes
set limit_key = {sql:sqlite_handler_key}
where kind = 'handler' and exists (select 1 from handler_keys) and limit_key is not {sql:sqlite_handler_key};

-- name: list_lanes
-- List all lanes.
select id, namespace, kind, task_list, name from lanes order by id;

-- name: list_slowed
-- List lanes that are paused or have a rate.
select id, namespace, kind, task_list, name, paused, accepting, rate, burst, tokens, tokens_at, backlog_limit, limit_key
from lanes
where slowed;

-- name: list_rated_lanes
-- List those of the lanes that have a rate and ready tasks, and are not paused.
select l.id, l.namespace, l.kind, l.task_list, l.name, l.paused, l.accepting, l.rate, l.burst, l.tokens, l.tokens_at,
  l.backlog_limit, l.limit_key
from lanes as l
where l.slowed and l.rate is not null and not l.paused and l.id in (select value from json_each(:lane_ids))
  and exists (select 1 from tasks as t where t.lane_id = l.id and t.owner_id is null and t.wake_at is null and t.hold = 0);

-- name: spend
-- Store the tokens that a lane has left.
update lanes set tokens = :tokens, tokens_at = :now where id = :lane_id;

-- name: lock_guarded
-- Return those of the lanes that have settings which an insert must obey.
select id, accepting, backlog_limit, limit_key from lanes where guarded and +id in (select value from json_each(:lane_ids));

-- name: count_backlog
-- Count the ready tasks of a lane, including those that a limit holds back, up to one more than the cap.
select (select count(*) from (
    select 1 from tasks where lane_id = :lane_id and owner_id is null and wake_at is null and hold = 0 limit :most
  )) + (select count(*) from (
    select 1 from tasks where lane_id = :lane_id and owner_id is null and wake_at is null and hold - 1 = 0 limit :most
  ));
