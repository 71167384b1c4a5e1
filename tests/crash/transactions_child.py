"""A program that stores an order and enqueues its task in one transaction, and then waits to be killed.

python -m tests.crash.transactions_child URL SERVER before|after
"""

from __future__ import annotations

import sys
import time

import psycopg

from treadle import Engine


def wait() -> None:
    print("ready", flush=True)
    time.sleep(600)  # until it is killed


def in_file(url: str, table: str, moment: str) -> None:
    with Engine(url).blocking() as engine:
        with engine.transaction() as tx:
            tx.execute(f"insert into {table} values (17)")
            tx.enqueue("charge", {"order": 17})
            if moment == "before":
                wait()
        wait()


def on_server(url: str, table: str, moment: str, server: str) -> None:
    engine = Engine(url).blocking()
    with psycopg.connect(server) as connection:
        connection.execute(f"insert into {table} values (17)")
        engine.within(connection).enqueue("charge", {"order": 17})
        if moment == "after":
            connection.commit()
        wait()


if __name__ == "__main__":
    (on_server if len(sys.argv) > 4 else in_file)(*sys.argv[1:])
