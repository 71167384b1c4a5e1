-- Removes the records of outside jobs and what they produced. Tasks that still await one have nothing to poll then.
drop index tasks_external;
drop index records_external_due;
drop view external_production_records_view;
delete from legal_moves where entity = 'external_production_record';
delete from records where entity in ('external_production_record', 'render_event');
