-- name: list_events
-- Up to $3 moves after the seq $1 and up to $2 in their order, with the namespaces of who made them.
select coalesce(found.namespace, tasks.namespace, finished.namespace, runs.namespace, records.namespace) as row_namespace, found.seq, found.at,
  found.entity, found.entity_id, found.version, found.move, found.from_state, found.to_state, found.actor, found.claim_version,
  found.run_id, found.root_id, found.trace_id, found.data
from (
  select *
  from (
    (
      select null as namespace, seq, at, entity, entity_id, version, move, from_state, to_state, actor, claim_version, run_id, root_id,
        trace_id, data
      from log
      where seq > $1::bigint and seq <= $2::bigint
      order by seq
      limit $3::bigint
    )
    union all
    (
      select namespace, seq, finished_at, 'task', id, version, move, from_state, state, actor, claim_version, run_id, root_id,
        trace_id, error
      from finished
      where seq > $1::bigint and seq <= $2::bigint
      order by seq
      limit $3::bigint
    )
  ) as either
  order by seq
  limit $3::bigint
) as found
left join tasks on found.namespace is null and tasks.id = found.entity_id
left join finished on found.namespace is null and finished.id = found.entity_id
left join runs on found.namespace is null and runs.id = found.entity_id
left join records on found.namespace is null and records.id = found.entity_id
order by found.seq;

-- name: find_last_seq
-- The last number that a move was given, whether it is committed or not.
select case when is_called then last_value else 0 end from treadle_seq;

-- name: tally
-- Moves of tasks after the seq $1 and up to $2 by minute, kind and move; the log does not say of which lane they were.
select lanes.namespace, lanes.kind, either.at / 60000 * 60000, either.move, either.to_state, count(*), max(either.waited_for)
from (
  select finished.lane_id, finished.finished_at as at, finished.move, finished.state as to_state,
    case when finished.claim_version = 1 then finished.claimed_at - finished.due_at end as waited_for
  from finished
  where finished.seq > $1::bigint and finished.seq <= $2::bigint
  union all
  select coalesce(tasks.lane_id, ended.lane_id), log.at, log.move, log.to_state, null
  from log
  left join tasks on tasks.id = log.entity_id
  left join finished as ended on ended.id = log.entity_id
  where log.seq > $1::bigint and log.seq <= $2::bigint and log.entity = 'task'
) as either
join lanes on lanes.id = either.lane_id
group by lanes.namespace, lanes.kind, either.at / 60000, either.move, either.to_state;
