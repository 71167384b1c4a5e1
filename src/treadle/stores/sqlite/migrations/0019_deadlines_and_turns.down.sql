-- Forget deadlines and turns; running deadlines no longer end their runs.

delete from tasks where lane_id in (select id from lanes where kind = 'engine.deadline');
drop index tasks_turn_heads;
drop index tasks_turns;
alter table finished drop column fairness_key;
alter table tasks drop column fairness_key;
alter table runs drop column fairness_key;
alter table runs drop column deadline_at;
