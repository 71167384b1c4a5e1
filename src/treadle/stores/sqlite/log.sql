-- name: list_histories
-- List the first entities after an id, each with its transitions as JSON.
with page as materialized (
  select entity, id, state, version
  from (
    select * from (select 'task' as entity, id, state, version from tasks where id > :after_id order by id limit :limit)
    union all
    select * from (select 'task', id, state, version from finished where id > :after_id order by id limit :limit)
    union all
    select * from (select 'run', id, state, transitions from runs where id > :after_id order by id limit :limit)
    union all
    select * from (select entity, id, state, transitions from records where id > :after_id order by id limit :limit)
  )
  order by id
  limit :limit
), grouped as materialized (
  select entity_id, json_group_array(json(transition)) as transitions
  from (select entity_id, transition from transitions where entity_id in (select id from page) order by entity_id, version)
  group by entity_id
)
select page.entity, page.id, page.state, page.version, coalesce(grouped.transitions, '[]')
from page left join grouped on grouped.entity_id = page.id
order by page.id;

-- name: list_transitions as json
-- List the transitions of many entities, each in order of version.
select coalesce('[' || group_concat(transition, ',') || ']', '[]')
from (select transition from transitions where entity_id in (select value from json_each(:ids)) order by entity_id, version);

-- name: list_takeovers as json
-- List the last expiries of leases on tasks of a run.
select coalesce('[' || group_concat(transition, ',') || ']', '[]')
from (
  select transition
  from (
    select m.transition, l.seq
    from log as l cross join transitions as m on m.entity_id = l.entity_id and m.version = l.version
    where l.run_id = :run_id and l.transition = 'expire'
    order by l.seq desc
    limit :limit
  )
  order by seq
);

-- name: list_events
-- List the transitions after a seq as JSON, in order, with the namespaces of their entities.
select namespace, transition
from (
  select *
  from (
    select * from (
      select l.seq, coalesce(
          (select t.namespace from tasks as t where t.id = l.entity_id),
          (select f.namespace from finished as f where f.id = l.entity_id),
          (select r.namespace from runs as r where r.id = l.entity_id),
          (select r.namespace from records as r where r.id = l.entity_id)
        ) as namespace,
        json_object('seq', l.seq, 'at', l.at, 'entity', l.entity, 'entity_id', l.entity_id, 'version', l.version, 'transition',
          l.transition,
            'from_state', l.from_state, 'to_state', l.to_state, 'actor', l.actor, 'claim_version', l.claim_version,
            'run_id', l.run_id, 'root_id', l.root_id, 'trace_id', l.trace_id, 'data', l.data) as transition
      from log as l
      where l.seq > :after_seq and l.seq <= :until_seq
      order by l.seq
      limit :limit
    )
    union all
    select * from (
      select f.seq, f.namespace,
        json_object('seq', f.seq, 'at', f.finished_at, 'entity', 'task', 'entity_id', f.id, 'version', f.version, 'transition',
          f.transition,
            'from_state', f.from_state, 'to_state', f.state, 'actor', f.actor, 'claim_version', f.claim_version,
            'run_id', f.run_id, 'root_id', f.root_id, 'trace_id', f.trace_id, 'data', f.error)
      from finished as f
      where f.seq > :after_seq and f.seq <= :until_seq
      order by f.seq
      limit :limit
    )
  )
  order by seq
  limit :limit
);

-- name: list_changes
-- List the last changes by operators before a seq as JSON, the last one first, with the namespaces and names of their entities.
with changes as materialized (
  select * from (
    select seq, at, entity, entity_id, version, transition, from_state, to_state, actor, claim_version, run_id, root_id, trace_id,
      data
    from log indexed by log_changes
    where actor not like '________-____-____-____-____________' and transition <> 'start'
      and (entity <> 'task' or transition not in ('approve', 'deny'))
      and seq < :before_seq and at >= :since and at < :until and (:actor is null or actor = :actor)
    order by seq desc
    limit :limit
  )
  union all
  select * from (
    select seq, finished_at, 'task', id, version, transition, from_state, state, actor, claim_version, run_id, root_id, trace_id,
      error
    from finished indexed by finished_changes
    where actor not like '________-____-____-____-____________' and transition not in ('approve', 'deny')
      and seq < :before_seq and finished_at >= :since and finished_at < :until and (:actor is null or actor = :actor)
      and queue_id not in (select id from queues where task_list = 'engine')
    order by seq desc
    limit :limit
  )
  order by seq desc
  limit :limit
)
select
  coalesce(
    (select namespace from tasks where id = c.entity_id),
    (select namespace from finished where id = c.entity_id),
    (select namespace from runs where id = c.entity_id),
    (select namespace from records where id = c.entity_id)
  ),
  json_object('seq', c.seq, 'at', c.at, 'entity', c.entity, 'entity_id', c.entity_id, 'version', c.version, 'transition',
    c.transition, 'from_state', c.from_state, 'to_state', c.to_state, 'actor', c.actor, 'claim_version', c.claim_version,
    'run_id', c.run_id, 'root_id', c.root_id, 'trace_id', c.trace_id, 'data', c.data),
  (select name from records where id = c.entity_id)
from changes as c
order by c.seq desc;

-- name: find_last_seq
-- Return the last assigned seq.
select value from seqs where name = 'transition';

-- name: append_lines
-- Insert log lines.
insert into lines (task_id, at, level, message, details, run_id, step_id)
select r.value ->> 0, r.value ->> 1, r.value ->> 2, r.value ->> 3, r.value ->> 4, r.value ->> 5, r.value ->> 6
from jsonb_each(:rows) as r;

-- name: list_lines as json
-- List the last lines of a task, oldest first.
select coalesce('[' || group_concat(line, ',') || ']', '[]')
from (
  select line
  from (
    select id, json_object('task_id', task_id, 'at', at, 'level', level, 'message', message, 'details', details,
      'run_id', run_id, 'step_id', step_id) as line
    from lines
    where task_id = :task_id
    order by id desc
    limit :limit
  )
  order by id
);

-- name: list_run_lines_before
-- List the last lines of a run before a number, the last one first.
select id, task_id, at, level, message, details, run_id, step_id
from lines
where run_id = :run_id and id < coalesce(:before, x'')
order by id desc
limit :limit;

-- name: list_run_lines_after
-- List the first lines of a run after a number.
select id, task_id, at, level, message, details, run_id, step_id
from lines
where run_id = :run_id and id > :after
order by id
limit :limit;
