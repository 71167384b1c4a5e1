-- name: list_events
-- The moves after a seq in their order, with the namespaces of who made them.
select coalesce('[' || group_concat(event, ',') || ']', '[]')
from (
  select event
  from (
    select * from (
      select l.seq, json_array(
          coalesce(
            (select t.namespace from tasks as t where t.id = l.entity_id),
            (select f.namespace from finished as f where f.id = l.entity_id),
            (select r.namespace from runs as r where r.id = l.entity_id),
            (select r.namespace from records as r where r.id = l.entity_id)
          ),
          json_object('seq', l.seq, 'at', l.at, 'entity', l.entity, 'entity_id', l.entity_id, 'version', l.version, 'move', l.move,
            'from_state', l.from_state, 'to_state', l.to_state, 'actor', l.actor, 'claim_version', l.claim_version,
            'run_id', l.run_id, 'root_id', l.root_id, 'trace_id', l.trace_id, 'data', l.data)) as event
      from log as l
      where l.seq > :after_seq and l.seq <= :until_seq
      order by l.seq
      limit :limit
    )
    union all
    select * from (
      select f.seq, json_array(f.namespace,
          json_object('seq', f.seq, 'at', f.finished_at, 'entity', 'task', 'entity_id', f.id, 'version', f.version, 'move', f.move,
            'from_state', f.from_state, 'to_state', f.state, 'actor', f.actor, 'claim_version', f.claim_version,
            'run_id', f.run_id, 'root_id', f.root_id, 'trace_id', f.trace_id, 'data', f.error))
      from finished as f
      where f.seq > :after_seq and f.seq <= :until_seq
      order by f.seq
      limit :limit
    )
  )
  order by seq
  limit :limit
);

-- name: find_last_seq
-- The last number that a move was given.
select value from seqs where name = 'move';

-- name: tally
-- Moves of tasks by minute, kind and move; the log does not say of which lane they were.
select l.namespace, l.kind, m.at / 60000 * 60000, m.move, m.to_state, count(*), max(m.waited_for)
from (
  select f.lane_id, f.finished_at as at, f.move, f.state as to_state,
    case when f.claim_version = 1 then f.claimed_at - f.due_at end as waited_for
  from finished as f
  where f.seq > :after_seq and f.seq <= :until_seq
  union all
  select coalesce((select t.lane_id from tasks as t where t.id = g.entity_id), (select f.lane_id from finished as f where f.id = g.entity_id)),
    g.at, g.move, g.to_state, null
  from log as g
  where g.seq > :after_seq and g.seq <= :until_seq and g.entity = 'task'
) as m cross join lanes as l on l.id = m.lane_id
group by l.namespace, l.kind, m.at / 60000, m.move, m.to_state;
