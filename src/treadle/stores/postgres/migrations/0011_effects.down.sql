drop index idempotency_outcomes_unknown;
drop index idempotency_outcomes_in_progress;
alter table idempotency_outcomes drop column unknown_at;
alter table idempotency_outcomes drop column details;
alter table idempotency_outcomes drop column task_id;
