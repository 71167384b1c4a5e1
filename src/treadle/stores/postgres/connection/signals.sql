-- name: notify
-- Tell all who listen on the channel $1.
select pg_notify($1::text, $2::text);

-- name: ping
-- Is anybody there?
select 1;
