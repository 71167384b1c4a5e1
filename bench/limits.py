"""What the database itself can do: a bare loop that claims 100 rows and completes 100 rows, one commit each."""

from __future__ import annotations

import time


async def set_based_limit(url: str, count: int, batch: int = 100) -> float:
    """Rows per second through claim and completion, set-based, nothing else stored."""
    if url.startswith("sqlite"):
        return _sqlite_limit(url.removeprefix("sqlite:///") + ".limit", count, batch)
    return await _postgres_limit(url, count, batch)


def _sqlite_limit(path: str, count: int, batch: int) -> float:
    import apsw

    connection = apsw.Connection(path)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
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
    rate = count / (time.perf_counter() - started)
    connection.close()
    return rate


async def _postgres_limit(url: str, count: int, batch: int) -> float:
    import asyncpg

    connection = await asyncpg.connect(url)
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
    rate = count / (time.perf_counter() - started)
    await connection.execute("drop table bench_jobs")
    await connection.close()
    return rate
