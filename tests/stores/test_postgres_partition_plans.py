"""Hot statements read few rows of a history in partitions, among 100,000 finished tasks, whatever the statistics say (D15)."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator

import pytest
from bench.history import fill
from tests.limits import BOUND
from tests.stores.test_postgres_plans import BATCH, NOWHERE, Plan, explain, literal, rolled_back

from treadle.kernel.store.retention import DAY_FOR, Retention
from treadle.model.ids import id_time
from treadle.model.names import HANDLER, QueueKey
from treadle.stores.postgres import PostgresStore
from treadle.stores.postgres.connection.connect import HOT, LISTS, PostgresConnection
from treadle.stores.postgres.partitions import HOUR_FOR
from treadle.stores.statements import COLUMN_SETS, load_statements
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
    await store.tasks.queue_ids([QueueKey("default", HANDLER, "default", "work")])
    now = await store.now()
    first = (now - WEEKS * 7 * DAY_FOR) // HOUR_FOR * HOUR_FOR
    await store.retention.split(first, now + 7 * DAY_FOR, 7 * DAY_FOR)
    await store.retention.prepare(Retention(store).rules)
    await fill(postgres_url, ROWS, WEEKS * 7 * DAY_FOR, now, analyze=request.param == "fresh statistics")
    yield store
    await store.close()


@pytest.fixture
async def connection(store: PostgresStore) -> AsyncIterator[PostgresConnection]:
    connection = await store._database.connector.connect(HOT)
    yield connection
    await connection.close()


@pytest.fixture
async def listing(store: PostgresStore) -> AsyncIterator[PostgresConnection]:
    connection = await store._database.connector.connect(LISTS)
    yield connection
    await connection.close()


def check(plan: Plan, limit: int) -> None:
    """It reads few rows, each partition by an index."""
    plan.reads_few_rows(limit)
    nodes = [node for node in plan.nodes if str(node.get("Relation Name", "")).startswith(("finished", "log"))]
    scans = [node for node in nodes if "Scan" in node["Node Type"]]
    assert scans
    assert all("Index Name" in node for node in scans if node["Actual Loops"]), scans


async def hot_of(connection: PostgresConnection) -> dict[str, tuple[str, str, list[str]]]:
    """The hot statements about ended tasks: file, statement and arguments, with the newest tasks of the history."""
    ids = await literal(connection, "uuid", f"select id from finished order by id desc limit {BATCH}")
    seq = await connection.fetchval("select coalesce(max(seq), 0) from finished") - BATCH
    rules = ["'default'", "0", "0"]
    filled = (f"array_fill({value}, array[{BATCH}])" for value in ("'x'::text", "'failed'::text", "1", "0"))
    words, states, ones, zeros = filled
    given = {
        "id": ids,
        "queue_id": ones,
        "namespace": words,
        "priority": ones,
        "blocked_by": zeros,
        "payload": words,
        "delay": zeros,
    }
    new = [given.get(column.name, "'{}'") for column in COLUMN_SETS["given"]]
    return {
        "by id": ("tasks.sql", "find_finished", [ids]),
        "events": ("log.sql", "list_events", [str(seq), str(2**60), str(BATCH)]),
        "tally": ("metrics.sql", "tally", [str(seq), str(seq + BATCH)]),
        "page": ("metrics.sql", "find_page", [str(seq), str(BATCH), "0"]),
        "dead letters": ("dead_letters.sql", "list_dead_letters", [*["null"] * 8, "0", str(2**60), str(BATCH)]),
        "window": ("retention.sql", "find_window", [*rules, "10", str(BATCH), *NOWHERE]),
        "prunable": ("retention.sql", "list_prunable", [*rules, ids]),
        "members": ("retention.sql", "lock_members", [ids, str(10 * BATCH)]),
        "removal of transitions": ("retention.sql", "delete_log", [ids]),
        "removal": ("retention.sql", "delete_finished", [ids]),
        "amendment": ("commit/settlements.sql", "discard_finished", [ids, words, states, words]),
        "settled": ("commit/guards.sql", "list_settled", [ids, ones, words, words, words]),
        "locks": ("commit/guards.sql", "lock_finished", [ids]),
        "new": ("commit/inserts.sql", "insert_tasks", [*new, "array[1]"]),
        "refusals": ("commit/inserts.sql", "explain_refusals", [ids, words, words, ids]),
        "revival": ("commit/settlements.sql", "redrive", [ids, words, words, "'{}'", zeros, "'{}'", words]),
    }


async def test_hot_statements_read_few_rows_of_a_partitioned_history(connection: PostgresConnection) -> None:
    for file, statement, arguments in (await hot_of(connection)).values():
        async with rolled_back(connection):
            check(await explain(connection, file, statement, *arguments), 20 * BATCH)


async def test_a_partition_that_is_left_out_is_not_read(store: PostgresStore, connection: PostgresConnection) -> None:
    parts = await connection.fetch("select * from treadle_parts() where lower_id is not null order by lower_id")
    bounds = [f"'{parts[0]['lower_id']}'", f"'{parts[1]['upper_id']}'"]
    plan = await explain(connection, "retention.sql", "find_window", "'default'", "0", "0", "0", str(BATCH), *bounds)
    read = {node["Relation Name"] for node in plan.nodes if str(node.get("Relation Name", "")).startswith("finished")}
    assert read.isdisjoint({f"finished_{part['part']}" for part in parts[:2]})
    check(plan, 10 * BATCH)


ANY = ["null"] * 5
SPAN = ["'default'", "'task'", *NEWEST, "0"]
PAGE = [*NEWEST, str(BATCH)]
LIVE, ENDED, BOTH = ["false", "true", "false"], ["false", "false", "true"], ["false", "true", "true"]


async def lists_of(connection: PostgresConnection) -> dict[str, tuple[str, str, list[str]]]:
    """The lists of partitioned tables: file, statement and arguments, with the oldest task and the newest run of the history."""
    row = await connection.fetchrow("select min(id::text), max(id::text), max(run_id::text), max(seq) / 2 from finished")
    first, last, of_run, middle = row if row and row[0] else (NEWEST[1].strip("'"),) * 3 + (0,)
    run = f"'{of_run}'"
    ids, task = f"'{{{first},{last}}}'::uuid[]", f"'{first}'"
    queue = ["null", "'default'", "null", "null", "'work'"]
    return {
        "by id": ("tasks.sql", "find_tasks", [ids]),
        "newest": ("tasks.sql", "list_tasks", [*ANY, *BOTH, *PAGE]),
        "of a state": ("tasks.sql", "list_tasks", ["array['completed']", *ANY[1:], *ENDED, *PAGE]),
        "of a name": ("tasks.sql", "list_tasks", [*queue, *BOTH, *PAGE]),
        "a later page": ("tasks.sql", "list_tasks", [*ANY, *BOTH, str(id_time(first) + DAY_FOR), NEWEST[1], str(BATCH)]),
        "of a run": ("tasks.sql", "list_run_tasks", [*ANY, *BOTH, *PAGE, run]),
        "dead letters": ("dead_letters.sql", "list_dead_letters", [*["null"] * 8, "0", str(middle), str(BATCH)]),
        "walk of dead letters": ("dead_letters.sql", "walk_dead_letters", [*["null"] * 8, str(middle), str(2**60), str(BATCH)]),
        "ids": ("search.sql", "list_task_ids", ["'default'", task, task, str(BATCH)]),
        "a rare word": ("search.sql", "list_some_tasks_with_words", [*SPAN, "$$'order113'$$", str(BATCH)]),
        "a common word": ("search.sql", "list_new_tasks_with_words", [*SPAN, "$$'timeout'$$", "10", "'timeout'", "10000"]),
        "transitions": ("log.sql", "list_transitions", [ids]),
        "takeovers": ("log.sql", "list_takeovers", [run, "10"]),
        "histories": ("log.sql", "list_histories", [task, str(BATCH)]),
        "tree": ("traces.sql", "list_tree_tasks", [f"array[{run}]::uuid[]", str(BATCH)]),
        "trace": ("traces.sql", "list_trace_roots", ["'default'", "'t'", str(BATCH)]),
    }


async def test_lists_read_few_rows_of_a_partitioned_history(listing: PostgresConnection) -> None:
    for name, (file, statement, arguments) in (await lists_of(listing)).items():
        plan = await explain(listing, file, statement, *arguments)
        plan.reads_few_rows(10 * BATCH)
        scans = [node for node in plan.nodes if node["Node Type"] == "Seq Scan" and node["Relation Name"] != "queues"]
        assert not [node for node in scans if node["Actual Loops"]], name


WEEKLY = "vacuumed weeks"
EMPTIED = {
    "never vacuumed": (),
    "vacuumed": ("vacuum analyze finished, log",),
    WEEKLY: ("vacuum analyze finished, log",),
    "emptied": ("delete from finished", "delete from log", "vacuum analyze finished, log"),
    "emptied but for a row": (  # the last one, so that vacuum does not cut off the pages
        "delete from finished where ctid <> (select max(ctid) from finished)",
        "delete from log where ctid <> (select max(ctid) from log)",
        "vacuum analyze finished, log",
    ),
}
"""Statements after which partitions are empty or almost empty, with their statistics."""

FIRST_COLUMNS = """
select c.relname, pg_get_indexdef(c.oid, 1, true)
from pg_index as i
join pg_class as c on c.oid = i.indexrelid
where c.relnamespace = current_schema()::regnamespace
"""


@pytest.mark.parametrize("settings", [HOT, LISTS], ids=["hot", "lists"])
@pytest.mark.parametrize("emptied", EMPTIED)
async def test_a_plan_from_before_the_history_reads_few_rows_of_it(
    postgres_url: str, settings: dict[str, str], emptied: str
) -> None:
    store = PostgresStore(postgres_url, clock=ManualClock())
    await store.open()
    await store.tasks.queue_ids([QueueKey("default", HANDLER, "default", "work")])
    now = await store.now()
    if emptied == WEEKLY:
        first = (now - WEEKS * 7 * DAY_FOR) // HOUR_FOR * HOUR_FOR
        await store.retention.split(first, now + 7 * DAY_FOR, 7 * DAY_FOR)
    connection = await store._database.connector.connect(settings, timeout=BOUND)
    for (table,) in await connection.fetch("select relid::text from pg_partition_tree('finished') where isleaf"):
        await connection.execute(f"alter table {table} set (autovacuum_enabled = false)")
        await connection.execute(f"alter table {table.replace('finished', 'log')} set (autovacuum_enabled = false)")
    if emptied.startswith("emptied"):
        await fill(postgres_url, ROWS // 5, WEEKS * 7 * DAY_FOR, now - DAY_FOR, analyze=False)
    for statement in EMPTIED[emptied]:
        await connection.execute(statement)
    statements_of = hot_of if settings is HOT else lists_of
    made = {name: (file, statement) for name, (file, statement, _) in (await statements_of(connection)).items()}
    for number, (file, statement) in enumerate(made.values()):
        sql = load_statements("treadle.stores.postgres", file)[statement]
        await connection.execute(f"prepare kept{number} as {sql}")
        await connection.execute(f"explain execute kept{number} ({', '.join(['null'] * count_parameters(sql))})")
    await fill(postgres_url, ROWS // 5, WEEKS * 7 * DAY_FOR, now, analyze=False)
    first_columns = dict(await connection.fetch(FIRST_COLUMNS))
    given = await statements_of(connection)
    for number, name in enumerate(made):
        async with rolled_back(connection):
            said = await connection.fetchval(f"explain (analyze, format json) execute kept{number} ({', '.join(given[name][2])})")
        plan = Plan(json.loads(said)[0]["Plan"])
        plan.reads_few_rows(20 * BATCH)
        for node in plan.nodes:  # a condition on another column of an index would be compared with all its entries
            if "Index Cond" in node and node["Actual Loops"]:
                assert first_columns[node["Index Name"]] in node["Index Cond"], (name, node)
    await connection.close()
    await store.close()


def count_parameters(sql: str) -> int:
    return max(int(number) for number in re.findall(r"\$(\d+)", sql))


async def test_a_list_of_live_tasks_does_not_read_the_history(listing: PostgresConnection) -> None:
    plan = await explain(listing, "tasks.sql", "list_tasks", "array['running']", *ANY[1:], *LIVE, *PAGE)
    assert not [node for node in plan.nodes if "finished" in str(node.get("Relation Name")) and node["Actual Loops"]]
