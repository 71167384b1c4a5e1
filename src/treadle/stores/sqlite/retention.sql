-- name: find_newest_prunable
-- Return the latest end that may be pruned.
select :now - min(:keep_completed_for, :keep_failed_for,
  coalesce(min(keep_completed_for), :keep_completed_for), coalesce(min(keep_failed_for), :keep_failed_for))
from lists
where namespace = :namespace;

-- name: find_window
-- Read the next ends in order of seq: the last seq, their number, the time of the last end, and the trees of expired ends.
select max(seq), count(*), finished_at, json_group_array(distinct root_id) filter (where expired)
from (
  select f.seq, f.finished_at, f.root_id,
    f.namespace = :namespace and f.finished_at <= :now - iif(f.state = 'failed',
      coalesce(k.keep_failed_for, :keep_failed_for), coalesce(k.keep_completed_for, :keep_completed_for)) as expired
  from finished as f
    cross join queues as l on l.id = f.queue_id
    left join lists as k on k.namespace = l.namespace and k.task_list = l.task_list
  where f.seq > :after_seq
  order by f.seq
  limit :limit
);

-- name: find_runs_window
-- Read the next runs in order of id: the last id, their number, and the trees of expired runs without a finished task. (`+` leaves
-- only the index by id: others would read all runs of the namespace.)
select max(id), count(*), json_group_array(distinct root_id) filter (where expired)
from (
  select r.id, r.root_id,
    r.finished_at is not null
    and r.finished_at <= :now - iif(r.state = 'failed',
      coalesce(k.keep_failed_for, :keep_failed_for), coalesce(k.keep_completed_for, :keep_completed_for))
    and not exists (select 1 from finished as f where f.id = r.root_id)
    and not exists (select 1 from finished as f where f.root_id = r.root_id and f.root_id <> f.id) as expired
  from runs as r left join lists as k on k.namespace = r.namespace and k.task_list = r.task_list
  where +r.namespace = :namespace and r.id > :after_id and r.id < :until_id
  order by r.id
  limit :limit
);

-- name: list_prunable
-- List those of the trees that have no live task, no unfinished run, and nothing to keep.
select w.value
from json_each(:roots) as w
where not exists (select 1 from tasks as t where t.id = w.value)
  and not exists (select 1 from tasks as t where t.root_id = w.value and t.root_id <> t.id)
  and not exists (
    select 1
    from finished as f
      cross join queues as l on l.id = f.queue_id
      left join lists as k on k.namespace = l.namespace and k.task_list = l.task_list
    where f.id = w.value
      and f.finished_at > :now - iif(f.state = 'failed',
        coalesce(k.keep_failed_for, :keep_failed_for), coalesce(k.keep_completed_for, :keep_completed_for))
  )
  and not exists (
    select 1
    from finished as f
      cross join queues as l on l.id = f.queue_id
      left join lists as k on k.namespace = l.namespace and k.task_list = l.task_list
    where f.root_id = w.value and f.root_id <> f.id
      and f.finished_at > :now - iif(f.state = 'failed',
        coalesce(k.keep_failed_for, :keep_failed_for), coalesce(k.keep_completed_for, :keep_completed_for))
  )
  and not exists (
    select 1
    from runs as r left join lists as k on k.namespace = r.namespace and k.task_list = r.task_list
    where r.id = w.value
      and (r.finished_at is null or r.finished_at > :now - iif(r.state = 'failed',
        coalesce(k.keep_failed_for, :keep_failed_for), coalesce(k.keep_completed_for, :keep_completed_for)))
  )
  and not exists (
    select 1
    from runs as r left join lists as k on k.namespace = r.namespace and k.task_list = r.task_list
    where r.root_id = w.value and r.root_id <> r.id
      and (r.finished_at is null or r.finished_at > :now - iif(r.state = 'failed',
        coalesce(k.keep_failed_for, :keep_failed_for), coalesce(k.keep_completed_for, :keep_completed_for)))
  );

-- name: count_members
-- Count the trees whose first end is after a seq, and all their ends after it and up to another.
select
  (
    select count(*)
    from json_each(:roots) as w
    where :after_seq < min(
      coalesce((select f.seq from finished as f where f.id = w.value), 9223372036854775807),
      coalesce((select min(f.seq) from finished as f where f.root_id = w.value and f.root_id <> f.id), 9223372036854775807)
    )
  ),
  (
    select count(*)
    from json_each(:roots) as w cross join finished as f on f.id = w.value
    where f.seq > :after_seq and f.seq <= :until_seq
  ) + (
    select count(*)
    from json_each(:roots) as w cross join finished as f on f.root_id = w.value and f.root_id <> f.id
    where f.seq > :after_seq and f.seq <= :until_seq
  );

-- name: lock_members
-- List finished tasks of the trees, with their trees.
select f.id, f.root_id from json_each(:roots) as w cross join finished as f on f.id = w.value
union all
select f.id, f.root_id from json_each(:roots) as w cross join finished as f on f.root_id = w.value and f.root_id <> f.id
limit :limit;

-- name: lock_tree_runs
-- List runs of the trees, with their trees.
select r.id, r.root_id from json_each(:roots) as w cross join runs as r on r.id = w.value
union all
select r.id, r.root_id from json_each(:roots) as w cross join runs as r on r.root_id = w.value and r.root_id <> r.id;

-- name: list_tree_steps
-- List steps of runs.
select s.id from json_each(:ids) as w cross join steps as s on s.run_id = w.value limit :limit;

-- name: delete_lines
-- Delete lines of tasks and steps.
delete from lines
where id in (select l.id from json_each(:ids) as w cross join lines as l on l.task_id = w.value limit :limit);

-- name: delete_log
-- Delete transitions of entities.
delete from log where entity_id in (select value from json_each(:ids));

-- name: delete_finished
-- Delete finished tasks.
delete from finished where id in (select value from json_each(:ids));

-- name: delete_tags
-- Delete the tags of finished tasks; a run's go with it.
delete from tags where owner_id in (select value from json_each(:ids));

-- name: delete_steps
-- Delete steps.
delete from steps where id in (select value from json_each(:ids));

-- name: delete_runs
-- Delete runs.
delete from runs where id in (select value from json_each(:ids));

-- name: lock_tree_records
-- List records of the trees.
select r.id from json_each(:ids) as w cross join records as r on r.root_id = w.value limit :limit;

-- name: delete_records
-- Delete records, and with them their items.
delete from records where id in (select value from json_each(:ids));

-- name: delete_outcomes
-- Delete outcomes of the trees' effects.
delete from idempotency_outcomes
where rowid in (
  select o.rowid from json_each(:ids) as w cross join idempotency_outcomes as o on o.root_id = w.value limit :limit
);

-- name: delete_chunks
-- Delete chunks of the trees' streams.
delete from stream_chunks
where rowid in (
  select c.rowid
  from json_each(:ids) as w
    cross join streams as s on s.root_id = w.value
    cross join stream_chunks as c on c.owner_id = s.owner_id and c.name = s.name
  limit :limit
);

-- name: delete_streams
-- Delete the heads of the trees' streams.
delete from streams where root_id in (select value from json_each(:ids));

-- name: lock_old_records
-- List records without a tree that ended long ago.
select id
from records
where root_id is null and ended_at is not null and ended_at <= :now - :keep_records_for
order by ended_at
limit :limit;

-- name: touch_runs
-- Raise the versions of runs, so that concurrent decisions are made again.
update runs set version = version + 1 where id in (select value from json_each(:ids));

-- name: delete_uses
-- Delete the uses of large values by the trees; return the values.
delete from blob_uses where root_id in (select value from json_each(:ids)) returning digest;

-- name: delete_blobs
-- Delete large values that no tree uses.
delete from blobs
where digest in (select value from json_each(:ids))
  and not exists (select 1 from blob_uses as u where u.digest = blobs.digest);

-- name: delete_keys
-- Delete expired idempotency keys.
delete from dedupe
where rowid in (
  select rowid from dedupe
  where expires_at <= :now
  order by expires_at
  limit :limit
);

-- name: delete_servers
-- Delete servers without a recent heartbeat.
delete from servers where heartbeat_at <= :now - :keep_servers_for;

-- name: count_free
-- Return the pages of the file, the free ones, and the vacuum mode.
select (select page_count from pragma_page_count), (select freelist_count from pragma_freelist_count),
  (select auto_vacuum from pragma_auto_vacuum);

-- name: vacuum_some
-- Return up to 500 free pages to the file system.
pragma incremental_vacuum (500);

-- name: vacuum
-- Rewrite the file at its minimum size; from then on it can shrink in steps.
vacuum;

-- name: set_keep
-- Set the retention times of a list; null means the default.
insert into lists (namespace, task_list, keep_completed_for, keep_failed_for)
values (:namespace, :task_list, :completed_for, :failed_for)
on conflict (namespace, task_list) do update
set keep_completed_for = excluded.keep_completed_for, keep_failed_for = excluded.keep_failed_for;
