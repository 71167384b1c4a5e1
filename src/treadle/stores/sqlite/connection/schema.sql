-- name: find_schema
-- Whether the database has ever had our schema.
select count(*) from sqlite_schema where type = 'table' and name = 'treadle_schema';

-- name: read_version
-- The version of the schema.
select max(version) from treadle_schema;

-- name: create_schema
-- The table that holds the version of the schema.
create table if not exists treadle_schema (version integer not null) strict;

-- name: clear_version
-- The version is about to change.
delete from treadle_schema;

-- name: write_version
-- The version is this now.
insert into treadle_schema (version) values (:version);
