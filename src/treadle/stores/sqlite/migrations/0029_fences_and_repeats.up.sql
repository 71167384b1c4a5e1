-- The new stores of moved namespaces, and changes that a move makes behind its fence. The store makes the triggers anew: they refuse
-- changes in all tables of a moved namespace.

alter table moved_namespaces add column moved_to text not null default '';
alter table moved_namespaces add column passing integer not null default 0;

drop trigger if exists tasks_moved_in;
drop trigger if exists tasks_moved;
drop trigger if exists finished_moved_in;
drop trigger if exists finished_moved;
drop trigger if exists runs_moved_in;
drop trigger if exists runs_moved;
drop trigger if exists records_moved_in;
drop trigger if exists records_moved;
drop trigger if exists mail_moved_in;
drop trigger if exists limits_moved_in;
drop trigger if exists limits_moved;
drop trigger if exists handler_keys_moved_in;
drop trigger if exists handler_keys_moved;
drop trigger if exists handler_registrations_moved_in;
drop trigger if exists handler_registrations_moved;
drop trigger if exists flow_versions_moved_in;
drop trigger if exists flow_versions_moved;
