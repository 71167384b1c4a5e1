-- Deadlines of runs, and keys by which tasks of a lane take turns.

alter table runs add column deadline_at bigint, add column fairness_key text;
alter table tasks add column fairness_key text;
alter table finished add column fairness_key text;
create index tasks_turns on tasks (lane_id, priority, fairness_key, due_at)
  where fairness_key is not null and owner_id is null and wake_at is null;
create index tasks_turn_heads on tasks (lane_id, priority, due_at)
  where fairness_key is not null and owner_id is null and wake_at is null and (hold & ~1) = 0;
