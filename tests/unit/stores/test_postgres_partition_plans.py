"""Hot statements read few rows of a history in partitions, among 100,000 finished tasks, whatever the statistics say (D15)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from bench.history import fill
from tests.unit.stores.test_postgres_plans import BATCH, NOWHERE, Plan, explain, literal

from treadle.kernel.store.retention import DAY_FOR, Retention
from treadle.model.names import HANDLER, Lane
from treadle.stores.postgres import PostgresStore
from treadle.stores.postgres.connection.connect import HOT, READS, Connection
from treadle.stores.postgres.partitions import HOUR_FOR
from treadle.testing import ManualClock

pytestmark = pytest.mark.new_schema

ROWS = 100_000
WEEKS = 4
NEWEST = (str(2**52), "'ffffffff-ffff-ffff-ffff-ffffffffffff'")


@pytest.fixture(params=["no statistics", "fresh statistics"])
async def store(postgres_url: str, request: pytest.FixtureRequest) -> AsyncIterator[PostgresStore]:
    """A store with a history of four weeks, a partition each."""
    store = PostgresStore(postgres_url, clock=ManualClock())
    await store.open()
    await store.lane_ids([Lane("default", HANDLER, "default", "work")])
    now = await store.now()
    first = (now - WEEKS * 7 * DAY_FOR) // HOUR_FOR * HOUR_FOR
    await store.split(first, now + 7 * DAY_FOR, 7 * DAY_FOR)
    await store.prepare(Retention(store).rules)
    await fill(postgres_url, ROWS, WEEKS * 7 * DAY_FOR, now, analyze=request.param == "fresh statistics")
    yield store
    await store.close()


@pytest.fixture
async def connection(store: PostgresStore) -> AsyncIterator[Connection]:
    connection = await store._connector.connect(HOT)
    yield connection
    await connection.close()


def check(plan: Plan, limit: int) -> None:
    """It reads few rows, each partition by an index."""
    plan.reads_few_rows(limit)
    nodes = [node for node in plan.nodes if str(node.get("Relation Name", "")).startswith(("finished", "log"))]
    scans = [node for node in nodes if "Scan" in node["Node Type"]]
    assert scans
    assert all("Index Name" in node for node in scans if node["Actual Loops"]), scans


async def test_hot_statements_read_few_rows_of_a_partitioned_history(connection: Connection) -> None:
    ids = await literal(connection, "uuid", f"select id from finished order by id desc limit {BATCH}")
    seq = await connection.fetchval("select max(seq) from finished") - BATCH
    check(await explain(connection, "tasks.sql", "find_finished", ids), 5 * BATCH)
    check(await explain(connection, "log.sql", "list_events", str(seq), str(2**60), str(BATCH)), 10 * BATCH)
    check(await explain(connection, "log.sql", "tally", str(seq), str(seq + BATCH)), 10 * BATCH)
    check(await explain(connection, "log.sql", "list_ends", str(BATCH)), 10 * BATCH)
    check(await explain(connection, "dead_letters.sql", "list_dead_letters", *["null"] * 10, str(BATCH)), 10 * BATCH)
    rules = ("'default'", "0", "0")
    check(await explain(connection, "retention.sql", "find_window", *rules, "10", str(BATCH), *NOWHERE), 10 * BATCH)
    check(await explain(connection, "retention.sql", "list_prunable", *rules, ids), 20 * BATCH)
    check(await explain(connection, "retention.sql", "lock_members", ids, str(10 * BATCH)), 10 * BATCH)
    for name in ("delete_log", "delete_finished"):
        (await explain(connection, "retention.sql", name, ids)).reads_few_rows(10 * BATCH)
    words = f"array_fill('x'::text, array[{BATCH}])"
    check(await explain(connection, "commit/settlements.sql", "amend", ids, words, words, words), 10 * BATCH)


async def test_a_partition_that_is_left_out_is_not_read(store: PostgresStore, connection: Connection) -> None:
    parts = await connection.fetch("select * from treadle_parts() where lower_id is not null order by lower_id")
    bounds = [f"'{parts[0]['lower_id']}'", f"'{parts[1]['upper_id']}'"]
    plan = await explain(connection, "retention.sql", "find_window", "'default'", "0", "0", "0", str(BATCH), *bounds)
    read = {node["Relation Name"] for node in plan.nodes if str(node.get("Relation Name", "")).startswith("finished")}
    assert read.isdisjoint({f"finished_{part['part']}" for part in parts[:2]})
    check(plan, 10 * BATCH)


async def test_lists_read_few_rows_of_a_partitioned_history(store: PostgresStore) -> None:
    connection = await store._connector.connect(READS)
    await connection.execute("analyze finished")
    lane = ["null"] * 4
    newest = [NEWEST[1], "false", str(BATCH), NEWEST[0]]
    check(await explain(connection, "tasks.sql", "list_tasks", "null", "null", *lane, "null", *newest), 5 * BATCH)
    states = "array['completed']"
    check(await explain(connection, "tasks.sql", "list_tasks", "null", states, *lane, "null", *newest), 5 * BATCH)
    await connection.close()
