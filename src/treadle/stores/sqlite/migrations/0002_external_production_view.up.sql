-- Records of jobs in external services as a view, the due ones by an index, and the one transition that such a record makes.

insert into legal_transitions (entity, from_state, to_state) values ('external_production_record', 'live', 'ended');

-- With a codec the bodies are encoded: then the view shows only the other columns.
create view external_production_records_view as
select id as object_id, namespace, task_id as render_job_id, run_id, root_id,
  body ->> '$.declared_render_type_ref' as declared_render_type_ref,
  body ->> '$.specialist_ref' as specialist_ref,
  body ->> '$.scope' as scope,
  body ->> '$.external_job_id' as external_job_id,
  body ->> '$.polling_interval_seconds' as polling_interval_seconds,
  body ->> '$.progress_hint' as progress_hint,
  body ->> '$.progress' as progress,
  body ->> '$.dispatched_at' as dispatched_at,
  body ->> '$.last_polled_at' as last_polled_at,
  body ->> '$.completed_at' as completed_at,
  body ->> '$.render_event_object_id' as render_event_object_id,
  body ->> '$.failure_detail' as failure_detail,
  body ->> '$.error_code' as error_code,
  body ->> '$.polls' as polls,
  body ->> '$.raised' as raised,
  body ->> '$.raised_in_row' as raised_in_row,
  body ->> '$.due_at' as due_at
from (
  select id, namespace, task_id, run_id, root_id, iif(json_valid(body), body, '{}') as body
  from records
  where entity = 'external_production_record'
);

create index records_external_due on records (iif(json_valid(body), body ->> '$.due_at', null))
where entity = 'external_production_record' and ended_at is null;
