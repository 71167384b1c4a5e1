-- name: save_handler
-- Insert the registration, or replace it; when it was made stays what it was.
insert into handler_registrations (namespace, facet_name, module_uri, entrypoint, version, checksum, timeout_for, requirements,
  metadata, created_at, updated_at)
values (:namespace, :facet_name, :module_uri, :entrypoint, :version, :checksum, :timeout_for, :requirements, :metadata, :now, :now)
on conflict (namespace, facet_name) do update
set module_uri = excluded.module_uri, entrypoint = excluded.entrypoint, version = excluded.version, checksum = excluded.checksum,
  timeout_for = excluded.timeout_for, requirements = excluded.requirements, metadata = excluded.metadata,
  updated_at = excluded.updated_at;

-- name: list_handlers
-- The registrations of a namespace by name.
select facet_name, module_uri, entrypoint, version, checksum, timeout_for, requirements, metadata, created_at, updated_at
from handler_registrations
where namespace = :namespace
order by facet_name;

-- name: delete_handler
-- Remove a registration.
delete from handler_registrations where namespace = :namespace and facet_name = :facet_name;

-- name: find_step
-- A step by its id.
select * from steps where id = :id;
