-- Model usage of runs: a budget for each run, and a row for each request.

create table llm_budgets (
  run_id uuid primary key not null,
  limit_micros bigint check (limit_micros >= 0),
  committed_micros bigint not null
);

create table llm_usage (
  id uuid primary key not null,
  run_id uuid not null,
  step_id uuid,
  task_id uuid not null,
  attempt integer not null,
  request_no integer not null,
  model text not null,
  state text not null check (state in ('reserved', 'settled')),
  reserved_micros bigint not null check (reserved_micros >= 0),
  cost_micros bigint not null check (cost_micros >= 0),
  input_tokens bigint not null,
  output_tokens bigint not null,
  cache_write_tokens bigint not null,
  cache_read_tokens bigint not null,
  interrupted integer not null,
  at bigint not null,
  unique (task_id, attempt, request_no)
);

create index llm_usage_run on llm_usage (run_id);

-- Pruning a run deletes its usage.
create function treadle_forget_usage() returns trigger language plpgsql as $$
begin
  delete from llm_usage where run_id = old.id;
  delete from llm_budgets where run_id = old.id;
  return null;
end
$$;

create trigger llm_usage_goes_with_its_run after delete on runs for each row execute function treadle_forget_usage();
