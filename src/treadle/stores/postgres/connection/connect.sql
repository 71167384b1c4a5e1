-- name: set_session
-- Set parameters ($1 names, $2 values) for the rest of the session.
select set_config(name, value, false) from unnest($1::text[], $2::text[]) as given (name, value);

-- name: set_local
-- Set parameters ($1 names, $2 values) for the rest of the transaction.
select set_config(name, value, true) from unnest($1::text[], $2::text[]) as given (name, value);

-- name: identify
-- Return the standing of the server: of a primary the timeline that it writes, of a standby the one that it has replayed.
select pg_is_in_recovery() as standby, current_setting('transaction_read_only') = 'on' as read_only,
  pg_postmaster_start_time() as started_at, own.system_identifier as system_id,
  case when pg_is_in_recovery() then greatest(checkpoint.timeline_id, recovery.min_recovery_end_timeline)::bigint
    else ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint end as timeline
from pg_control_system() as own, pg_control_checkpoint() as checkpoint, pg_control_recovery() as recovery;

-- name: identify_roughly
-- Return the standing of a server that does not let this user read its timeline.
select pg_is_in_recovery() as standby, current_setting('transaction_read_only') = 'on' as read_only,
  pg_postmaster_start_time() as started_at;
