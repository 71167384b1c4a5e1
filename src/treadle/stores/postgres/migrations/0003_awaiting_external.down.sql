-- Tasks that await a job in an external service have nothing to poll afterwards: they are pending, and start again.
drop index tasks_external;
update tasks set state = 'pending' where state = 'awaiting_external';
alter table tasks drop constraint tasks_state_check;
alter table tasks add constraint tasks_state_check check (state in ('pending', 'awaiting_approval'));
