-- Effects: the task that made them, the data of their move `tool_call.unknown`, and when they became unknown.

alter table idempotency_outcomes add column task_id uuid;
alter table idempotency_outcomes add column details text;
alter table idempotency_outcomes add column unknown_at bigint;
create index idempotency_outcomes_in_progress on idempotency_outcomes (task_id) where status = 'unknown' and unknown_at is null;
create index idempotency_outcomes_unknown on idempotency_outcomes (unknown_at, idempotency_key)
  where status = 'unknown' and unknown_at is not null;
