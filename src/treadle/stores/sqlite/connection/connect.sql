-- name: use_wal
-- Readers do not block the writer, nor the writer readers.
pragma journal_mode = wal;

-- name: shrink_in_steps
-- Free pages can be given back a few at a time; has an effect only before the first table is made.
pragma auto_vacuum = incremental;

-- name: sync_every_commit
-- A commit that was answered survives a power cut.
pragma synchronous = full;

-- name: check_references
-- SQLite checks foreign keys only if asked to.
pragma foreign_keys = on;

-- name: keep_temporary_in_memory
-- No files for sorting.
pragma temp_store = memory;

-- name: enlarge_cache
-- KiB of pages that a connection may keep, used only as they are needed.
pragma cache_size = -16000;

-- name: refuse_writes
-- For connections that only read.
pragma query_only = on;

-- name: read_data_version
-- A number that changes whenever another connection has changed the database.
pragma data_version;

-- name: begin
-- Take the write lock at once, so that nothing seen inside can change before the commit.
begin immediate;

-- name: begin_reading
-- All statements until the end see the database as it was at the first of them.
begin deferred;

-- name: commit
-- Make it durable.
commit;

-- name: rollback
-- Nothing has happened.
rollback;
