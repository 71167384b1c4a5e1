-- name: list_dead_letters(namespace, kind, task_list, name, error_code, fingerprint, failed_after, failed_before, after_seq, until_seq, limit) on lists
-- List failed tasks, the most recent failure first; $1-$4 queue, $5 error code, $6 fingerprint, $7-$8 instants may be
-- null for any; after the seq $9 and up to $10.
select finished.*, queues.kind, queues.task_list, queues.name
from finished
join queues on queues.id = finished.queue_id
where finished.state = 'failed' and finished.fingerprint is distinct from ''
  and ($1::text is null or queues.namespace = $1)
  and ($2::text is null or queues.kind = $2)
  and ($3::text is null or queues.task_list = $3)
  and ($4::text is null or queues.name = $4)
  and ($5::text is null or finished.error_code = $5)
  and ($6::text is null or finished.fingerprint = $6)
  and ($7::bigint is null or finished.finished_at >= $7)
  and ($8::bigint is null or finished.finished_at < $8)
  and finished.seq > $9::bigint
  and finished.seq <= $10::bigint
order by finished.seq desc
limit $11::bigint;

-- name: walk_dead_letters(namespace, kind, task_list, name, error_code, fingerprint, failed_after, failed_before, after_seq, until_seq, limit) on lists
-- List failed tasks without their values, the oldest failure first; filters as in `list_dead_letters`.
select finished.id::text, finished.version, finished.claim_version, finished.seq, finished.root_id::text,
  finished.run_id::text
from finished
join queues on queues.id = finished.queue_id
where finished.state = 'failed' and finished.fingerprint is distinct from ''
  and ($1::text is null or queues.namespace = $1)
  and ($2::text is null or queues.kind = $2)
  and ($3::text is null or queues.task_list = $3)
  and ($4::text is null or queues.name = $4)
  and ($5::text is null or finished.error_code = $5)
  and ($6::text is null or finished.fingerprint = $6)
  and ($7::bigint is null or finished.finished_at >= $7)
  and ($8::bigint is null or finished.finished_at < $8)
  and finished.seq > $9::bigint
  and finished.seq <= $10::bigint
order by finished.seq
limit $11::bigint;

-- name: group_dead_letters(namespace, kind, task_list, name, error_code, fingerprint, failed_after, failed_before, after_seq, until_seq, limit)
-- Group failed tasks by fingerprint, error code and name, the largest group first; filters as in `list_dead_letters`.
select finished.fingerprint, finished.error_code, queues.name, count(*), count(finished.run_id), min(finished.finished_at),
  max(finished.finished_at), (array_agg(finished.id::text order by finished.seq desc))[1],
  (array_agg(finished.owner_id order by finished.seq))[1]
from finished
join queues on queues.id = finished.queue_id
where finished.state = 'failed' and finished.fingerprint is distinct from ''
  and ($1::text is null or queues.namespace = $1)
  and ($2::text is null or queues.kind = $2)
  and ($3::text is null or queues.task_list = $3)
  and ($4::text is null or queues.name = $4)
  and ($5::text is null or finished.error_code = $5)
  and ($6::text is null or finished.fingerprint = $6)
  and ($7::bigint is null or finished.finished_at >= $7)
  and ($8::bigint is null or finished.finished_at < $8)
  and finished.seq > $9::bigint
  and finished.seq <= $10::bigint
group by finished.fingerprint, finished.error_code, queues.name
order by count(*) desc, max(finished.seq) desc
limit $11::bigint;

-- name: count_dead_letters(namespace, kind, task_list, name, error_code, fingerprint, failed_after, failed_before, after_seq, until_seq)
-- Count failed tasks and those of runs, and return the greatest seq; filters as in `list_dead_letters`.
select count(*), count(finished.run_id), coalesce(max(finished.seq), 0)
from finished
join queues on queues.id = finished.queue_id
where finished.state = 'failed' and finished.fingerprint is distinct from ''
  and ($1::text is null or queues.namespace = $1)
  and ($2::text is null or queues.kind = $2)
  and ($3::text is null or queues.task_list = $3)
  and ($4::text is null or queues.name = $4)
  and ($5::text is null or finished.error_code = $5)
  and ($6::text is null or finished.fingerprint = $6)
  and ($7::bigint is null or finished.finished_at >= $7)
  and ($8::bigint is null or finished.finished_at < $8)
  and finished.seq > $9::bigint
  and finished.seq <= $10::bigint;

-- name: count_dead_letters_in(namespace, kind, task_list, name)
-- Count failed tasks by queue only, from an index alone if the table has been vacuumed.
select count(*), count(finished.run_id), coalesce(max(finished.seq), 0)
from finished
join queues on queues.id = finished.queue_id
where finished.state = 'failed' and finished.fingerprint is distinct from ''
  and ($1::text is null or queues.namespace = $1)
  and ($2::text is null or queues.kind = $2)
  and ($3::text is null or queues.task_list = $3)
  and ($4::text is null or queues.name = $4);
