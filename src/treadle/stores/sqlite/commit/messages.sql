-- name: put_messages
-- Deliver messages (id, run, step, name, document) to unfinished runs, each once, and raise the runs' versions, so that concurrent
-- decisions are made again. Wake the own tasks, if they sleep without an owner, of runs that await no more. A task that is held
-- then loses its slot under its limit.
update runs
set version = version + new.count, awaiting = max(awaiting - new.count, 0)
from (
  select r.value ->> 1 as run_id, count(distinct r.value ->> 0) as count
  from jsonb_each(:rows) as r
  where not exists (select 1 from mail where mail.id = r.value ->> 0)
  group by 1
) as new
where runs.id = new.run_id and runs.finished_at is null;
update tasks
set wake_at = null, blocked_by = iif(limit_key is not null and blocked_by <> 0, blocked_by | 1, blocked_by)
where run_id in (
    select runs.id
    from jsonb_each(:rows) as r cross join runs on runs.id = r.value ->> 1
    where runs.finished_at is null and runs.awaiting = 0 and not exists (select 1 from mail where mail.id = r.value ->> 0)
  )
  and step_id is null and claim_version > 0 and owner_id is null and wake_at is not null and state = 'pending'
returning run_id, queue_id, blocked_by, namespace, coalesce(limit_keys, limit_key);
insert into mail (id, run_id, step_id, name, document, at)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, :now
from jsonb_each(:rows) as r
where exists (select 1 from runs where runs.id = r.value ->> 1 and runs.finished_at is null)
on conflict (id) do nothing;

-- name: take_messages
-- Delete messages (run, id) that runs consumed.
delete from mail where (run_id, id) in (select r.value ->> 0, r.value ->> 1 from jsonb_each(:rows) as r);

-- name: await_messages
-- Set the number of messages that runs (id, count, new steps) await, and add the number of new steps.
update runs
set awaiting = r.value ->> 1, steps = steps + (r.value ->> 2)
from jsonb_each(:rows) as r
where runs.id = r.value ->> 0;
