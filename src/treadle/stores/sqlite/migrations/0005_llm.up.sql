-- Model usage of runs: a budget for each run, and a row for each request.

create table llm_budgets (
  run_id text primary key not null,
  limit_micros integer check (limit_micros >= 0),
  committed_micros integer not null
) strict;

create table llm_usage (
  id text primary key not null,
  run_id text not null,
  step_id text,
  task_id text not null,
  attempt integer not null,
  request_no integer not null,
  model text not null,
  state text not null check (state in ('reserved', 'settled')),
  reserved_micros integer not null check (reserved_micros >= 0),
  cost_micros integer not null check (cost_micros >= 0),
  input_tokens integer not null,
  output_tokens integer not null,
  cache_write_tokens integer not null,
  cache_read_tokens integer not null,
  interrupted integer not null,
  at integer not null,
  unique (task_id, attempt, request_no)
) strict;

create index llm_usage_run on llm_usage (run_id);

-- Pruning a run deletes its usage.
create trigger llm_usage_goes_with_its_run after delete on runs begin
  delete from llm_usage where run_id = old.id;
  delete from llm_budgets where run_id = old.id;
end;
