-- name: list_dead_letters
-- Failed tasks, the last to fail first; $1-$4 lane, $5 error code, $6 fingerprint, $7-$8 instants, $9-$10 seqs may be null for any.
select finished.*, lanes.kind, lanes.task_list, lanes.name
from finished
join lanes on lanes.id = finished.lane_id
where finished.state = 'failed'
  and ($1::text is null or lanes.namespace = $1)
  and ($2::text is null or lanes.kind = $2)
  and ($3::text is null or lanes.task_list = $3)
  and ($4::text is null or lanes.name = $4)
  and ($5::text is null or finished.error_code = $5)
  and ($6::text is null or finished.fingerprint = $6)
  and ($7::bigint is null or finished.finished_at >= $7)
  and ($8::bigint is null or finished.finished_at < $8)
  and ($9::bigint is null or finished.seq > $9)
  and ($10::bigint is null or finished.seq <= $10)
order by finished.seq desc
limit $11::bigint;

-- name: walk_dead_letters
-- Failed tasks without their values, the first to fail first; filters as in list_dead_letters.
select finished.id::text, finished.version, finished.claim_version, finished.seq, finished.root_id::text,
  finished.run_id::text
from finished
join lanes on lanes.id = finished.lane_id
where finished.state = 'failed'
  and ($1::text is null or lanes.namespace = $1)
  and ($2::text is null or lanes.kind = $2)
  and ($3::text is null or lanes.task_list = $3)
  and ($4::text is null or lanes.name = $4)
  and ($5::text is null or finished.error_code = $5)
  and ($6::text is null or finished.fingerprint = $6)
  and ($7::bigint is null or finished.finished_at >= $7)
  and ($8::bigint is null or finished.finished_at < $8)
  and ($9::bigint is null or finished.seq > $9)
  and ($10::bigint is null or finished.seq <= $10)
order by finished.seq
limit $11::bigint;

-- name: group_dead_letters
-- Failed tasks by fingerprint, error code and name, the biggest group first; filters as in list_dead_letters.
select finished.fingerprint, finished.error_code, lanes.name, count(*), count(finished.run_id), min(finished.finished_at),
  max(finished.finished_at), (array_agg(finished.id::text order by finished.seq desc))[1]
from finished
join lanes on lanes.id = finished.lane_id
where finished.state = 'failed'
  and ($1::text is null or lanes.namespace = $1)
  and ($2::text is null or lanes.kind = $2)
  and ($3::text is null or lanes.task_list = $3)
  and ($4::text is null or lanes.name = $4)
  and ($5::text is null or finished.error_code = $5)
  and ($6::text is null or finished.fingerprint = $6)
  and ($7::bigint is null or finished.finished_at >= $7)
  and ($8::bigint is null or finished.finished_at < $8)
  and ($9::bigint is null or finished.seq > $9)
  and ($10::bigint is null or finished.seq <= $10)
group by finished.fingerprint, finished.error_code, lanes.name
order by count(*) desc, max(finished.seq) desc
limit $11::bigint;

-- name: count_dead_letters
-- How many failed tasks, how many of them of runs, and the last of them; filters as in list_dead_letters.
select count(*), count(finished.run_id), coalesce(max(finished.seq), 0)
from finished
join lanes on lanes.id = finished.lane_id
where finished.state = 'failed'
  and ($1::text is null or lanes.namespace = $1)
  and ($2::text is null or lanes.kind = $2)
  and ($3::text is null or lanes.task_list = $3)
  and ($4::text is null or lanes.name = $4)
  and ($5::text is null or finished.error_code = $5)
  and ($6::text is null or finished.fingerprint = $6)
  and ($7::bigint is null or finished.finished_at >= $7)
  and ($8::bigint is null or finished.finished_at < $8)
  and ($9::bigint is null or finished.seq > $9)
  and ($10::bigint is null or finished.seq <= $10);

-- name: count_dead_letters_in
-- The same by nothing but lanes, from an index alone where the table has been vacuumed.
select count(*), count(finished.run_id), coalesce(max(finished.seq), 0)
from finished
join lanes on lanes.id = finished.lane_id
where finished.state = 'failed'
  and ($1::text is null or lanes.namespace = $1)
  and ($2::text is null or lanes.kind = $2)
  and ($3::text is null or lanes.task_list = $3)
  and ($4::text is null or lanes.name = $4);
