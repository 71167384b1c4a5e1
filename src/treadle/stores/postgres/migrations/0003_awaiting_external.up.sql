-- Tasks may await a job in an external service: the check of their states, and an index of those that do.
alter table tasks drop constraint tasks_state_check;
alter table tasks add constraint tasks_state_check check (state in ('pending', 'awaiting_external', 'awaiting_approval'));
create index tasks_external on tasks (queue_id) where state = 'awaiting_external';
