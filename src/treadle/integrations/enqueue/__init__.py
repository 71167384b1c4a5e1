"""Enqueue a task in a transaction of your own, on a connection of your own driver to the store's PostgreSQL.

    from treadle.integrations.enqueue.psycopg import enqueue

    with connection.transaction():
        connection.execute("insert into orders ...")
        enqueue(connection, "charge", {"order": 17})

The task exists exactly when the transaction commits. All checks in Python happen before anything is sent. No signal is sent:
workers find the task at their next poll, every few seconds. Modules: `asyncpg`, `psycopg` and `sqlalchemy` (the last two
blocking and async). A SQLite file has one writer, which another connection cannot join: there, `enqueue` raises `Unsupported`.
"""

from treadle.integrations.enqueue.request import EnqueueRequest, make_request

Wish, make_wish = EnqueueRequest, make_request
"""Former names."""

__all__ = ["EnqueueRequest", "Wish", "make_request", "make_wish"]
