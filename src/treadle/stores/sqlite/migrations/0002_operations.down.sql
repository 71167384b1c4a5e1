-- Back to the bare queue: what operators said, dedupe keys and big values are lost.
drop index finished_root;
drop index tasks_root;
drop table blob_uses;
drop table blobs;
drop table dedupe;
drop index tasks_over_limit;
drop index tasks_admitted;
create index tasks_limit on tasks (limit_key, priority, due_at) where limit_key is not null;
drop table limits;
alter table lanes drop column paused;
alter table lanes drop column rate;
alter table lanes drop column burst;
alter table lanes drop column tokens;
alter table lanes drop column tokens_at;
alter table lanes drop column backlog_limit;
alter table lanes drop column limit_key;
drop table lists;
