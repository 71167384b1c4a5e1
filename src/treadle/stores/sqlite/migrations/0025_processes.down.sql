alter table servers drop column evidence;
alter table servers drop column session;
alter table servers drop column process;
