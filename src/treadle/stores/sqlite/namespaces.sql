-- name: read
-- Return the rows of the namespace among the next rows of a table after a key.
select *
from (select * from {table} where ({key}) > ({after}) order by {key} limit :limit) as t
where {belongs}
order by {key};

-- name: page_end
-- Return the key of the last of the next rows after a key, if there are that many.
select {key} from {table} where ({key}) > ({after}) order by {key} limit 1 offset :limit - 1;

-- name: remove
-- Remove the rows of the namespace among the next rows of a table after a key.
delete from {table} as t
where ({key}) in (select {key} from {table} where ({key}) > ({after}) order by {key} limit :limit) and {belongs};

-- name: write
-- Insert a row; that of a shared table may exist.
insert into {table} ({columns}) values ({values}) on conflict do nothing;

-- name: write_lanes
-- Insert a lane; one that exists gets the settings. Lanes are never removed, because processes know their ids.
insert into lanes ({columns}) values ({values})
on conflict (namespace, kind, task_list, name) do update
set paused = excluded.paused, accepting = excluded.accepting, rate = excluded.rate, burst = excluded.burst, tokens = excluded.tokens,
  tokens_at = excluded.tokens_at, backlog_limit = excluded.backlog_limit, limit_key = excluded.limit_key;

-- name: index_errors
-- Make the words of copied errors searchable; those of finished tasks are since their insert.
insert into new_error_texts (owner_id, entity, namespace, created_at, error)
select id, 'run', namespace, created_at, error from runs where id = :id and error is not null;

-- name: list_namespaces
-- List the namespaces with tasks, runs or records.
select distinct lanes.namespace
from lanes
where exists (select 1 from tasks where tasks.lane_id = lanes.id) or exists (select 1 from finished where finished.lane_id = lanes.id)
union
select namespace from runs
union
select namespace from records
order by 1;

-- name: count_held
-- Count the tasks of the namespace that somebody holds.
select count(*) from tasks where namespace = :namespace and owner_id is not null;

-- name: reserve_seqs
-- Reserve numbers of moves; return the last one before them.
update seqs set value = value + :count where name = 'move' returning value - :count;

-- name: fence
-- Refuse changes to the work of the namespace. Changes that a server makes for all namespaces (waking, takeovers, admission, refills)
-- pass: a move copies their input, and the new place makes them again.
insert into moved_namespaces (namespace, moved_at, moved_to) values (:namespace, :now, :moved_to)
on conflict do update set moved_to = excluded.moved_to;

-- name: create_fence
-- Create the trigger that refuses an operation on a table.
create trigger if not exists {table}_moved_{operation} before {operation} on {table}
when {when} and exists (select 1 from moved_namespaces as m where not m.passing and {belongs}) begin
  select raise(abort, 'namespace moved');
end;

-- name: when_tasks_update
-- Changes that are not made for all namespaces.
new.version <> old.version and new.takeovers <= old.takeovers

-- name: when_tasks_delete
-- Tasks that somebody holds end with an insert into `finished`.
old.owner_id is null

-- name: when_limits_update
-- Changes other than refills.
(new.max_running, new.by_operator, new.rate, new.burst) is not (old.max_running, old.by_operator, old.rate, old.burst)

-- name: when_lanes_update
-- Changes other than refills.
(new.paused, new.accepting, new.rate, new.burst, new.backlog_limit, new.limit_key)
  is not (old.paused, old.accepting, old.rate, old.burst, old.backlog_limit, old.limit_key)

-- name: when_idempotency_outcomes_update
-- Changes other than the doubt that follows from a takeover.
not (new.status = old.status and old.unknown_at is null and new.unknown_at is not null)

-- name: set_passing
-- Let changes in this transaction pass the fences, or not.
update moved_namespaces set passing = :passing;

-- name: unfence
-- Allow changes to the work of the namespace again.
delete from moved_namespaces where namespace = :namespace;

-- name: drop_fence
-- Drop the trigger that refuses an operation on a table.
drop trigger if exists {table}_moved_{operation};
