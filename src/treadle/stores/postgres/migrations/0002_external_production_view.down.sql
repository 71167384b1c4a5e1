-- Removes the view of jobs in external services, their records, and what these produced.
drop index records_external_due;
drop view external_production_records_view;
drop function treadle_job_document;
delete from legal_transitions where entity = 'external_production_record';
delete from records where entity in ('external_production_record', 'render_event');
