-- name: put_checkpoints
-- Store steps ($5 and on), each under the claim ($2 ids, $3 versions, $4 owners) of its unit ($1), where that is held; of a step
-- given twice, the last. Answers the units, and the hold of their tasks. Those are locked in the order of their ids.
with kept as materialized (
  select given.*, tasks.hold
  from unnest($1::text::integer[], $2::text::uuid[], $3::text::integer[], $4::text::text[], $5::text::uuid[], $6::text::uuid[],
    $7::text::uuid[], $8::text::integer[], $9::text::text[], $10::text::text[], $11::text::text[], $12::text::text[],
    $13::text[]) with ordinality
    as given (unit, task_id, claim_version, owner_id, id, run_id, parent_id, ordinal, kind, name, facet, state, body, number)
  join tasks on tasks.id = given.task_id and tasks.claim_version = given.claim_version and tasks.owner_id = given.owner_id
  order by tasks.id
  for no key update of tasks
), put as (
  insert into steps (id, run_id, parent_id, ordinal, kind, name, facet, state, body, created_at, updated_at)
  select distinct on (id) id, run_id, parent_id, ordinal, kind, name, facet, state, body, (select treadle_now()),
    (select treadle_now())
  from kept
  order by id, number desc
  on conflict (id) do update
  set ordinal = excluded.ordinal, kind = excluded.kind, name = excluded.name, facet = excluded.facet, state = excluded.state,
    body = excluded.body, updated_at = excluded.updated_at
)
select unit, hold from kept;
