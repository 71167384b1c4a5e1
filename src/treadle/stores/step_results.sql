-- name: begin
-- Claim the step; a concurrent attempt waits here for the transaction of the first one.
insert into treadle_steps (step_id, run_id, name, at) values (:step_id, :run_id, :name, :at)
on conflict (step_id) do nothing returning step_id;

-- name: find
-- Return the recorded step.
select name, result from treadle_steps where step_id = :step_id;

-- name: finish
-- Record the result.
update treadle_steps set result = :result where step_id = :step_id;

-- name: prune
-- Delete old results.
delete from treadle_steps where at < :before;

-- name: create_table
-- Create the table.
create table if not exists treadle_steps (
  step_id text primary key, run_id text not null, name text not null, result text, at bigint not null
);

-- name: create_index
-- Let old results be found.
create index if not exists treadle_steps_at on treadle_steps (at);
