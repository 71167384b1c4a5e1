-- name: check_pages
-- Check all pages, rows, indexes and constraints; the only row is "ok" if there is no problem.
pragma integrity_check (20);

-- name: list_texts
-- List the stored values of all rows as bytes, with their tables and keys.
select 'tasks', id, cast(coalesce(payload, '') || coalesce(checkpoint, '') || coalesce(progress, '') || coalesce(error, '') as blob) from tasks
union all
select 'finished', id, cast(coalesce(payload, '') || coalesce(checkpoint, '') || coalesce(result, '') || coalesce(error, '') as blob) from finished
union all
select 'runs', id, cast(coalesce(inputs, '') || coalesce(outputs, '') || coalesce(error, '') as blob) from runs
union all
select 'steps', id, cast(coalesce(document, '') || coalesce(inbox, '') as blob) from steps
union all
select 'records', id, cast(document as blob) from records
union all
select 'record_items', record_id, cast(value as blob) from record_items
union all
select 'mail', id, cast(document as blob) from mail
union all
select 'log', entity_id, cast(data as blob) from log where data is not null
union all
select 'flows', id, cast(coalesce(sources, '') || coalesce(program, '') as blob) from flows
union all
select 'idempotency_outcomes', idempotency_key, cast(coalesce(response, '') || coalesce(details, '') as blob) from idempotency_outcomes
union all
select 'stream_chunks', owner_id, cast(entries as blob) from stream_chunks
union all
select 'blobs', digest, cast(value as blob) from blobs;
