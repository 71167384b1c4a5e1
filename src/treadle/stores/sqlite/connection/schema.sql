-- name: find_schema
-- Return whether the database has Treadle's schema.
select count(*) from sqlite_schema where type = 'table' and name = 'treadle_schema';

-- name: read_version
-- Return the version of the schema.
select max(version) from treadle_schema;

-- name: create_schema
-- Create the table that holds the version of the schema.
create table if not exists treadle_schema (version integer not null) strict;

-- name: clear_version
-- Delete the version, before the new one is written.
delete from treadle_schema;

-- name: write_version
-- Set the version.
insert into treadle_schema (version) values (:version);

-- name: list_names
-- List the names of all tables, views and indexes.
select name from sqlite_schema;
