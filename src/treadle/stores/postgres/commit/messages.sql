-- name: put_messages
-- Tell unfinished runs ($1 ids, $2 runs, $3 steps, $4 names, $5 bodies), each piece once: their version rises, and the own tasks
-- of those that await nothing more are ready, if they sleep without an owner. One that is held then has no place under its limit. (`is false` keeps
-- the index of all that sleeps out of it.)
with inserted as (
  insert into mail (id, run_id, step_id, name, body, at)
  select given.id, given.run_id, given.step_id, given.name, given.body, (select treadle_now())
  from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[], $5::text[]) with ordinality
    as given (id, run_id, step_id, name, body, number)
  join runs on runs.id = given.run_id and runs.finished_at is null
  order by given.number
  on conflict (id) do nothing
  returning run_id
), counted as (
  select run_id, count(*)::integer as count from inserted group by run_id
), told as (
  update runs
  set version = runs.version + counted.count, awaiting = greatest(runs.awaiting - counted.count, 0)
  from counted
  where runs.id = counted.run_id
  returning runs.id, runs.awaiting
)
update tasks
set wake_at = null, hold = case when tasks.limit_key is not null and tasks.hold <> 0 then tasks.hold | 1 else tasks.hold end
from told
where told.awaiting = 0 and tasks.run_id = told.id and tasks.step_id is null and tasks.owner_id is null
  and (tasks.wake_at is null) is false and tasks.state = 'pending'
returning tasks.run_id::text, tasks.lane_id, tasks.hold, tasks.namespace, tasks.limit_key;

-- name: take_messages
-- Runs ($1) have taken pieces ($2) in.
delete from mail using unnest($1::uuid[], $2::uuid[]) as given (run_id, id) where mail.id = given.id and mail.run_id = given.run_id;

-- name: await_messages
-- How much mail must come before the runs are woken for it, and how many steps are new.
update runs set awaiting = given.count, steps = runs.steps + given.added
from unnest($1::uuid[], $2::integer[], $3::integer[]) as given (id, count, added)
where runs.id = given.id;
