-- name: asyncpg
-- Enqueue, as asyncpg binds it; {schema} is a checked name.
select {schema}.treadle_enqueue_v1($1::json)::text;

-- name: psycopg
-- Enqueue, as psycopg binds it; {schema} is a checked name.
select {schema}.treadle_enqueue_v1(%s::json)::text;

-- name: sqlalchemy
-- Enqueue, as SQLAlchemy binds it; {schema} is a checked name.
select cast({schema}.treadle_enqueue_v1(cast(:spec as json)) as text);
