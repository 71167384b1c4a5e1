-- name: put_outcomes
-- Insert outcomes, or replace those that are unknown.
insert into idempotency_outcomes (idempotency_key, tool_call_id, status, response_hash, response, root_id, created_at, resolved_at)
select given.*, (select treadle_now()), case when given.status <> 'unknown' then (select treadle_now()) end
from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::uuid[])
  as given (idempotency_key, tool_call_id, status, response_hash, response, root_id)
on conflict (idempotency_key) do update
set tool_call_id = excluded.tool_call_id, status = excluded.status, response_hash = excluded.response_hash,
  response = excluded.response, resolved_at = excluded.resolved_at
where idempotency_outcomes.status = 'unknown';

-- name: find_outcomes
-- What is known of effects by their keys.
select idempotency_outcomes.*
from unnest($1::text[]) as wanted (key)
join idempotency_outcomes on idempotency_outcomes.idempotency_key = wanted.key;

-- name: count_unknown
-- How many effects of these trees nobody knows the end of.
select count(*) from idempotency_outcomes where root_id = any($1::uuid[]) and status = 'unknown';
