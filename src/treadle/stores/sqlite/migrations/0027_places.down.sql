alter table servers drop column namespace;
alter table finished drop column created_by;
alter table tasks drop column created_by;
