-- Records of jobs in external services as a view, the due ones by an index, and the one transition that such a record makes.

insert into legal_transitions (entity, from_state, to_state) values ('external_production_record', 'live', 'ended');

-- The body of such a record as JSON; a record that cannot be read is shown with its other columns alone.
create function treadle_job_body(body text) returns jsonb language plpgsql immutable as $$
begin
  perform (job ->> 'polling_interval_seconds')::double precision, (job ->> 'progress')::double precision,
    (job ->> 'dispatched_at')::bigint, (job ->> 'last_polled_at')::bigint, (job ->> 'completed_at')::bigint,
    (job ->> 'render_event_object_id')::uuid, (job ->> 'polls')::integer, (job ->> 'raised')::integer,
    (job ->> 'raised_in_row')::integer, (job ->> 'due_at')::bigint
  from (select body::jsonb as job) as read;
  return body::jsonb;
exception when others then
  return '{}';
end
$$;

-- With a codec the bodies are encoded: then the view shows only the other columns.
create view external_production_records_view as
select id as object_id, namespace, task_id as render_job_id, run_id, root_id,
  body ->> 'declared_render_type_ref' as declared_render_type_ref,
  body ->> 'specialist_ref' as specialist_ref,
  body ->> 'scope' as scope,
  body ->> 'external_job_id' as external_job_id,
  (body ->> 'polling_interval_seconds')::double precision as polling_interval_seconds,
  body ->> 'progress_hint' as progress_hint,
  (body ->> 'progress')::double precision as progress,
  (body ->> 'dispatched_at')::bigint as dispatched_at,
  (body ->> 'last_polled_at')::bigint as last_polled_at,
  (body ->> 'completed_at')::bigint as completed_at,
  (body ->> 'render_event_object_id')::uuid as render_event_object_id,
  body ->> 'failure_detail' as failure_detail,
  body ->> 'error_code' as error_code,
  (body ->> 'polls')::integer as polls,
  (body ->> 'raised')::integer as raised,
  (body ->> 'raised_in_row')::integer as raised_in_row,
  (body ->> 'due_at')::bigint as due_at
from (
  select id, namespace, task_id, run_id, root_id, treadle_job_body(body) as body
  from records
  where entity = 'external_production_record'
) as shown;

create index records_external_due on records (
  (case when body like '{%' then (body::jsonb ->> 'due_at')::bigint end)
) where entity = 'external_production_record' and ended_at is null;
