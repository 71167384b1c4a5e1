-- name: put_outcomes
-- Insert outcomes (key, call, status, hash, response, root), or replace those that are unknown.
insert into idempotency_outcomes (idempotency_key, tool_call_id, status, response_hash, response, root_id, created_at, resolved_at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, r.value ->> 5, :now,
  iif(r.value ->> 2 = 'unknown', null, :now)
from jsonb_each(:rows) as r
where true
on conflict (idempotency_key) do update
set tool_call_id = excluded.tool_call_id, status = excluded.status, response_hash = excluded.response_hash,
  response = excluded.response, resolved_at = excluded.resolved_at
where status = 'unknown';

-- name: find_outcomes
-- What is known of effects by their keys.
select o.* from json_each(:keys) as wanted cross join idempotency_outcomes as o on o.idempotency_key = wanted.value;

-- name: count_unknown
-- How many effects of these trees nobody knows the end of.
select count(*) from json_each(:roots) as tree cross join idempotency_outcomes as o on o.root_id = tree.value where o.status = 'unknown';
