alter table servers drop column error;
alter table servers drop column counts;
alter table servers drop column topics;
alter table servers drop column service_name;
alter table servers drop column server_group;
drop table handler_registrations;
