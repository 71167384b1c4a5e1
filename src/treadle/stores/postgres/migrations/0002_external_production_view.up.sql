-- Records of jobs in external services as a view, the due ones by an index, and the one transition that such a record makes.

insert into legal_transitions (entity, from_state, to_state) values ('external_production_record', 'live', 'ended');

-- The document of such a record as JSON; a record that cannot be read is shown with its other columns alone.
create function treadle_job_document(document text) returns jsonb language plpgsql immutable as $$
begin
  perform (job ->> 'polling_interval_seconds')::double precision, (job ->> 'progress')::double precision,
    (job ->> 'dispatched_at')::bigint, (job ->> 'last_polled_at')::bigint, (job ->> 'completed_at')::bigint,
    (job ->> 'render_event_object_id')::uuid, (job ->> 'polls')::integer, (job ->> 'raised')::integer,
    (job ->> 'raised_in_row')::integer, (job ->> 'due_at')::bigint
  from (select document::jsonb as job) as read;
  return document::jsonb;
exception when others then
  return '{}';
end
$$;

-- With a codec the documents are encoded: then the view shows only the other columns.
create view external_production_records_view as
select id as object_id, namespace, task_id as render_job_id, run_id, root_id,
  document ->> 'declared_render_type_ref' as declared_render_type_ref,
  document ->> 'specialist_ref' as specialist_ref,
  document ->> 'scope' as scope,
  document ->> 'external_job_id' as external_job_id,
  (document ->> 'polling_interval_seconds')::double precision as polling_interval_seconds,
  document ->> 'progress_hint' as progress_hint,
  (document ->> 'progress')::double precision as progress,
  (document ->> 'dispatched_at')::bigint as dispatched_at,
  (document ->> 'last_polled_at')::bigint as last_polled_at,
  (document ->> 'completed_at')::bigint as completed_at,
  (document ->> 'render_event_object_id')::uuid as render_event_object_id,
  document ->> 'failure_detail' as failure_detail,
  document ->> 'error_code' as error_code,
  (document ->> 'polls')::integer as polls,
  (document ->> 'raised')::integer as raised,
  (document ->> 'raised_in_row')::integer as raised_in_row,
  (document ->> 'due_at')::bigint as due_at
from (
  select id, namespace, task_id, run_id, root_id, treadle_job_document(document) as document
  from records
  where entity = 'external_production_record'
) as shown;

create index records_external_due on records (
  (case when document like '{%' then (document::jsonb ->> 'due_at')::bigint end)
) where entity = 'external_production_record' and ended_at is null;
