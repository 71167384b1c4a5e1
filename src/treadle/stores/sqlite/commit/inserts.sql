-- name: insert_tasks
-- Insert the tasks whose id is new and whose unique key is free.
insert into tasks ({new}, due_at, wake_at, deadline_at, root_id, state, claim_version, attempt, failures, takeovers, version,
  created_at)
select {value:r.new}, :now + ({value:r.delay}), iif({value:r.delay} > 0, :now + ({value:r.delay}), null),
  :now + ({value:r.deadline_for}), coalesce({value:r.root_id}, {value:r.id}), 'pending', 0, 1, 0, 0, 0, :now
from jsonb_each(:rows) as r
where not exists (select 1 from finished as f where f.id = {value:r.id})
on conflict (id) do nothing
on conflict (namespace, unique_key) where unique_key is not null do nothing;

-- name: preclaim
-- Claim new tasks (id, owner, lease) for their creators, if any worker could claim them now, and take the tokens of their keys.
update tasks
set owner_id = r.value ->> 1, claim_version = 1, claimed_at = :now, heartbeat_at = :now, progress_at = :now,
  wake_at = :now + (r.value ->> 2)
from jsonb_each(:rows) as r
where tasks.id = r.value ->> 0 and tasks.claim_version = 0 and tasks.version = 0
  and tasks.owner_id is null and tasks.wake_at is null and tasks.blocked_by = 0
  and not exists (select 1 from queues where queues.id = tasks.queue_id and queues.slowed);
update limits
set tokens = min(burst, tokens + rate * max(:now - tokens_at, 0) / 1000.0) - used.count, tokens_at = max(tokens_at, :now)
from (
  select t.namespace, t.limit_key, count(*) as count
  from jsonb_each(:rows) as r cross join tasks as t on t.id = r.value ->> 0
  where t.owner_id = r.value ->> 1 and t.claim_version = 1 and t.limit_key is not null
  group by 1, 2
) as used
where limits.namespace = used.namespace and limits.key = used.limit_key and rate is not null;

-- name: explain_inserts as json
-- For each row of `insert_tasks`, return whether it was inserted (its rowid is after `:last_before`), or else the task
-- that has its unique key.
select json_group_array(json_array(
  exists (select 1 from tasks as t where t.id = {value:r.id} and t.rowid > :last_before),
  iif(
    exists (select 1 from tasks as t where t.id = {value:r.id}) or exists (select 1 from finished as f where f.id = {value:r.id}),
    null,
    (select t.id from tasks as t where t.namespace = {value:r.namespace} and t.unique_key = {value:r.unique_key})
  )
))
from jsonb_each(:rows) as r;
