-- Operation of the queue: lists, rates, limits, deduplication, large values, and pruning of whole trees.

-- Settings of a list; a list without a row has the defaults.
create table lists (
  namespace text not null,
  task_list text not null,
  paused integer not null default 0,
  accepting integer not null default 1,
  no_handler text not null default 'wait' check (no_handler in ('wait', 'ignore')),
  keep_completed_for integer,
  keep_failed_for integer,
  primary key (namespace, task_list)
) strict;

-- `paused` and `accepting` are those of the list, kept here so that claims and inserts read one row; `limit_key` is given to
-- tasks that have none. A claim looks closer at slowed lanes, an insert at guarded ones: most often there are none.
alter table lanes add column paused integer not null default 0;
alter table lanes add column accepting integer not null default 1;
alter table lanes add column rate real check (rate > 0);
alter table lanes add column burst integer check (burst > 0);
alter table lanes add column tokens real;
alter table lanes add column tokens_at integer;
alter table lanes add column backlog_limit integer check (backlog_limit > 0);
alter table lanes add column limit_key text;
alter table lanes add column slowed integer generated always as (paused or rate is not null) virtual;
alter table lanes add column guarded integer generated always as
  (not accepting or backlog_limit is not null or limit_key is not null) virtual;
create index lanes_slowed on lanes (id) where slowed;
create index lanes_guarded on lanes (id) where guarded;

-- How many tasks with the key may be admitted at once. Admitted are those whose over-limit bit (1) is clear.
create table limits (
  namespace text not null,
  key text not null,
  max_running integer not null check (max_running > 0),
  by_operator integer not null,
  primary key (namespace, key)
) strict;

drop index tasks_limit;
create index tasks_admitted on tasks (namespace, limit_key) where limit_key is not null and (hold & 1) = 0;
create index tasks_over_limit on tasks (namespace, limit_key, priority, due_at, id)
  where limit_key is not null and hold = 1 and owner_id is null and wake_at is null;
-- Written so that no query is taken to mean this one by mistake, which would then sort all that waits for any key.
create index tasks_over_limit_lane on tasks (lane_id) where hold - 1 = 0 and owner_id is null and wake_at is null;

-- The task that an idempotency key identifies; the key has its own lifetime and may outlive the task.
create table dedupe (
  namespace text not null,
  key text not null,
  task_id text not null,
  expires_at integer not null,
  primary key (namespace, key)
) strict;
create index dedupe_expires on dedupe (expires_at);

-- Values over 8 KiB, once each; a value lives as long as a tree that uses it.
create table blobs (
  digest text primary key not null,
  value text not null
) strict;
create table blob_uses (
  root_id text not null,
  digest text not null references blobs (digest),
  primary key (root_id, digest)
) strict;
create index blob_uses_digest on blob_uses (digest);

-- Members of a tree other than its root.
create index tasks_root on tasks (root_id) where root_id <> id;
create index finished_root on finished (root_id) where root_id <> id;
