-- name: set_budget(run_id, limit_micros) on hot
-- Set the budget of a run.
insert into llm_budgets (run_id, limit_micros, committed_micros) values ($1::uuid, $2::bigint, 0)
on conflict (run_id) do update set limit_micros = excluded.limit_micros;

-- name: forget_budget(run_id) on hot
-- Remove the budget of a run that was never created.
delete from llm_budgets where run_id = $1::uuid and committed_micros = 0;

-- name: ensure_budget(run_id, limit_micros)
-- Set the default budget of a run that has none.
insert into llm_budgets (run_id, limit_micros, committed_micros) values ($1::uuid, $2::bigint, 0) on conflict do nothing;

-- name: lock_budget(run_id)
-- Lock the budget of a run: reservations and settlements of one run are serialized.
select limit_micros, committed_micros from llm_budgets where run_id = $1::uuid for update;

-- name: find_budget(run_id)
-- Find the budget of a run.
select limit_micros, committed_micros from llm_budgets where run_id = $1::uuid;

-- name: find_request(task_id, attempt, request_no)
-- Find the row of a request.
select * from llm_usage where task_id = $1::uuid and attempt = $2::integer and request_no = $3::integer;

-- name: find_left(task_id, attempt)
-- Find a reservation that an earlier attempt left unsettled.
select *
from llm_usage
where task_id = $1::uuid and attempt < $2::integer and state = 'reserved'
order by attempt, request_no
limit 1;

-- name: spend_budget(run_id, more)
-- Commit more of the budget, if it suffices; a negative amount always succeeds.
update llm_budgets
set committed_micros = greatest(committed_micros + $2::bigint, 0)
where run_id = $1::uuid and ($2::bigint <= 0 or limit_micros is null or committed_micros + $2::bigint <= limit_micros);

-- name: insert_usage(id, run_id, step_id, task_id, attempt, request_no, model, reserved_micros)
-- Insert a reservation.
insert into llm_usage (id, run_id, step_id, task_id, attempt, request_no, model, state, reserved_micros, cost_micros,
  input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, interrupted, at)
values ($1::uuid, $2::uuid, $3::uuid, $4::uuid, $5::integer, $6::integer, $7::text, 'reserved', $8::bigint, $8::bigint,
  0, 0, 0, 0, 0, treadle_now());

-- name: take_over_request(id, attempt, request_no, model, reserved_micros)
-- Use a reservation of an earlier attempt for a request of this one.
update llm_usage
set attempt = $2::integer, request_no = $3::integer, model = $4::text, reserved_micros = $5::bigint, cost_micros = $5::bigint,
  interrupted = interrupted + 1, at = treadle_now()
where id = $1::uuid;

-- name: settle_usage(id, cost_micros, input_tokens, output_tokens, cache_write_tokens, cache_read_tokens)
-- Store the tokens and the actual cost of a request.
update llm_usage
set state = 'settled', cost_micros = $2::bigint, input_tokens = $3::bigint, output_tokens = $4::bigint,
  cache_write_tokens = $5::bigint, cache_read_tokens = $6::bigint, at = treadle_now()
where id = $1::uuid and state = 'reserved'
returning run_id::text, reserved_micros;

-- name: correct_budget(run_id, more)
-- Replace the reservation by the actual cost in the budget, even over the limit: the money is spent.
update llm_budgets set committed_micros = greatest(committed_micros + $2::bigint, 0) where run_id = $1::uuid;

-- name: list_usage(run_id)
-- List all requests of the run.
select * from llm_usage where run_id = $1::uuid order by id;
