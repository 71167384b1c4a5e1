"""A program that stores an order and enqueues its task in one transaction, and then waits to be killed.

python -m tests.crash.within_child URL SERVER before|after
"""

from __future__ import annotations

import sys
import time

import psycopg

from treadle import Engine


def main(url: str, server: str, table: str, moment: str) -> None:
    engine = Engine(url).blocking()
    with psycopg.connect(server) as connection:
        connection.execute(f"insert into {table} values (17)")
        engine.within(connection).enqueue("charge", {"order": 17})
        if moment == "after":
            connection.commit()
        print("ready", flush=True)
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
