-- name: insert_messages
-- Insert messages (id, run, step, name, body) to unfinished runs, each once; return the run of each new message.
insert into mail (id, run_id, step_id, name, body, at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, :now
from jsonb_each(:rows) as r
where exists (select 1 from runs where runs.id = r.value ->> 1 and runs.finished_at is null)
on conflict (id) do nothing
returning run_id;

-- name: count_messages
-- Raise the versions of runs (id, count) by their number of new messages, so that concurrent decisions are made again.
update runs
set version = version + (r.value ->> 1), awaiting = max(awaiting - (r.value ->> 1), 0)
from jsonb_each(:rows) as r
where runs.id = r.value ->> 0
returning id, awaiting;

-- name: wake_runs
-- Wake the runs' own tasks that sleep without an owner. A task that is held then loses its slot under its limit.
update tasks
set wake_at = null, hold = iif(limit_key is not null and hold <> 0, hold | 1, hold)
where run_id in (select value from json_each(:ids)) and step_id is null and owner_id is null and wake_at is not null
  and state = 'pending'
returning run_id, lane_id, hold, namespace, limit_key;

-- name: take_messages
-- Delete messages that the run consumed.
delete from mail where run_id = :run_id and id in (select value from json_each(:ids));

-- name: await_messages
-- Set the number of messages that the run awaits, and add the number of new steps.
update runs set awaiting = :count, steps = steps + :added where id = :run_id;
