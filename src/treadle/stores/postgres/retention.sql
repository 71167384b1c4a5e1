-- name: find_newest_prunable(namespace, keep_completed_for, keep_failed_for)
-- Return the latest end that may be pruned; $1 namespace, $2 keep_completed_for, $3 keep_failed_for.
select treadle_now() - least($2::bigint, $3::bigint, min(keep_completed_for), min(keep_failed_for))
from lists
where namespace = $1::text;

-- name: find_window(namespace, keep_completed_for, keep_failed_for, after_seq, limit, skip_from, skip_until)
-- Read the $5 ends after the seq $4, without ids from $6 up to $7: the last seq, their number, the time of the last end, and the
-- trees of expired ends.
with met as materialized (
  select finished.seq, finished.finished_at, finished.root_id,
    finished.namespace = $1::text and finished.finished_at <= (select treadle_now()) - case when finished.state = 'failed'
      then coalesce(lists.keep_failed_for, $3::bigint) else coalesce(lists.keep_completed_for, $2::bigint) end as expired
  from finished
  join queues on queues.id = finished.queue_id
  left join lists on lists.namespace = queues.namespace and lists.task_list = queues.task_list
  where finished.seq > $4::bigint and (finished.id < $6::uuid or finished.id >= $7::uuid)
  order by finished.seq
  limit $5::bigint
)
select (select max(seq) from met), (select count(*) from met), (select finished_at from met order by seq desc limit 1),
  array(select distinct root_id::text from met where expired);

-- name: find_runs_window(namespace, keep_completed_for, keep_failed_for, after_id, until_id, limit)
-- Read the $6 runs between the ids $4 and $5: the last id, their number, and the trees of expired runs without a finished
-- task.
with met as materialized (
  select runs.id, runs.root_id,
    runs.finished_at is not null and runs.finished_at <= (select treadle_now()) - case when runs.state = 'failed'
      then coalesce(lists.keep_failed_for, $3::bigint) else coalesce(lists.keep_completed_for, $2::bigint) end
    and not exists (select from finished where finished.id = runs.root_id)
    and not exists (select from finished where finished.root_id = runs.root_id and finished.root_id <> finished.id) as expired
  from runs
  left join lists on lists.namespace = runs.namespace and lists.task_list = runs.task_list
  where runs.namespace = $1::text and runs.id > $4::uuid and runs.id < $5::uuid
  order by runs.id
  limit $6::bigint
)
select (select id::text from met order by id desc limit 1), (select count(*) from met),
  array(select distinct root_id::text from met where expired);

-- name: list_prunable(namespace, keep_completed_for, keep_failed_for, roots)
-- List those of the trees $4 that have no live task, no unfinished run, and nothing to keep ($1 is not used).
select given.id::text
from unnest($4::uuid[]) as given (id)
where $1::text is not null
  and not exists (select from tasks where tasks.id = any (array[given.id]))
  and not exists (select from tasks where tasks.root_id = any (array[given.id]) and tasks.root_id <> tasks.id)
  and not exists (
    select
    from finished
    join queues on queues.id = finished.queue_id
    left join lists on lists.namespace = queues.namespace and lists.task_list = queues.task_list
    where finished.id = any (array[given.id]) and finished.finished_at > (select treadle_now()) - case when finished.state =
      'failed'
      then coalesce(lists.keep_failed_for, $3::bigint) else coalesce(lists.keep_completed_for, $2::bigint) end
  )
  and not exists (
    select
    from finished
    join queues on queues.id = finished.queue_id
    left join lists on lists.namespace = queues.namespace and lists.task_list = queues.task_list
    where finished.root_id = any (array[given.id]) and finished.root_id <> finished.id and finished.finished_at > (select
      treadle_now()) - case when finished.state = 'failed'
      then coalesce(lists.keep_failed_for, $3::bigint) else coalesce(lists.keep_completed_for, $2::bigint) end
  )
  and not exists (
    select
    from runs
    left join lists on lists.namespace = runs.namespace and lists.task_list = runs.task_list
    where runs.id = any (array[given.id]) and (runs.finished_at is null or runs.finished_at > (select treadle_now()) - case when
      runs.state = 'failed'
      then coalesce(lists.keep_failed_for, $3::bigint) else coalesce(lists.keep_completed_for, $2::bigint) end)
  )
  and not exists (
    select
    from runs
    left join lists on lists.namespace = runs.namespace and lists.task_list = runs.task_list
    where runs.root_id = any (array[given.id]) and runs.root_id <> runs.id and (runs.finished_at is null or runs.finished_at >
      (select treadle_now()) - case when runs.state = 'failed'
      then coalesce(lists.keep_failed_for, $3::bigint) else coalesce(lists.keep_completed_for, $2::bigint) end)
  );

-- name: count_members(roots, after_seq, until_seq)
-- Count those of the trees $1 whose first end is after the seq $2, and all their ends after it and up to $3.
select
  (
    select count(*)
    from unnest($1::uuid[]) as given (id)
    where $2::bigint < least(
      (select finished.seq from finished where finished.id = given.id),
      (select min(finished.seq) from finished where finished.root_id = given.id and finished.root_id <> finished.id)
    )
  ),
  (
    select count(*)
    from unnest($1::uuid[]) as given (id)
    join finished on finished.id = any (array[given.id])
    where finished.seq > $2::bigint and finished.seq <= $3::bigint
  ) + (
    select count(*)
    from unnest($1::uuid[]) as given (id)
    join finished on finished.root_id = any (array[given.id]) and finished.root_id <> finished.id
    where finished.seq > $2::bigint and finished.seq <= $3::bigint
  );

-- name: lock_tree_runs(roots)
-- Lock the runs of the trees $1 in order of id.
select runs.id::text, runs.root_id::text
from (
  select given.id from unnest($1::uuid[]) as given (id)
  union
  select runs.id from unnest($1::uuid[]) as given (id) join runs on runs.root_id = any (array[given.id]) and runs.root_id <> runs.id
) as wanted
join runs on runs.id = any (array[wanted.id])
order by wanted.id
for update of runs;

-- name: lock_members(roots, limit)
-- Lock up to $2 finished tasks of the trees $1 in order of id, so that they are not redriven. (`coalesce` leaves only the index of
-- roots.)
select finished.id::text, finished.root_id::text
from (
  select given.id from unnest($1::uuid[]) as given (id)
  union
  (
    select member.id
    from unnest($1::uuid[]) as given (id)
    cross join lateral (
      select coalesce(id) as id from finished where root_id = any (array[given.id]) and root_id <> id limit $2::bigint
    ) as member
    limit $2::bigint
  )
) as wanted
join finished on finished.id = any (array[wanted.id])
order by wanted.id
limit $2::bigint
for update of finished;

-- name: list_tree_steps(ids, limit)
-- List up to $2 steps of the runs $1.
select steps.id::text from unnest($1::uuid[]) as given (id) join steps on steps.run_id = any (array[given.id]) limit $2::bigint;

-- name: delete_lines(ids, limit)
-- Delete up to $2 lines of the tasks and steps $1.
delete from lines
where id in (select lines.id from unnest($1::uuid[]) as given (id) join lines on lines.task_id = any (array[given.id]) limit
  $2::bigint);

-- name: delete_log(ids)
-- Delete the transitions of the entities $1.
delete from log where log.entity_id = any ($1::uuid[]);

-- name: delete_finished(ids)
-- Delete the finished tasks $1.
delete from finished using unnest($1::uuid[]) as given (id) where finished.id = any (array[given.id]);

-- name: delete_tags(ids)
-- Delete the tags of the finished tasks $1; a run's go with it.
delete from tags using unnest($1::uuid[]) as given (id) where tags.owner_id = given.id;

-- name: delete_steps(ids)
-- Delete the steps $1.
delete from steps where steps.id = any ($1::uuid[]);

-- name: delete_runs(ids)
-- Delete the runs $1.
delete from runs where runs.id = any ($1::uuid[]);

-- name: lock_tree_records(ids, limit)
-- Lock up to $2 records of the trees $1 in order of id.
select records.id::text
from records
where records.id in (
  select records.id from unnest($1::uuid[]) as given (id) join records on records.root_id = given.id limit $2::bigint
)
order by records.id
for update;

-- name: delete_records(ids)
-- Delete the records $1, and with them their items.
delete from records using unnest($1::uuid[]) as given (id) where records.id = given.id;

-- name: delete_outcomes(ids, limit)
-- Delete up to $2 outcomes of effects of the trees $1.
delete from idempotency_outcomes
where idempotency_key in (
  select idempotency_outcomes.idempotency_key
  from unnest($1::uuid[]) as given (id)
  join idempotency_outcomes on idempotency_outcomes.root_id = given.id
  limit $2::bigint
);

-- name: delete_chunks(ids, limit)
-- Delete up to $2 chunks of streams of the trees $1.
delete from stream_chunks
using (
  select stream_chunks.owner_id, stream_chunks.name, stream_chunks.first_offset
  from unnest($1::uuid[]) as given (id)
  join streams on streams.root_id = given.id
  join stream_chunks on stream_chunks.owner_id = streams.owner_id and stream_chunks.name = streams.name
  limit $2::bigint
) as old
where stream_chunks.owner_id = old.owner_id and stream_chunks.name = old.name and stream_chunks.first_offset = old.first_offset;

-- name: delete_streams(ids)
-- Delete the heads of streams of the trees $1.
delete from streams using unnest($1::uuid[]) as given (id) where streams.root_id = given.id;

-- name: lock_old_records(limit, keep_records_for)
-- Lock up to $1 records without a tree that ended at least $2 ms ago.
select id::text
from records
where root_id is null and ended_at is not null and ended_at <= (select treadle_now()) - $2::bigint
order by ended_at
limit $1::bigint
for update skip locked;

-- name: touch_runs(ids)
-- Raise the versions of the runs $1, so that concurrent decisions are made again.
update runs set version = version + 1 from unnest($1::uuid[]) as given (id) where runs.id = any (array[given.id]);

-- name: delete_uses(ids)
-- Delete the uses of large values by the trees $1; return the values.
delete from blob_uses using unnest($1::uuid[]) as given (id) where blob_uses.root_id = given.id returning blob_uses.digest;

-- name: lock_blobs(ids)
-- Lock the large values $1 against new uses, after waiting for uses that have begun.
select digest from blobs where digest = any ($1::text[]) order by digest for update;

-- name: delete_blobs(ids)
-- Delete the large values among $1 that no tree uses.
delete from blobs
using unnest($1::text[]) as given (digest)
where blobs.digest = given.digest and not exists (select from blob_uses where blob_uses.digest = given.digest);

-- name: delete_keys(limit)
-- Delete up to $1 expired idempotency keys.
delete from dedupe
using (
  select namespace, key
  from dedupe
  where expires_at <= (select treadle_now())
  order by expires_at
  limit $1::bigint
  for update skip locked
) as old
where dedupe.namespace = old.namespace and dedupe.key = old.key;

-- name: delete_servers(keep_servers_for)
-- Delete servers without a heartbeat for $1 ms.
delete from registered_servers where heartbeat_at <= (select treadle_now()) - $1::bigint;

-- name: set_keep(namespace, task_list, completed_for, failed_for)
-- Set the retention times of a list ($1 namespace, $2 list, $3 completed, $4 failed); null means the default.
insert into lists (namespace, task_list, keep_completed_for, keep_failed_for)
values ($1::text, $2::text, $3::bigint, $4::bigint)
on conflict (namespace, task_list) do update
set keep_completed_for = excluded.keep_completed_for, keep_failed_for = excluded.keep_failed_for;
