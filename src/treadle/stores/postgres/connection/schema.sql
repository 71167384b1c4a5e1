-- name: read_version
-- Return the version of the schema; no row means that no migration was applied.
select version from treadle_schema;

-- name: lock_schema
-- Lock the schema $1 for changes until the transaction ends, without a timeout.
select set_config('statement_timeout', '0', true), set_config('treadle.schema', $1, true),
  pg_advisory_xact_lock(hashtextextended('treadle schema ' || $1, 0));

-- name: create_schema
-- Create the schema that `lock_schema` named, and the table that holds its version.
do $$
begin
  if not exists (select from pg_namespace where nspname = current_setting('treadle.schema')) then
    execute format('create schema %I', current_setting('treadle.schema'));
  end if;
  create table if not exists treadle_schema (version integer not null);
end
$$;

-- name: write_version
-- Set the version to $1.
with old as (delete from treadle_schema)
insert into treadle_schema (version) values ($1);
