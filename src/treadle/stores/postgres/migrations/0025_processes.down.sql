drop view servers;
alter table registered_servers drop column evidence;
alter table registered_servers drop column session;
alter table registered_servers drop column process;
alter table registered_servers rename to servers;
