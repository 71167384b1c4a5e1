-- name: read_version
-- The version of the schema; no row means that nothing was applied yet.
select version from treadle_schema;

-- name: lock_schema
-- One process at a time changes the schema $1, until its transaction ends; waiting for that has no limit.
select set_config('statement_timeout', '0', true), set_config('treadle.schema', $1, true),
  pg_advisory_xact_lock(hashtextextended('treadle schema ' || $1, 0));

-- name: create_schema
-- The schema that lock_schema named, and the table that holds its version.
do $$
begin
  if not exists (select from pg_namespace where nspname = current_setting('treadle.schema')) then
    execute format('create schema %I', current_setting('treadle.schema'));
  end if;
  create table if not exists treadle_schema (version integer not null);
end
$$;

-- name: write_version
-- The version is $1 now.
with old as (delete from treadle_schema)
insert into treadle_schema (version) values ($1);
