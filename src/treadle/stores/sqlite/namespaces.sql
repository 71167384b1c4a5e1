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
insert into moved_namespaces (namespace, moved_at) values (:namespace, :now) on conflict do nothing;

-- name: create_fences
-- Create the triggers that refuse changes.
create trigger if not exists tasks_moved_in before insert on tasks
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists tasks_moved before update on tasks
when new.version <> old.version and new.takeovers <= old.takeovers and new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists finished_moved_in before insert on finished
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists finished_moved before update on finished
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists runs_moved_in before insert on runs
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists runs_moved before update on runs
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists records_moved_in before insert on records
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists records_moved before update on records
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists mail_moved_in before insert on mail
when (select namespace from runs where id = new.run_id) in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists limits_moved_in before insert on limits
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists limits_moved before update on limits
when (new.max_running, new.rate, new.burst) is not (old.max_running, old.rate, old.burst)
  and new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists handler_keys_moved_in before insert on handler_keys
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists handler_keys_moved before update on handler_keys
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists handler_registrations_moved_in before insert on handler_registrations
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists handler_registrations_moved before update on handler_registrations
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists flow_versions_moved_in before insert on flow_versions
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;
create trigger if not exists flow_versions_moved before update on flow_versions
when new.namespace in (select namespace from moved_namespaces) begin
  select raise(abort, 'namespace moved');
end;

-- name: unfence
-- Allow changes to the work of the namespace again.
delete from moved_namespaces where namespace = :namespace;

-- name: count_moved
-- Count the moved namespaces.
select count(*) from moved_namespaces;

-- name: drop_fences
-- Drop the triggers that refuse changes.
drop trigger if exists tasks_moved_in;
drop trigger if exists tasks_moved;
drop trigger if exists finished_moved_in;
drop trigger if exists finished_moved;
drop trigger if exists runs_moved_in;
drop trigger if exists runs_moved;
drop trigger if exists records_moved_in;
drop trigger if exists records_moved;
drop trigger if exists mail_moved_in;
drop trigger if exists limits_moved_in;
drop trigger if exists limits_moved;
drop trigger if exists handler_keys_moved_in;
drop trigger if exists handler_keys_moved;
drop trigger if exists handler_registrations_moved_in;
drop trigger if exists handler_registrations_moved;
drop trigger if exists flow_versions_moved_in;
drop trigger if exists flow_versions_moved;
