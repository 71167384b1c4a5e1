-- name: list_tables
-- List the tables of the schema, each with its partitions: bytes including indexes, estimated rows and dead rows, and the last
-- vacuum (ms).
select coalesce(parent.relname, t.relname)::text, sum(pg_total_relation_size(t.relid))::bigint, sum(t.n_live_tup)::bigint,
  sum(t.n_dead_tup)::bigint, (extract(epoch from max(greatest(t.last_vacuum, t.last_autovacuum))) * 1000)::bigint
from pg_stat_user_tables as t
join pg_class as c on c.oid = t.relid
left join pg_inherits as i on i.inhrelid = t.relid
left join pg_class as parent on parent.oid = i.inhparent
where t.schemaname = current_schema() and c.relkind = 'r'
group by 1
order by 2 desc, 1;

-- name: find_oldest_snapshot
-- Find the session that holds the oldest snapshot of this database, and its age (ms): dead rows that it can see stay.
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
-- Return the age of the first `wake_at` (ms); null or negative for none.
select treadle_now() - min(wake_at) from tasks where wake_at is not null;

-- name: find_settings
-- Return settings that matter for safety and maintenance, the connections in use, and the size of the database.
select current_setting('server_version') as server_version,
  current_setting('fsync') as fsync,
  current_setting('full_page_writes') as full_page_writes,
  current_setting('synchronous_commit') as synchronous_commit,
  current_setting('synchronous_standby_names') as synchronous_standby_names,
  (select count(*) from pg_stat_replication)::text as standbys,
  current_setting('data_checksums') as data_checksums,
  current_setting('autovacuum') as autovacuum,
  current_setting('max_connections') as max_connections,
  (select count(*) from pg_stat_activity where backend_type = 'client backend')::text as connections,
  pg_database_size(current_database()) as bytes;

-- name: count_checksum_failures
-- Count the damaged pages that the server has read in this database, and the day of the last one (UTC).
select coalesce(checksum_failures, 0), to_char(checksum_last_failure at time zone 'utc', 'YYYY-MM-DD')
from pg_stat_database
where datname = current_database();

-- name: describe
-- Return the server's version, sizes in bytes, and estimated rows.
select current_setting('server_version') as server_version,
  current_database() as database,
  pg_database_size(current_database()) as database_bytes,
  pg_total_relation_size('tasks') as live_bytes,
  (select sum(pg_total_relation_size(inhrelid))::bigint from pg_inherits where inhparent = 'finished'::regclass) as finished_bytes,
  (select sum(pg_total_relation_size(inhrelid))::bigint from pg_inherits where inhparent = 'log'::regclass) as log_bytes,
  (select n_live_tup from pg_stat_all_tables where relid = 'tasks'::regclass) as live_estimate,
  (select sum(pg_stat_get_live_tuples(inhrelid))::bigint from pg_inherits where inhparent = 'finished'::regclass) as finished_estimate,
  (select count(*) from pg_inherits where inhparent = 'finished'::regclass) as partitions;
