"""`python -m bench.filling FOLDER [--rows N] [--sqlite-rows N]`: long histories to measure on later, with `--folder FOLDER`.

The PostgreSQL server writes no log and forces nothing to disk while it is filled; afterwards it has its default settings again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from bench.benchmark import say
from bench.big_tables import SIZES, open_full
from bench.servers import connect, kept_store

_FILLING = (
    "alter system set wal_level = minimal",
    "alter system set max_wal_senders = 0",
    "alter system set fsync = off",
    "alter system set max_wal_size = '4GB'",
    "alter system set autovacuum = off",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.filling", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=SIZES.rows, help="finished tasks on PostgreSQL; 0 for none")
    parser.add_argument("--sqlite-rows", type=int, default=SIZES.sqlite_rows, help="finished tasks in SQLite's file; 0 for none")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.rows:
        _change(options.folder, *_FILLING)
        _fill("postgresql", options.folder, options.rows)
        _change(options.folder, "alter system reset all")
    if options.sqlite_rows:
        _fill("sqlite", options.folder, options.sqlite_rows)
    return 0


def _fill(kind: str, folder: Path, rows: int) -> None:
    began = time.perf_counter()
    with kept_store(kind, folder) as url:
        asyncio.run(_filled(url, rows))
    say(f"{rows:,} tasks on {kind} in {time.perf_counter() - began:.0f} s")


async def _filled(url: str, rows: int) -> None:
    await (await open_full(url, rows, SIZES.parts)).close()


def _change(folder: Path, *statements: str) -> None:
    """Change settings of the server, which apply when it is started again."""

    async def change(url: str) -> None:
        connection = await connect(url)
        for statement in statements:
            await connection.execute(statement)
        await connection.close()

    with kept_store("postgresql", folder) as url:
        asyncio.run(change(url))


if __name__ == "__main__":
    sys.exit(main())
