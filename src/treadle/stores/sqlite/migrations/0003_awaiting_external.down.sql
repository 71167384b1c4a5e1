-- Tasks that await a job in an external service have nothing to poll afterwards: they are pending, and start again.
drop index tasks_external;
update tasks set state = 'pending' where state = 'awaiting_external';

pragma writable_schema = on;
update sqlite_schema
set sql = replace(sql, '(''pending'', ''awaiting_external'', ''awaiting_approval'')', '(''pending'', ''awaiting_approval'')')
where type = 'table' and name = 'tasks';
pragma writable_schema = reset;
