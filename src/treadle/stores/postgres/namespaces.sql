-- name: read
-- Return the rows of the namespace among the next $2 rows of a table after a key, as JSON.
select row_to_json(t)::text
from (select * from {table} where ({key}) > ({after}) order by {key} limit $2) as t
where {belongs}
order by {key};

-- name: page_end
-- Return the key of the last of the next $2 rows after a key, if there are that many; $1 is not used.
select {key} from {table} where ({key}) > ({after}) and $1::text is not null order by {key} limit 1 offset $2 - 1;

-- name: remove
-- Remove the rows of the namespace among the next $2 rows of a table after a key.
delete from {table} as t
where ({key}) in (select {key} from {table} where ({key}) > ({after}) order by {key} limit $2) and $1::text is not null
  and {belongs};

-- name: write
-- Insert rows, given as JSON ($1); those of shared tables may exist.
insert into {table} ({columns}) select {columns} from json_populate_recordset(null::{table}, $1::json) on conflict do nothing;

-- name: write_lanes
-- Insert lanes, given as JSON ($1); those that exist get the settings. Lanes are never removed, because processes know their ids.
insert into lanes ({columns}) select {columns} from json_populate_recordset(null::lanes, $1::json)
on conflict (namespace, kind, task_list, name) do update
set paused = excluded.paused, accepting = excluded.accepting, rate = excluded.rate, burst = excluded.burst, tokens = excluded.tokens,
  tokens_at = excluded.tokens_at, backlog_limit = excluded.backlog_limit, limit_key = excluded.limit_key;

-- name: list_namespaces
-- List the namespaces with tasks, runs or records.
select distinct lanes.namespace
from lanes
where exists (select from tasks where tasks.lane_id = lanes.id) or exists (select from finished where finished.lane_id = lanes.id)
union
select namespace from runs
union
select namespace from records
order by 1;

-- name: count_held
-- Count the tasks of the namespace that somebody holds.
select count(*) from tasks where namespace = $1 and owner_id is not null;

-- name: reserve_seqs
-- Reserve $1 numbers of moves, with room for those that others take meanwhile; return the last one before them.
select setval('treadle_seq', last_value + 1000000 + $1::bigint) - $1::bigint from treadle_seq;

-- name: begin_fencing
-- Wait for the other changes of fences, and let this transaction wait for each lock for half a second at most: meanwhile it holds up
-- all writers. That is less than `deadlock_timeout`, so of two transactions that wait for each other, this one is ended.
select set_config('lock_timeout', '500ms', true), pg_advisory_xact_lock(hashtextextended('treadle fences ' || current_schema(), 0));

-- name: fence
-- Refuse changes in the namespace $1, which moved to the store $2, once transactions that began before have ended.
select treadle_fence_namespace($1::text, $2::text);

-- name: unfence
-- Allow changes in the namespace again.
select treadle_unfence_namespace($1::text);

-- name: pass_fences
-- Let the changes of this transaction pass the fences: they are those of a move.
select set_config('treadle.moving', 'on', true);
