-- name: list_tables
-- The tables of the schema: bytes with indexes, rows and dead rows about, and when they were last vacuumed (ms).
select relname::text, pg_total_relation_size(relid), n_live_tup, n_dead_tup,
  (extract(epoch from greatest(last_vacuum, last_autovacuum)) * 1000)::bigint
from pg_stat_user_tables
where schemaname = current_schema()
order by 2 desc, 1;

-- name: find_oldest_snapshot
-- Who keeps the oldest snapshot open in this database, and for how long (ms): dead rows that it could see stay.
select holder, lasting
from (
  select format('%s (pid %s, %s, user %s)', coalesce(nullif(application_name, ''), backend_type), pid, coalesce(state, 'active'), usename)
      as holder,
    (extract(epoch from clock_timestamp() - coalesce(xact_start, query_start, backend_start)) * 1000)::bigint as lasting
  from pg_stat_activity
  where backend_xmin is not null and pid <> pg_backend_pid() and (datname = current_database() or datname is null)
  union all
  select format('prepared transaction %s', gid), (extract(epoch from clock_timestamp() - prepared) * 1000)::bigint
  from pg_prepared_xacts
  where database = current_database()
) as snapshots
order by lasting desc
limit 1;

-- name: find_overdue
-- How long ago the first `wake_at` was (ms); null or negative for none.
select treadle_now() - min(wake_at) from tasks where wake_at is not null;

-- name: find_settings
-- Settings that decide about safety and upkeep, connections in use, and the size of the database.
select current_setting('server_version') as server_version,
  current_setting('fsync') as fsync,
  current_setting('full_page_writes') as full_page_writes,
  current_setting('synchronous_commit') as synchronous_commit,
  current_setting('autovacuum') as autovacuum,
  current_setting('max_connections') as max_connections,
  (select count(*) from pg_stat_activity where backend_type = 'client backend')::text as connections,
  pg_database_size(current_database()) as bytes;

-- name: describe
-- The server's version, sizes in bytes, and how many rows there are about.
select current_setting('server_version') as server_version,
  current_database() as database,
  pg_database_size(current_database()) as database_bytes,
  pg_total_relation_size('tasks') as live_bytes,
  pg_total_relation_size('finished') as finished_bytes,
  pg_total_relation_size('log') as log_bytes,
  (select n_live_tup from pg_stat_all_tables where relid = 'tasks'::regclass) as live_estimate,
  (select n_live_tup from pg_stat_all_tables where relid = 'finished'::regclass) as finished_estimate;
