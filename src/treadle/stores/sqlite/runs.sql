-- name: find_run
-- Find a run by id.
select * from runs where id = :id;

-- name: find_last_link
-- Find the last run of a lineage.
select * from runs where lineage_id = :lineage_id order by link desc limit 1;

-- name: list_runs
-- List runs, newest first. (Any other index would sort all runs for one page.)
select *
from runs indexed by runs_created
where {sql:sqlite_run_filter}
order by created_at desc, id desc
limit :limit;

-- name: list_runs_of_state
-- List runs of one state, newest first.
select *
from runs indexed by runs_state
where namespace = :namespace and state = :states ->> 0
  and {sql:sqlite_run_filter}
order by created_at desc, id desc
limit :limit;

-- name: list_runs_of_workflow
-- List runs of one workflow or function, newest first.
select *
from runs indexed by runs_workflow
where workflow = :workflow
  and {sql:sqlite_run_filter}
order by created_at desc, id desc
limit :limit;

-- name: list_runs_by_activity
-- List unfinished runs by activity, newest first; the index by state skips finished ones.
select *
from runs indexed by runs_state
where namespace = :namespace and state in ('pending', 'running', 'paused')
  and {sql:sqlite_run_filter}
order by created_at desc, id desc
limit :limit;

-- name: find_run_created_at
-- Find the time of creation of a run.
select created_at from runs where id = :id;

-- name: count_activities
-- Count the newest unfinished runs that match a filter, by activity.
select activity, count(*)
from (
  select {sql:run_activity} as activity
  from runs indexed by runs_state
  where namespace = :namespace and state in ('pending', 'running', 'paused')
    and {sql:sqlite_run_filter}
  order by created_at desc, id desc
  limit :limit
) as newest
group by activity;

-- name: list_step_tasks
-- List the live tasks of steps.
select t.step_id, t.state, t.blocked_by, t.owner_id, t.claimed_at, t.attempt
from json_each(:step_ids) as wanted cross join tasks as t on t.step_id = wanted.value;

-- name: list_open_work
-- For each of the runs and activities: the number of live tasks, the first of them, and its open approval or external job.
with ranked (id, run_id, activity, wake_at) as (
  select t.id, t.run_id, {sql:activity}, coalesce(t.wake_at, 0)
  from json_each(:run_ids) as wanted cross join tasks as t on t.run_id = wanted.value cross join queues as l on l.id = t.queue_id
), numbered as (
  select id, activity, count(*) over (partition by run_id, activity) as count,
    row_number() over (partition by run_id, activity order by wake_at, id) as number
  from ranked
)
select n.activity, n.count, live.task,
  (select r.id from records as r where r.task_id = n.id and r.ended_at is null order by r.id desc limit 1)
from numbered as n cross join live on live.id = n.id
where n.number = 1;

-- name: list_failed_runs
-- List runs that failed after an instant and before a run, latest first.
select id, workflow, error, finished_at
from runs indexed by runs_failed
where namespace = :namespace and state = 'failed' and finished_at > :after and (finished_at, id) < (:before_at, :before_id)
order by finished_at desc, id desc
limit :limit;

-- name: count_runs
-- Count the runs of a namespace by state.
select state, count(*) from runs where namespace = :namespace group by state;

-- name: count_matching_runs
-- Count the runs that match a filter, by state.
select state, count(*)
from runs
where {sql:sqlite_run_filter}
group by state;

-- name: list_children
-- List unfinished runs that steps of the run started, including those started by runs that have finished meanwhile.
with recursive below (id, finished_at) as (
  select id, finished_at from runs where parent_id = :run_id and parent_step_id is not null
  union all
  select runs.id, runs.finished_at
  from below
  join runs on runs.parent_id = below.id and runs.parent_step_id is not null
  where below.finished_at is not null
)
select id from below where finished_at is null order by id;

-- name: load_near
-- Load the steps, their ancestors, and all children of both that are not items. (The plus prevents the use of the run's
-- index.)
with recursive chain (id, parent_id) as (
  select s.id, s.parent_id from json_each(:ids) as wanted cross join steps as s on s.id = wanted.value where +s.run_id = :run_id
  union
  select s.id, s.parent_id from chain cross join steps as s on s.id = chain.parent_id
)
select s.* from chain cross join steps as s on s.id = chain.id
union
select s.* from chain cross join steps as s on s.parent_id = chain.id where s.kind <> 'item';

-- name: load_rows
-- Load steps by id.
select s.* from json_each(:ids) as wanted cross join steps as s on s.id = wanted.value where +s.run_id = :run_id;

-- name: load_children
-- Load all children of steps: items and others, each by its own index.
select s.* from json_each(:ids) as wanted cross join steps as s on s.parent_id = wanted.value
where s.kind = 'item' and +s.run_id = :run_id
union all
select s.* from json_each(:ids) as wanted cross join steps as s on s.parent_id = wanted.value
where s.kind <> 'item' and +s.run_id = :run_id;

-- name: list_inbox
-- List steps of the run whose inbox is not empty.
select * from steps where run_id = :run_id and inbox is not null order by id limit :limit;

-- name: list_steps
-- List steps of the run in order of id.
select * from steps where run_id = :run_id and id > coalesce(:after_id, '') order by id limit :limit;

-- name: find_step
-- Find a step by id.
select * from steps where id = :id;

-- name: find_flow
-- Find a flow by digest.
select * from flows where id = :id;

-- name: publish_flow
-- Insert the next version of the name, unless the newest is this flow.
insert into flow_versions (namespace, name, version, flow_id, actor, published_at)
select :namespace, :name,
  coalesce((select max(version) from flow_versions where namespace = :namespace and name = :name), 0) + 1, :flow_id, :actor, :now
where :flow_id is not (
  select flow_id from flow_versions where namespace = :namespace and name = :name order by version desc limit 1
)
returning *;

-- name: find_flow_version
-- Find a version of the name, the newest by default.
select *
from flow_versions
where namespace = :namespace and name = :name and version = coalesce(:version, version)
order by version desc
limit 1;

-- name: list_flow_versions
-- List all versions of a name, newest first.
select * from flow_versions where namespace = :namespace and name = :name order by version desc;

-- name: list_newest_flows
-- List the newest version of every name.
select v.*
from flow_versions as v
where v.namespace = :namespace
  and v.version = (select max(version) from flow_versions as w where w.namespace = v.namespace and w.name = v.name)
order by v.name;

-- name: find_blobs
-- Find large values by digest.
select b.digest, b.value from json_each(:digests) as wanted cross join blobs as b on b.digest = wanted.value;

-- name: find_runs
-- Find runs by id, in any state or some.
select runs.*
from json_each(:ids) as wanted cross join runs on runs.id = wanted.value
where :states is null or runs.state in (select value from json_each(:states));
