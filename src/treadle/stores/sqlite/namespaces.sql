-- name: read
-- Return the rows of the namespace in a table.
select * from {table} as t where {belongs} order by {key};

-- name: write
-- Insert a row; that of a shared table may exist.
insert into {table} ({columns}) values ({values}) on conflict do nothing;

-- name: write_queues
-- Insert a queue; one that exists gets the settings.
insert into {table} ({columns}) values ({values})
on conflict (namespace, kind, task_list, name) do update
set paused = excluded.paused, accepting = excluded.accepting, rate = excluded.rate, burst = excluded.burst, tokens =
  excluded.tokens,
  tokens_at = excluded.tokens_at, backlog_limit = excluded.backlog_limit, limit_key = excluded.limit_key;

-- name: index_errors
-- Make the words of copied errors searchable; those of finished tasks are since their insert.
insert into new_error_texts (owner_id, entity, namespace, created_at, error)
select id, 'run', namespace, created_at, error from runs where id = :id and error is not null;

-- name: reserve_seqs
-- Reserve numbers of transitions; return the last one before them.
update seqs set value = value + :count where name = 'transition' returning value - :count;

-- name: list_namespaces
-- List the namespaces with tasks, runs or records.
select distinct queues.namespace
from queues
where exists (select 1 from tasks where tasks.queue_id = queues.id) or exists (select 1 from finished where finished.queue_id =
  queues.id)
union
select namespace from runs
union
select namespace from records
order by 1;
