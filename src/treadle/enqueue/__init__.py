"""Enqueueing inside a transaction of your own, on a connection of your own driver to the store's PostgreSQL.

    from treadle.enqueue.psycopg import enqueue

    with connection.transaction():
        connection.execute("insert into orders ...")
        enqueue(connection, "charge", {"order": 17})

The task is there exactly when the transaction commits. All checks of Python's edge happen before anything is sent. No
signal goes out: workers find the task when they next look, which they do every few seconds. Modules: `asyncpg`,
`psycopg` (both faces) and `sqlalchemy` (both faces). A SQLite file has one writer, which another connection cannot join:
there, `enqueue` raises `Unsupported`.
"""

from treadle.enqueue.wish import Wish, make_wish

__all__ = ["Wish", "make_wish"]
