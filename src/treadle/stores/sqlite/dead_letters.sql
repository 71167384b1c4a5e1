-- name: list_dead_letters as json
-- List failed tasks, the most recent failure first.
select coalesce('[' || group_concat(task, ',') || ']', '[]')
from (
  select e.task
  from (
    select f.id, f.seq
    from finished as f cross join queues as l on l.id = f.queue_id
    where f.state = 'failed' and f.fingerprint is not ''
      and f.seq > coalesce(:after_seq, -1)
      and f.seq <= coalesce(:until_seq, 9223372036854775807)
      and l.namespace = coalesce(:namespace, l.namespace)
      and l.kind = coalesce(:kind, l.kind)
      and l.task_list = coalesce(:task_list, l.task_list)
      and l.name = coalesce(:name, l.name)
      and (:error_code is null or f.error_code = :error_code)
      and (:fingerprint is null or f.fingerprint = :fingerprint)
      and (:failed_after is null or f.finished_at >= :failed_after)
      and (:failed_before is null or f.finished_at < :failed_before)
    order by f.seq desc
    limit :limit
  ) as d cross join ended as e on e.id = d.id
  order by d.seq desc
);

-- name: walk_dead_letters
-- List failed tasks without their values, the oldest failure first.
select f.id, f.version, f.claim_version, f.seq, f.root_id, f.run_id
from finished as f cross join queues as l on l.id = f.queue_id
where f.state = 'failed' and f.fingerprint is not ''
  and f.seq > coalesce(:after_seq, -1)
  and f.seq <= coalesce(:until_seq, 9223372036854775807)
  and l.namespace = coalesce(:namespace, l.namespace)
  and l.kind = coalesce(:kind, l.kind)
  and l.task_list = coalesce(:task_list, l.task_list)
  and l.name = coalesce(:name, l.name)
  and (:error_code is null or f.error_code = :error_code)
  and (:fingerprint is null or f.fingerprint = :fingerprint)
  and (:failed_after is null or f.finished_at >= :failed_after)
  and (:failed_before is null or f.finished_at < :failed_before)
order by f.seq
limit :limit;

-- name: group_dead_letters
-- Group failed tasks by fingerprint, error code and name, the largest group first.
select g.fingerprint, g.error_code, g.name, g.count, g.of_runs, g.first_at, g.last_at, last.id, first.owner_id
from (
  select f.fingerprint, f.error_code, l.name, count(*) as count, count(f.run_id) as of_runs, min(f.finished_at) as first_at,
    max(f.finished_at) as last_at, max(f.seq) as last_seq, min(f.seq) as first_seq
  from finished as f cross join queues as l on l.id = f.queue_id
  where f.state = 'failed' and f.fingerprint is not ''
    and f.seq > coalesce(:after_seq, -1)
    and f.seq <= coalesce(:until_seq, 9223372036854775807)
    and l.namespace = coalesce(:namespace, l.namespace)
    and l.kind = coalesce(:kind, l.kind)
    and l.task_list = coalesce(:task_list, l.task_list)
    and l.name = coalesce(:name, l.name)
    and (:error_code is null or f.error_code = :error_code)
    and (:fingerprint is null or f.fingerprint = :fingerprint)
    and (:failed_after is null or f.finished_at >= :failed_after)
    and (:failed_before is null or f.finished_at < :failed_before)
  group by f.fingerprint, f.error_code, l.name
  order by count(*) desc, max(f.seq) desc
  limit :limit
) as g
  cross join finished as last on last.seq = g.last_seq
  cross join finished as first on first.seq = g.first_seq
order by g.count desc, g.last_seq desc;

-- name: count_dead_letters
-- Count failed tasks and those of runs, and return the greatest seq.
select count(*), count(f.run_id), coalesce(max(f.seq), 0)
from finished as f cross join queues as l on l.id = f.queue_id
where f.state = 'failed' and f.fingerprint is not ''
  and f.seq > coalesce(:after_seq, -1)
  and f.seq <= coalesce(:until_seq, 9223372036854775807)
  and l.namespace = coalesce(:namespace, l.namespace)
  and l.kind = coalesce(:kind, l.kind)
  and l.task_list = coalesce(:task_list, l.task_list)
  and l.name = coalesce(:name, l.name)
  and (:error_code is null or f.error_code = :error_code)
  and (:fingerprint is null or f.fingerprint = :fingerprint)
  and (:failed_after is null or f.finished_at >= :failed_after)
  and (:failed_before is null or f.finished_at < :failed_before);

-- name: count_dead_letters_in
-- Count failed tasks by queue only, from an index alone.
select count(*), count(f.run_id), coalesce(max(f.seq), 0)
from queues as l cross join finished as f on f.queue_id = l.id and f.state = 'failed' and f.fingerprint is not ''
where l.namespace = coalesce(:namespace, l.namespace)
  and l.kind = coalesce(:kind, l.kind)
  and l.task_list = coalesce(:task_list, l.task_list)
  and l.name = coalesce(:name, l.name);
