"""The limit of the database: bare loops on one connection that claim 100 rows and complete 100 rows, one commit each.

`set_based_limit` has a table of two columns. `limit_with_history` has copies of the engine's own tables, indexes and rows,
and does what full history needs: the owner, the version and the lease on claiming; payload and result in `finished`, a
number for the log, and the row gone from the live table on completion.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.servers import connect

BATCH = 100


async def set_based_limit(url: str, count: int, batch: int = BATCH) -> float:
    """Rows per second through claim and completion, set-based, nothing else stored."""
    if url.startswith("sqlite"):
        return _sqlite_limit(_path(url), count, batch)
    return await _postgres_limit(url, count, batch)


async def limit_with_history(url: str, name: str, batch: int = BATCH) -> float:
    """The same with copies of all ready tasks of that name, kept in `finished` afterwards."""
    if url.startswith("sqlite"):
        return _sqlite_with_history(_path(url), name, batch)
    return await _postgres_with_history(url, name, batch)


def sync_us(times: int = 200) -> float:
    """Microseconds that the disk of temporary files takes to append 4 KiB to a file and sync it: the median."""
    took = []
    with tempfile.TemporaryFile(buffering=0) as file:
        for _ in range(times):
            started = time.perf_counter()
            file.write(bytes(4096))
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - started) * 1e6)
    return statistics.median(took)


def _path(url: str) -> str:
    return url.removeprefix("sqlite:///")


# --- SQLite ---


def _sqlite_limit(path: str, count: int, batch: int) -> float:
    connection = _open_sqlite(path)
    connection.execute("create table jobs (id integer primary key, state text not null) strict")
    connection.execute("create index jobs_ready on jobs (id) where state = 'ready'")
    with connection:
        connection.executemany("insert into jobs values (?, 'ready')", ((n,) for n in range(count)))
    claim = (
        "update jobs set state = 'taken' where id in (select id from jobs where state = 'ready' order by id limit ?) returning id"
    )
    started = time.perf_counter()
    done = 0
    while done < count:
        with connection:
            taken = [row[0] for row in connection.execute(claim, (batch,))]
        with connection:
            connection.executemany("update jobs set state = 'done' where id = ?", ((n,) for n in taken))
        done += len(taken)
    rate: float = count / (time.perf_counter() - started)
    _remove_sqlite(connection, path)
    return rate


def _sqlite_with_history(path: str, name: str, batch: int) -> float:
    connection = _open_sqlite(path)
    connection.execute("attach ? as ours", (path,))
    for (sql,) in connection.execute(
        "select sql from ours.sqlite_schema where tbl_name in ('tasks', 'finished') and type in ('table', 'index') "
        "and sql is not null order by type desc"
    ).fetchall():
        connection.execute(sql)
    with connection:
        connection.execute(
            "insert into tasks select t.* from ours.tasks t join ours.queues l on l.id = t.queue_id where l.name = ?", (name,)
        )
    connection.execute("detach ours")
    ((queue_id, priority, count),) = connection.execute("select queue_id, min(priority), count(*) from tasks").fetchall()
    kept, written = _history_columns(
        *([row[1] for row in connection.execute(f"pragma table_info({each})")] for each in ("tasks", "finished"))
    )
    claim = (
        "update tasks set owner_id = 'bench', claim_version = claim_version + 1, claimed_at = 1, heartbeat_at = 1, wake_at = 2 "
        "where id in (select id from tasks where queue_id = ? and priority = ? and owner_id is null and wake_at is null "
        "and blocked_by = 0 order by due_at, id limit ?) returning id, payload"
    )
    end = (
        f"insert into finished ({kept}, {', '.join(written)}) select {kept}, "
        f"? + row_number() over (), 'completed', 'succeed', state, 3, payload from tasks "
        "where id in (select value from json_each(?)) and owner_id = 'bench'"
    )
    started = time.perf_counter()
    done = 0
    while done < count:
        with connection:
            taken = [row[0] for row in connection.execute(claim, (queue_id, priority, batch))]
        with connection:
            ids = json.dumps(taken)
            connection.execute(end, (done, ids))
            connection.execute("delete from tasks where id in (select value from json_each(?)) and owner_id = 'bench'", (ids,))
        done += len(taken)
    rate: float = count / (time.perf_counter() - started)
    _remove_sqlite(connection, path)
    return rate


def _open_sqlite(path: str) -> Any:
    """A file of its own beside the store, with the durability that the store has."""
    import apsw

    connection = apsw.Connection(f"{path}.limit")
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("pragma cache_size = -16000")
    return connection


def _remove_sqlite(connection: Any, path: str) -> None:
    connection.close()
    Path(f"{path}.limit").unlink()


# --- PostgreSQL ---


async def _postgres_limit(url: str, count: int, batch: int) -> float:
    connection = await connect(url)
    await connection.execute("create table bench_jobs (id bigint primary key, state text not null)")
    await connection.execute("create index bench_ready on bench_jobs (id) where state = 'ready'")
    await connection.execute("insert into bench_jobs select n, 'ready' from generate_series(1, $1::bigint) n", count)
    await connection.execute("vacuum analyze bench_jobs")
    claim = await connection.prepare(
        "update bench_jobs set state = 'taken' where id = any(array(select id from bench_jobs where state = 'ready' "
        "order by id limit $1 for update skip locked)) returning id"
    )
    complete = await connection.prepare("update bench_jobs set state = 'done' where id = any($1::bigint[])")
    started = time.perf_counter()
    done = 0
    while done < count:
        taken = [row[0] for row in await claim.fetch(batch)]
        await complete.fetch(taken)
        done += len(taken)
    rate: float = count / (time.perf_counter() - started)
    await connection.execute("drop table bench_jobs")
    await connection.close()
    return rate


async def _postgres_with_history(url: str, name: str, batch: int) -> float:
    from treadle.stores.postgres.connection.address import parse_address

    ours = parse_address(url).schema
    connection = await connect(url)
    await connection.execute("drop schema if exists bench_limit cascade")
    await connection.execute("create schema bench_limit")
    for each in ("tasks", "finished"):
        await connection.execute(f"create table bench_limit.{each} (like {ours}.{each} including all)")
    await connection.execute("create sequence bench_limit.seq as bigint")
    await connection.execute(
        f"insert into bench_limit.tasks select t.* from {ours}.tasks t join {ours}.queues l on l.id = t.queue_id where l.name = $1",
        name,
    )
    await connection.execute("vacuum analyze bench_limit.tasks")
    await connection.execute("set search_path to bench_limit")
    queue_id, priority, count = await connection.fetchrow("select min(queue_id), min(priority), count(*) from tasks")
    named = (
        "select array_agg(attname::text) from pg_attribute where attrelid = $1::text::regclass and attnum > 0 and not attisdropped"
    )
    kept, written = _history_columns(*[await connection.fetchval(named, each) for each in ("tasks", "finished")])
    claim = await connection.prepare(
        "update tasks set owner_id = 'bench', claim_version = claim_version + 1, claimed_at = 1, heartbeat_at = 1, wake_at = 2 "
        "where id = any(array(select id from tasks where queue_id = $1 and priority = $2 and owner_id is null and wake_at is null "
        "and blocked_by = 0 order by due_at, id limit $3 for update skip locked)) returning id, payload"
    )
    end = await connection.prepare(
        f"with gone as (delete from tasks where id = any($1::uuid[]) and owner_id = 'bench' returning *) "
        f"insert into finished ({kept}, {', '.join(written)}) select {kept}, nextval('seq'), 'completed', 'succeed', state, 3, "
        "payload from gone"
    )
    started = time.perf_counter()
    done = 0
    while done < count:
        taken = [row[0] for row in await claim.fetch(queue_id, priority, batch)]
        await end.fetch(taken)
        done += len(taken)
    rate: float = count / (time.perf_counter() - started)
    await connection.execute("drop schema bench_limit cascade")
    await connection.close()
    return rate


def _history_columns(tasks: list[str], finished: list[str]) -> tuple[str, tuple[str, ...]]:
    """Columns that go from a task's row as they are, and those that its end writes."""
    written = ("seq", "state", "transition", "from_state", "finished_at", "result")
    return ", ".join(column for column in finished if column in tasks and column not in written), written
