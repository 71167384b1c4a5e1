-- name: take_keys
-- Let keys (namespace, key, task id, lifetime) identify their tasks, if they are new or expired.
insert into dedupe (namespace, key, task_id, expires_at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, :now + (r.value ->> 3)
from jsonb_each(:rows) as r
where true
on conflict (namespace, key) do update
set task_id = excluded.task_id, expires_at = excluded.expires_at
where dedupe.expires_at <= :now;

-- name: list_holders
-- Return the tasks that keys (namespace, key) identify, in their order.
select d.task_id
from jsonb_each(:rows) as r cross join dedupe as d on d.namespace = r.value ->> 0 and d.key = r.value ->> 1
order by r.key;

-- name: give_back
-- Delete keys (namespace, key, task id) whose task was not stored.
delete from dedupe
where (namespace, key, task_id) in (select r.value ->> 0, r.value ->> 1, r.value ->> 2 from jsonb_each(:rows) as r);

-- name: hand_over
-- Let keys (namespace, key, task id) identify another task.
update dedupe
set task_id = r.value ->> 2
from jsonb_each(:rows) as r
where dedupe.namespace = r.value ->> 0 and dedupe.key = r.value ->> 1;
