-- name: set_session
-- Set parameters ($1 names, $2 values) for the rest of the session.
select set_config(name, value, false) from unnest($1::text[], $2::text[]) as given (name, value);

-- name: set_local
-- Set parameters ($1 names, $2 values) for the rest of the transaction.
select set_config(name, value, true) from unnest($1::text[], $2::text[]) as given (name, value);
