-- The goal pipeline: the moves of its records, and the records that never change.

insert into legal_moves (entity, from_state, to_state) values
  ('objective', 'NEW', 'TODO'), ('objective', 'TODO', 'IN_PROGRESS'), ('objective', 'TODO', 'BLOCKED'),
  ('objective', 'IN_PROGRESS', 'DONE'), ('objective', 'IN_PROGRESS', 'TODO'), ('objective', 'IN_PROGRESS', 'BLOCKED'),
  ('objective', 'BLOCKED', 'TODO'),
  ('readiness_event', 'unprocessed', 'processed'),
  ('workorder', 'CREATED', 'EXECUTED');

-- Entities without a move never change.
create function treadle_written_once() returns trigger language plpgsql as $$
begin
  raise exception 'a % is written once', old.entity using errcode = 'check_violation';
end
$$;

create trigger records_written_once before update on records for each row
  when (old.entity in ('context_snapshot', 'output_bundle', 'run_record', 'pause_state')) execute function treadle_written_once();
