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
