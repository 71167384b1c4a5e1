-- The actor that enqueued a task, and the namespace of a server.

alter table finished add column created_by text;
alter table tasks add column created_by text;
alter table servers add column namespace text;
