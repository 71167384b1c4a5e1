-- name: set_budget
-- Set the budget of a run.
insert into llm_budgets (run_id, limit_micros, committed_micros) values (:run_id, :limit_micros, 0)
on conflict (run_id) do update set limit_micros = excluded.limit_micros;

-- name: forget_budget
-- Remove the budget of a run that was never created.
delete from llm_budgets where run_id = :run_id and committed_micros = 0;

-- name: ensure_budget
-- Set the default budget of a run that has none.
insert into llm_budgets (run_id, limit_micros, committed_micros) values (:run_id, :limit_micros, 0) on conflict do nothing;

-- name: find_budget
-- Find the budget of a run.
select limit_micros, committed_micros from llm_budgets where run_id = :run_id;

-- name: find_request
-- Find the row of a request.
select * from llm_usage where task_id = :task_id and attempt = :attempt and request_no = :request_no;

-- name: find_left
-- Find a reservation that an earlier attempt left unsettled.
select *
from llm_usage
where task_id = :task_id and attempt < :attempt and state = 'reserved'
order by attempt, request_no
limit 1;

-- name: spend_budget
-- Commit more of the budget, if it suffices; a negative amount always succeeds.
update llm_budgets
set committed_micros = max(committed_micros + :more, 0)
where run_id = :run_id and (:more <= 0 or limit_micros is null or committed_micros + :more <= limit_micros);

-- name: insert_usage
-- Insert a reservation.
insert into llm_usage (id, run_id, step_id, task_id, attempt, request_no, model, state, reserved_micros, cost_micros,
  input_tokens, output_tokens, cache_write_tokens, cache_read_tokens, interrupted, at)
values (:id, :run_id, :step_id, :task_id, :attempt, :request_no, :model, 'reserved', :reserved_micros, :reserved_micros,
  0, 0, 0, 0, 0, :now);

-- name: take_over_request
-- Use a reservation of an earlier attempt for a request of this one.
update llm_usage
set attempt = :attempt, request_no = :request_no, model = :model, reserved_micros = :reserved_micros,
  cost_micros = :reserved_micros, interrupted = interrupted + 1, at = :now
where id = :id;

-- name: settle_usage
-- Store the tokens and the actual cost of a request.
update llm_usage
set state = 'settled', cost_micros = :cost_micros, input_tokens = :input_tokens, output_tokens = :output_tokens,
  cache_write_tokens = :cache_write_tokens, cache_read_tokens = :cache_read_tokens, at = :now
where id = :id and state = 'reserved'
returning run_id, reserved_micros;

-- name: correct_budget
-- Replace the reservation by the actual cost in the budget, even over the limit: the money is spent.
update llm_budgets set committed_micros = max(committed_micros + :more, 0) where run_id = :run_id;

-- name: list_usage
-- List all requests of the run.
select * from llm_usage where run_id = :run_id order by id;
