-- name: search_path
-- Return the search path; on a connection that begins transactions by itself, this begins one.
select current_setting('search_path');

-- name: set_path
-- Set the search path until the transaction ends.
select set_config('search_path', $1, true);

-- name: set_clock
-- Set the clock of the tests until the transaction ends.
select set_config('treadle.clock_offset_ms', $1, true);

-- name: notify
-- Wake the workers when the transaction commits.
select pg_notify($1, $2);
