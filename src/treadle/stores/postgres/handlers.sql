-- name: save_handler
-- Insert the registration, or replace it; when it was made stays what it was.
insert into handler_registrations (namespace, facet_name, module_uri, entrypoint, version, checksum, timeout_for, requirements,
  metadata, created_at, updated_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, (select treadle_now()), (select treadle_now()))
on conflict (namespace, facet_name) do update
set module_uri = excluded.module_uri,
    entrypoint = excluded.entrypoint,
    version = excluded.version,
    checksum = excluded.checksum,
    timeout_for = excluded.timeout_for,
    requirements = excluded.requirements,
    metadata = excluded.metadata,
    updated_at = excluded.updated_at;

-- name: list_handlers
-- The registrations of the namespace $1 by name.
select facet_name, module_uri, entrypoint, version, checksum, timeout_for, requirements, metadata, created_at, updated_at
from handler_registrations
where namespace = $1::text
order by facet_name collate "C";

-- name: delete_handler
-- Remove the registration $2 of the namespace $1.
delete from handler_registrations where namespace = $1::text and facet_name = $2::text;

-- name: find_step
-- A step by its id.
select * from steps where id = $1::uuid;
