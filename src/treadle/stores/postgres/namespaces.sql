-- name: read
-- Return the rows of the namespace $1 in a table, as JSON.
select row_to_json(t)::text from {table} as t where {belongs} order by {key};

-- name: write
-- Insert rows, given as JSON ($1); those of shared tables may exist.
insert into {table} ({columns}) select {columns} from json_populate_recordset(null::{table}, $1::json) on conflict do nothing;

-- name: write_queues
-- Insert queues, given as JSON ($1); those that exist get the settings.
insert into {table} ({columns}) select {columns} from json_populate_recordset(null::{table}, $1::json)
on conflict (namespace, kind, task_list, name) do update
set paused = excluded.paused, accepting = excluded.accepting, rate = excluded.rate, burst = excluded.burst, tokens =
  excluded.tokens,
  tokens_at = excluded.tokens_at, backlog_limit = excluded.backlog_limit, limit_key = excluded.limit_key;

-- name: reserve_seqs(count)
-- Reserve $1 numbers of transitions, with room for those that others take meanwhile; return the last one before them.
select setval('treadle_seq', last_value + 1000000 + $1::bigint) - $1::bigint from treadle_seq;

-- name: read_patiently
-- Let the statements of this transaction take their time: they read whole tables.
select set_config('statement_timeout', '0', true);

-- name: list_namespaces
-- List the namespaces with tasks, runs or records.
select distinct queues.namespace
from queues
where exists (select from tasks where tasks.queue_id = queues.id) or exists (select from finished where finished.queue_id =
  queues.id)
union
select namespace from runs
union
select namespace from records
order by 1;
