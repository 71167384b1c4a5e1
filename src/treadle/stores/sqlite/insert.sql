-- name: insert_tasks
-- Insert the tasks whose id is nowhere and whose unique key is free.
insert into tasks (id, lane_id, namespace, priority, due_at, hold, state, wake_at, claim_version, attempt, failures, takeovers,
  version, created_at, deadline_at, timeout_for, progress_for, run_id, step_id, flow_id, scope, root_id, trace_id, limit_key,
  unique_key, policy, payload)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, :now + (r.value ->> 4), r.value ->> 18, 'pending',
  iif(r.value ->> 4 > 0, :now + (r.value ->> 4), null), 0, 1, 0, 0,
  0, :now, :now + (r.value ->> 7), r.value ->> 8, r.value ->> 9, r.value ->> 10, r.value ->> 11, r.value ->> 12,
  r.value ->> 13, coalesce(r.value ->> 14, r.value ->> 0), r.value ->> 15, r.value ->> 16,
  r.value ->> 5, r.value ->> 17, r.value ->> 6
from jsonb_each(:rows) as r
where not exists (select 1 from finished as f where f.id = r.value ->> 0)
on conflict (id) do nothing
on conflict (namespace, unique_key) where unique_key is not null do nothing;

-- name: claim_born
-- Give new tasks (id, owner, lease) to those who made them, where anybody could take them now.
update tasks
set owner_id = r.value ->> 1, claim_version = 1, claimed_at = :now, heartbeat_at = :now, progress_at = :now,
  wake_at = :now + (r.value ->> 2)
from jsonb_each(:rows) as r
where tasks.id = r.value ->> 0 and tasks.claim_version = 0 and tasks.version = 0
  and tasks.owner_id is null and tasks.wake_at is null and tasks.hold = 0
  and not exists (select 1 from lanes where lanes.id = tasks.lane_id and lanes.slowed);

-- name: explain_inserts
-- For each row of `insert_tasks`: whether it was inserted (its rowid is after `:last_before`), and who has its key if that is why not.
select json_group_array(json_array(
  exists (select 1 from tasks as t where t.id = r.value ->> 0 and t.rowid > :last_before),
  iif(
    exists (select 1 from tasks as t where t.id = r.value ->> 0) or exists (select 1 from finished as f where f.id = r.value ->> 0),
    null,
    (select t.id from tasks as t where t.namespace = r.value ->> 2 and t.unique_key = r.value ->> 5)
  )
))
from jsonb_each(:rows) as r;

-- name: insert_lanes
-- Make the lanes (namespace, kind, task list, name) that are missing, as their list and their handler's limit say.
insert into lanes (namespace, kind, task_list, name, paused, accepting, limit_key)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, coalesce(said.paused, 0), coalesce(said.accepting, 1), m.key
from jsonb_each(:rows) as r
left join lists as said on said.namespace = r.value ->> 0 and said.task_list = r.value ->> 2
left join limits as m on m.namespace = r.value ->> 0 and r.value ->> 1 = 'handler' and m.key = 'handler:' || (r.value ->> 3)
  and m.by_operator
where true
on conflict do nothing;

-- name: list_lanes
-- All lanes.
select id, namespace, kind, task_list, name from lanes order by id;
