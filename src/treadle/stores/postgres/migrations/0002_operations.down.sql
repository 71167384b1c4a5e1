-- Back to the bare queue: what operators said, dedupe keys and big values are lost.
drop function treadle_enqueue_v1(json);
drop function treadle_new_id();
drop index finished_root;
drop index tasks_root;
drop table blob_uses;
drop table blobs;
drop table dedupe;
drop index tasks_over_limit_lane;
drop index tasks_over_limit;
drop index tasks_admitted;
create index tasks_limit on tasks (limit_key, priority, due_at) where limit_key is not null;
drop table limits;
alter table lanes
  drop column guarded, drop column slowed, drop column paused, drop column accepting, drop column rate, drop column burst,
  drop column tokens, drop column tokens_at, drop column backlog_limit, drop column limit_key;
drop table lists;
