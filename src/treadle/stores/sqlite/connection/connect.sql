-- name: use_wal
-- Use a write-ahead log: readers and the writer do not block each other.
pragma journal_mode = wal;

-- name: shrink_in_steps
-- Allow returning free pages a few at a time; effective only before the first table is created.
pragma auto_vacuum = incremental;

-- name: sync_every_commit
-- Sync every commit, so that it survives a power loss.
pragma synchronous = full;

-- name: check_references
-- Enforce foreign keys, which SQLite does not do by default.
pragma foreign_keys = on;

-- name: keep_temporary_in_memory
-- Sort in memory, without temporary files.
pragma temp_store = memory;

-- name: enlarge_cache
-- Set the maximum cache of a connection (KiB); memory is used only as needed.
pragma cache_size = -16000;

-- name: refuse_writes
-- Make the connection read-only.
pragma query_only = on;

-- name: begin
-- Take the write lock immediately, so that nothing read in the transaction can change before the commit.
begin immediate;

-- name: begin_reading
-- Begin a read transaction: all statements see the database as of the first one.
begin deferred;

-- name: commit
-- Commit the transaction.
commit;

-- name: rollback
-- Roll the transaction back.
rollback;

-- name: count_shapes
-- Count the views of the connection.
select count(*) from temp.sqlite_schema where type = 'view';
