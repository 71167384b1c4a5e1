-- name: find_shortest_keep
-- The shortest time that anything of the namespace is kept; what ended later than that ago cannot be pruned yet.
select min(:keep_completed_for, :keep_failed_for,
  coalesce(min(keep_completed_for), :keep_completed_for), coalesce(min(keep_failed_for), :keep_failed_for))
from lists
where namespace = :namespace;

-- name: find_window
-- The next ends in the order in which they came: the last seq, how many, when the last was, and the trees of those past their time.
select max(seq), count(*), finished_at, json_group_array(distinct root_id) filter (where expired)
from (
  select f.seq, f.finished_at, f.root_id,
    f.namespace = :namespace and f.finished_at <= :now - iif(f.state = 'failed',
      coalesce(k.keep_failed_for, :keep_failed_for), coalesce(k.keep_completed_for, :keep_completed_for)) as expired
  from finished as f
    cross join lanes as l on l.id = f.lane_id
    left join lists as k on k.namespace = l.namespace and k.task_list = l.task_list
  where f.seq > :after_seq
  order by f.seq
  limit :limit
);

-- name: find_runs_window
-- The next ended runs in the order of their ids: the last id, how many, and the trees without a finished task of those past their time.
select max(id), count(*), json_group_array(distinct root_id) filter (where expired)
from (
  select r.id, r.root_id,
    r.finished_at is not null
    and r.finished_at <= :now - iif(r.state = 'failed',
      coalesce(k.keep_failed_for, :keep_failed_for), coalesce(k.keep_completed_for, :keep_completed_for))
    and not exists (select 1 from finished as f where f.id = r.root_id)
    and not exists (select 1 from finished as f where f.root_id = r.root_id and f.root_id <> f.id) as expired
  from runs as r left join lists as k on k.namespace = r.namespace and k.task_list = r.task_list
  where r.namespace = :namespace and r.id > :after_id and r.id < :until_id
  order by r.id
  limit :limit
);

-- name: list_prunable
-- Which of the trees have nothing live, no unfinished run, and nothing that is to be kept.
select json_group_array(w.value)
from json_each(:roots) as w
where not exists (select 1 from tasks as t where t.id = w.value)
  and not exists (select 1 from tasks as t where t.root_id = w.value and t.root_id <> t.id)
  and not exists (
    select 1
    from finished as f
      cross join lanes as l on l.id = f.lane_id
      left join lists as k on k.namespace = l.namespace and k.task_list = l.task_list
    where f.id = w.value
      and f.finished_at > :now - iif(f.state = 'failed',
        coalesce(k.keep_failed_for, :keep_failed_for), coalesce(k.keep_completed_for, :keep_completed_for))
  )
  and not exists (
    select 1
    from finished as f
      cross join lanes as l on l.id = f.lane_id
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
-- Of the trees: those whose first end is after a seq, and all ends after it and up to another.
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

-- name: list_members
-- Finished tasks of the trees.
select json_group_array(id)
from (
  select f.id from json_each(:roots) as w cross join finished as f on f.id = w.value
  union all
  select f.id from json_each(:roots) as w cross join finished as f on f.root_id = w.value and f.root_id <> f.id
  limit :limit
);

-- name: list_runs
-- Runs of the trees.
select json_group_array(id)
from (
  select r.id from json_each(:roots) as w cross join runs as r on r.id = w.value
  union all
  select r.id from json_each(:roots) as w cross join runs as r on r.root_id = w.value and r.root_id <> r.id
);

-- name: list_steps
-- Steps of runs.
select json_group_array(id)
from (select s.id from json_each(:runs) as w cross join steps as s on s.run_id = w.value limit :limit);

-- name: delete_lines
-- Lines of tasks and steps.
delete from lines
where id in (select l.id from json_each(:ids) as w cross join lines as l on l.task_id = w.value limit :limit);

-- name: delete_log
-- Moves of entities.
delete from log where entity_id in (select value from json_each(:ids));

-- name: delete_finished
-- Finished tasks.
delete from finished where id in (select value from json_each(:ids));

-- name: delete_steps
-- Steps.
delete from steps where id in (select value from json_each(:ids));

-- name: delete_runs
-- Runs.
delete from runs where id in (select value from json_each(:ids));

-- name: list_records
-- Records of the trees.
select json_group_array(id)
from (select r.id from json_each(:roots) as w cross join records as r on r.root_id = w.value limit :limit);

-- name: delete_records
-- Records, and by that their items.
delete from records where id in (select value from json_each(:ids));

-- name: delete_outcomes
-- What is known of the trees' effects.
delete from idempotency_outcomes
where rowid in (
  select o.rowid from json_each(:roots) as w cross join idempotency_outcomes as o on o.root_id = w.value limit :limit
);

-- name: list_old_records
-- Records of no tree that ended long ago.
select json_group_array(id)
from (
  select id
  from records
  where root_id is null and ended_at is not null and ended_at <= :now - :keep_records_for
  order by ended_at
  limit :limit
);

-- name: bump_runs
-- Whoever has read these runs has to look again.
update runs set version = version + 1 where id in (select value from json_each(:ids));

-- name: list_digests
-- Big values that the trees use.
select json_group_array(distinct u.digest) from json_each(:roots) as w cross join blob_uses as u on u.root_id = w.value;

-- name: delete_uses
-- The trees use their big values no more.
delete from blob_uses where root_id in (select value from json_each(:roots));

-- name: delete_blobs
-- Big values that nobody uses.
delete from blobs
where digest in (select value from json_each(:digests))
  and not exists (select 1 from blob_uses as u where u.digest = blobs.digest);

-- name: delete_keys
-- Deduplication keys past their time.
delete from dedupe where rowid in (select rowid from dedupe where expires_at <= :now order by expires_at limit :limit);

-- name: delete_servers
-- Servers that nobody has heard of for long.
delete from servers where heartbeat_at <= :now - :keep_servers_for;

-- name: count_free
-- Pages of the file, and free ones among them.
select (select page_count from pragma_page_count), (select freelist_count from pragma_freelist_count),
  (select auto_vacuum from pragma_auto_vacuum);

-- name: vacuum_some
-- Give up to 500 free pages back to the file system.
pragma incremental_vacuum (500);

-- name: vacuum
-- Write the file anew, as small as it can be; from then on it can shrink in steps.
vacuum;

-- name: set_keep
-- A list's own rules; null is as the defaults say.
insert into lists (namespace, task_list, keep_completed_for, keep_failed_for)
values (:namespace, :task_list, :completed_for, :failed_for)
on conflict (namespace, task_list) do update
set keep_completed_for = excluded.keep_completed_for, keep_failed_for = excluded.keep_failed_for;
