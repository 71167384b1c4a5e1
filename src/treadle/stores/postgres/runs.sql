-- name: find_run(id) on hot
-- Find a run by id.
select * from runs where id = $1::uuid;

-- name: find_last_link(lineage_id) on hot
-- Find the last run of a lineage.
select * from runs where lineage_id = $1::uuid order by link desc limit 1;

-- name: list_runs(states, namespace, workflow, flow_ids, before_id, kind, task_list, root_id, created_after, created_before, search, activity, before_at, limit)
-- List runs, newest first.
select *
from runs
where {sql:postgres_run_filter}
order by created_at desc, id desc
limit $14::bigint;

-- name: list_runs_of_state(states, namespace, workflow, flow_ids, before_id, kind, task_list, root_id, created_after, created_before, search, activity, before_at, limit)
-- List runs of one state, newest first.
select *
from runs
where namespace = $2::text and state = ($1::text[])[1]
  and {sql:postgres_run_filter}
order by created_at desc, id desc
limit $14::bigint;

-- name: list_runs_of_workflow(states, namespace, workflow, flow_ids, before_id, kind, task_list, root_id, created_after, created_before, search, activity, before_at, limit)
-- List runs of one workflow or function, newest first.
select *
from runs
where workflow collate "C" = $3::text
  and {sql:postgres_run_filter}
order by created_at desc, id desc
limit $14::bigint;

-- name: list_runs_by_activity(states, namespace, workflow, flow_ids, before_id, kind, task_list, root_id, created_after, created_before, search, activity, before_at, limit)
-- List unfinished runs by activity, newest first.
select *
from runs
where {sql:postgres_run_filter}
order by created_at desc, id desc
limit $14::bigint;

-- name: find_run_created_at(id)
-- Find the time of creation of a run.
select created_at from runs where id = $1::uuid;

-- name: count_activities(states, namespace, workflow, flow_ids, before_id, kind, task_list, root_id, created_after, created_before, search, activity, before_at, limit)
-- Count the newest unfinished runs that match a filter, by activity.
select activity, count(*)
from (
  select {sql:run_activity} as activity
  from runs
  where state in ('pending', 'running', 'paused') and {sql:postgres_run_filter}
  order by created_at desc, id desc
  limit $14::bigint
) as newest
group by activity;

-- name: list_step_tasks(step_ids)
-- List the live tasks of the steps $1.
select step_id::text, state, blocked_by, owner_id, claimed_at, attempt from tasks where step_id = any ($1::uuid[]);

-- name: list_open_work(run_ids)
-- For each of the runs and activities: the number of live tasks, the first of them, and its open approval or external job.
with ranked (id, run_id, activity, wake_at) as (
  select t.id, t.run_id, {sql:activity}, coalesce(t.wake_at, 0)
  from tasks as t join queues as l on l.id = t.queue_id
  where t.run_id = any($1::uuid[])
), numbered as (
  select id, activity, count(*) over (partition by run_id, activity) as count,
    row_number() over (partition by run_id, activity order by wake_at, id) as number
  from ranked
)
select n.activity, n.count, (select row_to_json(task)::text from (select {t.live}, l.kind, l.task_list, l.name) as task),
  (select r.id::text from records as r where r.task_id = n.id and r.ended_at is null order by r.id desc limit 1)
from numbered as n join tasks as t on t.id = n.id join queues as l on l.id = t.queue_id
where n.number = 1;

-- name: list_failed_runs(namespace, after, limit, before_at, before_id)
-- List runs of the namespace $1 that failed after the instant $2 and before the run $5, which failed at $4, latest first.
select id::text, workflow, error, finished_at
from runs
where namespace = $1 and state = 'failed' and finished_at > $2::bigint and (finished_at, id) < ($4::bigint, $5::uuid)
order by finished_at desc, id desc
limit $3::bigint;

-- name: count_runs(namespace)
-- Count the runs of a namespace by state.
select state, count(*) from runs where namespace = $1::text group by state;

-- name: count_matching_runs(states, namespace, workflow, flow_ids, before_id, kind, task_list, root_id, created_after, created_before, search, activity, before_at)
-- Count the runs that match a filter, by state.
select state, count(*)
from runs
where {sql:postgres_run_filter}
group by state;

-- name: list_children(run_id) on hot
-- List unfinished runs that steps of the run started, including those started by runs that have finished meanwhile.
with recursive below as (
  select id, finished_at from runs where parent_id = $1::uuid and parent_step_id is not null
  union all
  select runs.id, runs.finished_at
  from below
  join runs on runs.parent_id = below.id and runs.parent_step_id is not null
  where below.finished_at is not null
)
select id::text from below where finished_at is null order by id;

-- name: load_near(run_id, ids) on hot
-- Load the steps, their ancestors, and all children of both that are not items. (`offset 0` prevents the use of the run's
-- index.)
with recursive chain (id, parent_id) as (
  select found.id, found.parent_id
  from unnest($2::uuid[]) as wanted (id)
  cross join lateral (select id, run_id, parent_id from steps where steps.id = wanted.id offset 0) as found
  where found.run_id = $1::uuid
  union
  select steps.id, steps.parent_id from chain join steps on steps.id = chain.parent_id
), near (id) as (
  select id from chain
  union
  select steps.id from chain join steps on steps.parent_id = chain.id where steps.kind <> 'item'
)
select steps.* from near join steps on steps.id = near.id;

-- name: load_rows(run_id, ids) on hot
-- Load steps by id.
select found.*
from unnest($2::uuid[]) as wanted (id)
cross join lateral (select * from steps where steps.id = wanted.id offset 0) as found
where found.run_id = $1::uuid;

-- name: load_children(run_id, ids) on hot
-- Load all children of steps: items and others, each by its own index.
select found.*
from unnest($2::uuid[]) as wanted (id)
cross join lateral (
  select * from steps where steps.parent_id = wanted.id and steps.kind = 'item'
  union all
  select * from steps where steps.parent_id = wanted.id and steps.kind <> 'item'
  offset 0
) as found
where found.run_id = $1::uuid;

-- name: list_inbox(run_id, limit) on hot
-- List steps of the run whose inbox is not empty.
select * from steps where run_id = $1::uuid and inbox is not null order by id limit $2::bigint;

-- name: list_steps(run_id, after_id, limit)
-- List steps of the run in order of id.
select * from steps where run_id = $1::uuid and ($2::uuid is null or id > $2::uuid) order by id limit $3::bigint;

-- name: find_step(id)
-- Find a step by id.
select * from steps where id = $1::uuid;

-- name: find_flow(id) on hot
-- Find a flow by digest.
select * from flows where id = $1::text;

-- name: publish_flow(namespace, name, flow_id, actor)
-- Insert the next version of the name, unless the newest is this flow, or a concurrent call takes the number.
insert into flow_versions (namespace, name, version, flow_id, actor, published_at)
select $1::text, $2::text, coalesce(max(version), 0) + 1, $3::text, $4::text, treadle_now()
from flow_versions
where namespace = $1::text and name = $2::text
having $3::text is distinct from (
  select flow_id from flow_versions where namespace = $1::text and name = $2::text order by version desc limit 1
)
on conflict do nothing
returning *;

-- name: find_flow_version(namespace, name, version)
-- Find a version of the name, the newest by default.
select *
from flow_versions
where namespace = $1::text and name = $2::text and ($3::integer is null or version = $3::integer)
order by version desc
limit 1;

-- name: list_flow_versions(namespace, name)
-- List all versions of a name.
select * from flow_versions where namespace = $1::text and name = $2::text order by version desc;

-- name: list_newest_flows(namespace)
-- List the newest version of every name.
select *
from flow_versions as v
where namespace = $1::text
  and version = (select max(version) from flow_versions as w where w.namespace = v.namespace and w.name = v.name)
order by name;

-- name: find_blobs(digests) on hot
-- Find large values by digest.
select blobs.digest, blobs.value from unnest($1::text[]) as wanted (digest) join blobs on blobs.digest = wanted.digest;

-- name: find_runs(ids, states) on hot
-- Find runs by id, in one of the states $2 (null: any).
select * from runs where id = any ($1::uuid[]) and ($2::text[] is null or state = any ($2::text[]));
