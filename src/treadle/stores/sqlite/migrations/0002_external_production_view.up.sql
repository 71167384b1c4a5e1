-- Records of jobs in external services as a view, the due ones by an index, and the one transition that such a record makes.

insert into legal_transitions (entity, from_state, to_state) values ('external_production_record', 'live', 'ended');

-- With a codec the documents are encoded: then the view shows only the other columns.
create view external_production_records_view as
select id as object_id, namespace, task_id as render_job_id, run_id, root_id,
  document ->> '$.declared_render_type_ref' as declared_render_type_ref,
  document ->> '$.specialist_ref' as specialist_ref,
  document ->> '$.scope' as scope,
  document ->> '$.external_job_id' as external_job_id,
  document ->> '$.polling_interval_seconds' as polling_interval_seconds,
  document ->> '$.progress_hint' as progress_hint,
  document ->> '$.progress' as progress,
  document ->> '$.dispatched_at' as dispatched_at,
  document ->> '$.last_polled_at' as last_polled_at,
  document ->> '$.completed_at' as completed_at,
  document ->> '$.render_event_object_id' as render_event_object_id,
  document ->> '$.failure_detail' as failure_detail,
  document ->> '$.error_code' as error_code,
  document ->> '$.polls' as polls,
  document ->> '$.raised' as raised,
  document ->> '$.raised_in_row' as raised_in_row,
  document ->> '$.due_at' as due_at
from (
  select id, namespace, task_id, run_id, root_id, iif(json_valid(document), document, '{}') as document
  from records
  where entity = 'external_production_record'
);

create index records_external_due on records (iif(json_valid(document), document ->> '$.due_at', null))
where entity = 'external_production_record' and ended_at is null;
