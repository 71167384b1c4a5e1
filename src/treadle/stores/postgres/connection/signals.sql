-- name: notify
-- Notify all listeners of the channel $1.
select pg_notify($1::text, $2::text);

-- name: ping
-- Check that the connection works.
select 1;
