-- name: put_messages(*rows)
-- Deliver messages ($1 ids, $2 runs, $3 steps, $4 names, $5 documents) to unfinished runs, each once, and raise the runs'
-- versions. Wake the own tasks, if they sleep without an owner, of runs that await no more. A task that is blocked then loses
-- its slot under its limit. (`is false` prevents the use of the index of sleeping tasks.)
with inserted as (
  insert into mail (id, run_id, step_id, name, document, at)
  select given.id, given.run_id, given.step_id, given.name, given.document, (select treadle_now())
  from unnest($1::text::uuid[], $2::text::uuid[], $3::text::uuid[], $4::text::text[], $5::text[]) with ordinality
    as given (id, run_id, step_id, name, document, number)
  join runs on runs.id = any (array[given.run_id]) and runs.finished_at is null
  order by given.number
  on conflict (id) do nothing
  returning run_id
), counted as (
  select run_id, count(*)::integer as count from inserted group by run_id
), receivers as (
  update runs
  set version = runs.version + counted.count, awaiting = greatest(runs.awaiting - counted.count, 0)
  from counted
  where runs.id = any (array[counted.run_id])
  returning runs.id, runs.awaiting
)
update tasks
set wake_at = null, blocked_by = case when tasks.limit_key is not null and tasks.blocked_by <> 0 then tasks.blocked_by | 1 else tasks.blocked_by end
from receivers
where receivers.awaiting = 0 and tasks.run_id = receivers.id and tasks.step_id is null and tasks.claim_version > 0
  and tasks.owner_id is null
  and (tasks.wake_at is null) is false and tasks.state = 'pending'
returning tasks.run_id::text, tasks.queue_id, tasks.blocked_by, tasks.namespace,
  coalesce(tasks.limit_keys, tasks.limit_key);

-- name: take_messages(*rows)
-- Delete messages ($2) that runs ($1) consumed.
delete from mail using unnest($1::text::uuid[], $2::text::uuid[]) as given (run_id, id) where mail.id = given.id and mail.run_id =
  given.run_id;

-- name: await_messages(*rows)
-- Set the number of messages that runs await, and add the number of new steps.
update runs set awaiting = given.count, steps = runs.steps + given.added
from unnest($1::uuid[], $2::integer[], $3::integer[]) as given (id, count, added)
where runs.id = any (array[given.id]);
