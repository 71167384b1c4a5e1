-- Tasks may await a job in an external service: the check of their states, and an index of those that do.
-- SQLite changes no check; the stored text of the table is replaced instead, as its documentation describes. No row has to be read,
-- because the new check allows more.
pragma writable_schema = on;
update sqlite_schema
set sql = replace(sql, '(''pending'', ''awaiting_approval'')', '(''pending'', ''awaiting_external'', ''awaiting_approval'')')
where type = 'table' and name = 'tasks';
pragma writable_schema = reset;

create index tasks_external on tasks (queue_id) where state = 'awaiting_external';
