"""The PgQueuer side of coming-from/pgqueuer-procrastinate.md; checked with PgQueuer 1.6.0."""

# --- define ---
import json
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
from pgqueuer import AsyncpgDriver, DatabaseRetryEntrypointExecutor, Job, PgQueuer, Queries
from pgqueuer.models import Schedule


@asynccontextmanager
async def factory():  # pgq run pgqueuer_app:factory
    connection = await asyncpg.connect("postgresql://localhost/shop")
    pgq = PgQueuer.from_asyncpg_connection(connection)

    @pgq.entrypoint(
        "resize",
        concurrency_limit=4,
        on_failure="hold",
        executor_factory=lambda parameters: DatabaseRetryEntrypointExecutor(
            parameters, max_attempts=5
        ),
    )
    async def resize(job: Job) -> None:
        image = json.loads(job.payload or b"{}")
        print(f"{image['image']} at {image['width']}, attempt {job.attempts + 1}")

    @pgq.schedule("clean_up", "*/10 * * * *")
    async def clean_up(schedule: Schedule) -> None: ...

    yield pgq


# --- rest ---
async def main(connection: asyncpg.Connection) -> None:
    # --- enqueue ---
    queries = Queries(AsyncpgDriver(connection))
    payload = json.dumps({"image": "a.png", "width": 100}).encode()
    await queries.enqueue("resize", payload)
    await queries.enqueue(
        "resize", payload, priority=5, execute_after=timedelta(minutes=10), dedupe_key="a.png"
    )
    # --- transaction ---
    async with connection.transaction():
        await connection.execute("insert into images values ('b.png')")
        await queries.enqueue("resize", payload)
