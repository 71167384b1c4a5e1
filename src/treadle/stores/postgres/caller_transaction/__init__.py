"""A store in the caller's own transaction, on a connection of asyncpg, psycopg, SQLAlchemy or Django."""
