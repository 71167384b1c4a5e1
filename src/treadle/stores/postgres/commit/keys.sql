-- name: take_keys(*rows)
-- Let keys ($1 namespaces, $2 keys, $3 tasks, $4 lifetimes) identify their tasks, if they are new or expired.
insert into dedupe (namespace, key, task_id, expires_at)
select given.namespace, given.key, given.task_id, (select treadle_now()) + given.lifetime
from unnest($1::text[], $2::text[], $3::uuid[], $4::bigint[]) as given (namespace, key, task_id, lifetime)
on conflict (namespace, key) do update
set task_id = excluded.task_id, expires_at = excluded.expires_at
where dedupe.expires_at <= (select treadle_now());

-- name: list_holders(*rows)
-- Return the tasks that keys ($1 namespaces, $2 keys) identify, in their order.
select dedupe.task_id::text
from unnest($1::text[], $2::text[]) with ordinality as given (namespace, key, position)
join dedupe on dedupe.namespace = given.namespace and dedupe.key = given.key
order by given.position;

-- name: give_back(*rows)
-- Delete keys ($1 namespaces, $2 keys, $3 tasks) whose task was not stored.
delete from dedupe
using unnest($1::text[], $2::text[], $3::uuid[]) as given (namespace, key, task_id)
where dedupe.namespace = given.namespace and dedupe.key = given.key and dedupe.task_id = given.task_id;

-- name: hand_over(*rows)
-- Let keys ($1 namespaces, $2 keys) identify other tasks ($3).
update dedupe
set task_id = given.task_id
from unnest($1::text[], $2::text[], $3::uuid[]) as given (namespace, key, task_id)
where dedupe.namespace = given.namespace and dedupe.key = given.key;
