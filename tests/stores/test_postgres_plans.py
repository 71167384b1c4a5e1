"""Hot statements use their indexes whatever the statistics say (D15, D16), on 200,000 rows that are in their way."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.limits import BOUND

from treadle.stores.postgres import PostgresStore
from treadle.stores.postgres.connection.connect import HOT, PostgresConnection
from treadle.stores.statements import COLUMN_SETS, load_statements
from treadle.testing import ManualClock

pytestmark = pytest.mark.new_schema

UNHURRIED = HOT | {"statement_timeout": "0"}
"""Settings for connections that also fill tables, which takes longer on a busy machine than the store gives a statement."""

IN_THE_WAY = 100_000
READY, RUNNING = 1_000, 1_000
BATCH = 100
NOWHERE = ["'00000000-0000-0000-0000-000000000000'"] * 2
"""No partition is left out."""

QUEUES = """
insert into queues (namespace, kind, task_list, name)
values ('default', 'handler', 'default', 'served'), ('default', 'handler', 'default', 'unserved');
"""


def filling(in_the_way: int) -> str:
    return f"""
insert into tasks (id, queue_id, namespace, priority, due_at, blocked_by, state, wake_at, owner_id, claim_version, claimed_at,
  attempt, failures, takeovers, version, created_at, root_id, payload)
select id, queue_id, 'default', 0, due_at, 0, 'pending', wake_at, owner_id, 1, null, 1, 0, 0, 0, treadle_now(), id, '{{}}'
from (
  -- due in an hour, in the queue and priority that is claimed from
  select gen_random_uuid() as id, 1 as queue_id, treadle_now() + 3600000 as due_at, treadle_now() + 3600000 + n as wake_at,
    null::text as owner_id
  from generate_series(1, {in_the_way}) as n
  union all  -- pending in a queue that nobody serves
  select gen_random_uuid(), 2, treadle_now() - 1000000 + n, null, null from generate_series(1, {in_the_way}) as n
  union all  -- ready
  select gen_random_uuid(), 1, treadle_now() - 1000 + n, null, null from generate_series(1, {READY}) as n
  union all  -- running
  select gen_random_uuid(), 1, treadle_now() - 1000 + n, treadle_now() + 60000, 'me' from generate_series(1, {RUNNING}) as n
) as made;

insert into finished (id, seq, queue_id, namespace, state, transition, from_state, claim_version, version, attempt, failures,
takeovers,
  priority, created_at, due_at, finished_at, root_id, payload)
select id, nextval('treadle_seq'), 1, 'default', 'completed', 'succeed', 'pending', 1, 1, 1, 0, 0, 0, 0, 0, 0, id, '{{}}'
from (select gen_random_uuid() as id from generate_series(1, 20000)) as made;

insert into log (seq, at, entity, entity_id, version, transition, from_state, to_state)
select nextval('treadle_seq'), 0, 'task', gen_random_uuid(), 1, 'retry', 'pending', 'pending' from generate_series(1, 20000);
"""


@pytest.fixture(params=["statistics of empty tables", "statistics of an emptied queue", "fresh statistics"])
async def connection(postgres_url: str, request: pytest.FixtureRequest) -> AsyncIterator[PostgresConnection]:
    """A hot connection to a full store, of whose filling the statistics may know nothing."""
    store = PostgresStore(postgres_url, clock=ManualClock())
    await store.open()
    connection = await store._database.connector.connect(UNHURRIED, timeout=BOUND)
    for table in ("tasks", "finished_rest", "log_rest"):
        await connection.execute(f"alter table {table} set (autovacuum_enabled = false)")
    await connection.execute("analyze tasks, finished, log")
    await connection.execute(QUEUES)
    in_the_way = IN_THE_WAY
    if request.param == "statistics of an emptied queue":
        in_the_way //= 5  # the same number twice, so that the table does not grow
        await connection.execute(filling(in_the_way))
        # Without the last row, vacuum would also cut off the pages: now the statistics have many of them, and one row.
        await connection.execute("delete from tasks where ctid <> (select max(ctid) from tasks)")
        await connection.execute("vacuum analyze tasks")
    await connection.execute(filling(in_the_way))
    if request.param == "fresh statistics":
        await connection.execute("analyze tasks, finished, log")
    yield connection
    await connection.close()
    await store.close()


async def test_hot_statements_use_their_indexes(connection: PostgresConnection) -> None:
    await check_claim(connection)
    await check_failing(connection)
    await check_wake(connection)
    await check_renew(connection)
    await check_settle(connection)
    await check_insert(connection)
    await check_revive(connection)
    await check_limits(connection)
    await check_dead_letters(connection)
    await check_events(connection)
    await check_takeovers(connection)
    await check_prune(connection)


async def check_dead_letters(connection: PostgresConnection) -> None:
    for name in ("list_dead_letters", "walk_dead_letters"):
        plan = await explain(connection, "dead_letters.sql", name, *["null"] * 8, "0", str(2**60), str(BATCH))
        assert plan.indexes("finished") == {"finished_failed"}
        plan.reads_few_rows(4 * BATCH)
    plan = await explain(connection, "dead_letters.sql", "count_dead_letters_in", *["null"] * 4)
    assert plan.indexes("finished") == {"finished_failed"}


async def check_events(connection: PostgresConnection) -> None:
    plan = await explain(connection, "log.sql", "list_events", "10", str(2**60), str(BATCH))
    assert plan.indexes("finished") <= {"finished_seq", "finished_pkey"}
    plan.reads_few_rows(10 * BATCH)
    plan = await explain(connection, "log.sql", "list_changes", str(2**60), "null", "0", str(2**60), str(BATCH))
    assert (plan.indexes("log"), "finished_changes" in plan.indexes("finished")) == ({"log_changes"}, True)
    plan.reads_few_rows(10 * BATCH)
    for after_seq in (10, 20_010):  # ends of tasks, and the log
        plan = await explain(connection, "metrics.sql", "tally", str(after_seq), str(after_seq + BATCH))
        assert plan.indexes("finished") <= {"finished_seq", "finished_pkey"}
        assert "finished_seq" in plan.indexes("finished")
        plan.reads_few_rows(10 * BATCH)
    plan = await explain(connection, "metrics.sql", "find_page", "10", str(BATCH), "0")
    assert plan.indexes("finished") == {"finished_seq"}
    plan.reads_few_rows(10 * BATCH)


async def check_takeovers(connection: PostgresConnection) -> None:
    """A run with 10,000 transitions, of which 100 are takeovers."""
    await connection.execute("update log set run_id = '00000000-0000-7000-8000-000000000001' where seq % 2 = 0")
    await connection.execute("update log set transition = 'expire' where seq % 200 = 0")
    plan = await explain(connection, "log.sql", "list_takeovers", "'00000000-0000-7000-8000-000000000001'", "20")
    assert plan.indexes("log") == {"log_takeovers"}
    plan.reads_few_rows(60)


async def check_prune(connection: PostgresConnection) -> None:
    rules = ("'default'", "0", "0")
    plan = await explain(connection, "retention.sql", "find_window", *rules, "10", str(BATCH), *NOWHERE)
    assert plan.indexes("finished") == {"finished_seq"}
    plan.reads_few_rows(10 * BATCH)
    ids = await literal(connection, "uuid", f"select id from finished order by id limit {BATCH}")
    plan = await explain(connection, "retention.sql", "list_prunable", *rules, ids)
    assert plan.indexes("finished") == {"finished_pkey", "finished_root"}
    assert plan.indexes("tasks") == {"tasks_pkey", "tasks_root"}
    plan.reads_few_rows(20 * BATCH)
    plan = await explain(connection, "retention.sql", "lock_members", ids, str(10 * BATCH))
    assert plan.indexes("finished") == {"finished_pkey", "finished_root"}
    plan.reads_few_rows(10 * BATCH)
    for name in ("delete_log", "delete_finished"):
        (await explain(connection, "retention.sql", name, ids)).reads_few_rows(10 * BATCH)


async def check_claim(connection: PostgresConnection) -> None:
    plan = await explain(connection, "tasks.sql", "claim", "array[1, 2]", "'me'", "60000", str(BATCH))
    # The queue that nobody of ours serves is older, so it is taken: the head of one queue, and BATCH rows.
    assert plan.indexes("tasks") == {"tasks_ready", "tasks_pkey"}
    plan.reads_few_rows(4 * BATCH)
    plan = await explain(connection, "tasks.sql", "claim", "array[1]", "'me'", "60000", str(BATCH))
    assert plan.indexes("tasks") == {"tasks_ready", "tasks_pkey"}
    plan.reads_few_rows(4 * BATCH)


async def check_wake(connection: PostgresConnection) -> None:
    plan = await explain(connection, "tasks.sql", "wake", str(BATCH), "true", "true")
    assert plan.indexes("tasks") <= {"tasks_wake", "tasks_pkey", "tasks_over_limit", "tasks_ready"}
    plan.reads_few_rows(10)
    await connection.execute("update tasks set wake_at = 1 where owner_id is null and wake_at % 100 = 0")
    plan = await explain(connection, "tasks.sql", "wake", str(BATCH), "true", "true")
    assert plan.indexes("tasks") == {"tasks_wake", "tasks_pkey", "tasks_over_limit", "tasks_ready"}
    plan.reads_few_rows(5 * BATCH)


async def check_failing(connection: PostgresConnection) -> None:
    plan = await explain(connection, "tasks.sql", "list_failing", "array[1, 2]", "20")
    assert plan.indexes("tasks") == {"tasks_wake"}
    plan.reads_few_rows(10_000 + 2 * RUNNING)


async def check_renew(connection: PostgresConnection) -> None:
    ids, versions, owners = await running(connection)
    few = f"array_fill(false, array[{BATCH}])"
    plan = await explain(connection, "tasks.sql", "extend", ids, versions, owners, few, "'{}'", "60000", "true")
    assert plan.indexes("tasks") == {"tasks_pkey"}
    plan.reads_few_rows(4 * BATCH)
    plan = await explain(connection, "tasks.sql", "list_held", ids, versions, owners)
    assert plan.indexes("tasks") == {"tasks_pkey"}
    plan.reads_few_rows(2 * BATCH)


async def check_settle(connection: PostgresConnection) -> None:
    ids, versions, owners = await running(connection)
    transitions, states, pending = (f"array_fill('{word}'::text, array[{BATCH}])" for word in ("succeed", "completed", "pending"))
    ones, none = f"array_fill(1, array[{BATCH}])", "'{}'"
    plan = await explain(connection, "commit/guards.sql", "lock_tasks", ids)
    assert plan.indexes("tasks") == {"tasks_pkey"}
    plan.reads_few_rows(4 * BATCH)
    plan = await explain(connection, "commit/guards.sql", "list_settled", ids, versions, owners, owners, transitions)
    assert plan.indexes("finished") == {"finished_pkey"}
    assert plan.indexes("log") == {"log_entity_id_version_key"}
    plan.reads_few_rows(4 * BATCH)
    loud = f"array_fill(false, array[{BATCH}])"
    nones = [none] * 4
    plan = await explain(
        connection,
        "commit/settlements.sql",
        "requeue",
        ids,
        pending,
        owners,
        transitions,
        pending,
        ones,
        ones,
        ones,
        ones,
        *nones,
        loud,
        none,
        loud,
        loud,
    )
    assert plan.indexes("tasks") == {"tasks_pkey"}
    plan.reads_few_rows(4 * BATCH)
    ids, versions, owners = await running(connection)
    plan = await explain(
        connection,
        "commit/settlements.sql",
        "finish",
        ids,
        versions,
        owners,
        owners,
        transitions,
        states,
        none,
        none,
        none,
        none,
        "false",
    )
    assert plan.indexes("tasks") == {"tasks_pkey"}
    plan.reads_few_rows(4 * BATCH)


@asynccontextmanager
async def rolled_back(connection: PostgresConnection) -> AsyncIterator[None]:
    """Undo the changes of the statements inside."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


async def check_insert(connection: PostgresConnection) -> None:
    ids = await literal(connection, "uuid", f"select gen_random_uuid() from generate_series(1, {BATCH})")
    ones, zeros, words = (f"array_fill({value}, array[{BATCH}])" for value in ("1", "0::bigint", "'default'::text"))
    given = {
        "id": ids,
        "queue_id": ones,
        "namespace": words,
        "priority": ones,
        "blocked_by": zeros,
        "payload": words,
        "delay": zeros,
    }
    values = [given.get(column.name, "'{}'") for column in COLUMN_SETS["given"]]
    async with rolled_back(connection):
        plan = await explain(connection, "commit/inserts.sql", "insert_tasks", *values, "array[1]")
        assert (plan.indexes("tasks"), plan.indexes("finished")) == ({"tasks_pkey"}, {"finished_pkey"})
        plan.reads_few_rows(4 * BATCH)
    one = {
        "id": f"({ids})[1]::text",
        "queue_id": "1",
        "namespace": "'default'",
        "priority": "1",
        "blocked_by": "0",
        "payload": "'{}'",
    }
    values = [(one | {"delay": "0"}).get(column.name, "null") for column in COLUMN_SETS["given"]]
    plan = await explain(connection, "commit/inserts.sql", "insert_task", *values, "array[1]")
    assert (plan.indexes("tasks"), plan.indexes("finished")) == ({"tasks_pkey"}, {"finished_pkey"})
    plan.reads_few_rows(BATCH)
    plan = await explain(connection, "commit/inserts.sql", "explain_refusals", ids, words, words, ids)
    assert plan.indexes("finished") == {"finished_pkey"}
    assert plan.indexes("tasks") == {"tasks_pkey", "tasks_unique_key", "tasks_step"}
    plan.reads_few_rows(4 * BATCH)


async def check_revive(connection: PostgresConnection) -> None:
    ids = await literal(connection, "uuid", f"select id from finished order by id limit {BATCH}")
    words = f"array_fill('requeue'::text, array[{BATCH}])"
    zeros = f"array_fill(0, array[{BATCH}])"
    plan = await explain(connection, "commit/guards.sql", "lock_finished", ids)
    assert plan.indexes("finished") == {"finished_pkey"}
    plan.reads_few_rows(4 * BATCH)
    plan = await explain(connection, "commit/settlements.sql", "redrive", ids, words, words, "'{}'", zeros, "'{}'", words)
    assert plan.indexes("finished") == {"finished_pkey"}
    assert plan.indexes("tasks") == {"tasks_unique_key"}
    plan.reads_few_rows(4 * BATCH)


async def check_limits(connection: PostgresConnection) -> None:
    """With 50,000 tasks that wait for a key, one in ten of them for one that is looked at."""
    await connection.execute(
        f"""
        update tasks
        set blocked_by = 1, limit_key = case when due_at % 10 = 0 then 'k' else 'other' end
        from (select id from tasks where queue_id = 2 and owner_id is null limit {IN_THE_WAY // 2}) as chosen
        where tasks.id = any (array[chosen.id])
        """
    )
    await connection.execute("update tasks set blocked_by = 0 where id = (select id from tasks where limit_key = 'k' limit 1)")
    await connection.execute("insert into limits values ('default', 'k', 3, true)")
    plan = await explain(connection, "limits.sql", "admit", "array['default']", "array['k']", "10000", "500")
    assert plan.indexes("tasks") == {"tasks_over_limit", "tasks_several_keys", "tasks_admitted", "tasks_pkey"}
    plan.reads_few_rows(10)
    plan = await explain(connection, "limits.sql", "list_rooms", "array['default']", "array['k']")
    assert plan.indexes("tasks") <= {"tasks_admitted", "tasks_pkey"}
    plan.reads_few_rows(10)
    plan = await explain(connection, "limits.sql", "list_starved", "''", "''", "100")
    assert plan.indexes("tasks") <= {"tasks_over_limit", "tasks_admitted"}
    plan.reads_few_rows(10)
    plan = await explain(connection, "limits.sql", "go_back", "'default'", "'k'", "array[2]")
    assert plan.indexes("tasks") <= {"tasks_over_limit_queue", "tasks_admitted", "tasks_pkey"}
    plan.reads_few_rows(1000)  # those of other queues, whatever their key
    plan = await explain(connection, "limits.sql", "admit_others", "'default'", "'k'", "array[2]", "10000")
    assert plan.indexes("tasks") <= {"tasks_over_limit_queue", "tasks_admitted", "tasks_pkey"}
    plan.reads_few_rows(1000)  # those of other queues, whatever their key
    plan = await explain(connection, "queues.sql", "count_backlog", "2", "101")
    assert plan.indexes("tasks") == {"tasks_ready", "tasks_over_limit_queue"}
    plan.reads_few_rows(202)
    plan = await explain(connection, "tasks.sql", "claim_slowed", "array[1, 2]", "'me'", "60000", str(BATCH))
    assert plan.indexes("tasks") == {"tasks_ready", "tasks_pkey"}
    plan.reads_few_rows(4 * BATCH)


class Plan:
    """The executed plan, node by node."""

    def __init__(self, root: dict[str, Any]) -> None:
        self.nodes = list(walk(root))

    def indexes(self, table: str) -> set[str]:
        """The indexes through which the table, or its first partition, was read; a table read in another way has none."""
        found = set()
        for node in self.nodes:
            if node.get("Relation Name") in (table, f"{table}_rest") and "Scan" in node["Node Type"] and node["Actual Loops"]:
                assert "Index Name" in node, node
                found.add(node["Index Name"].replace("_rest_", "_"))
        return found

    def reads_few_rows(self, limit: int) -> None:
        """No node has looked at more rows than that."""
        for node in self.nodes:
            removed = sum(value for name, value in node.items() if name.startswith("Rows Removed by"))
            assert (node["Actual Rows"] + removed) * node["Actual Loops"] <= limit, node


def walk(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from walk(child)


async def explain(connection: PostgresConnection, file: str, name: str, *arguments: str) -> Plan:
    """Do the statement as the store does it (prepared, with a plan for any arguments)."""
    await connection.execute(f"prepare probe as {load_statements('treadle.stores.postgres', file)[name]}")
    said = await connection.fetchval(f"explain (analyze, format json) execute probe ({', '.join(arguments)})")
    await connection.execute("deallocate probe")
    return Plan(json.loads(said)[0]["Plan"])


async def running(connection: PostgresConnection) -> tuple[str, str, str]:
    """The ids, claim versions and owners of some running tasks, as literals."""
    rows = f"from (select * from tasks where owner_id = 'me' order by id limit {BATCH}) as picked"
    return (
        await literal(connection, "uuid", f"select id {rows}"),
        await literal(connection, "integer", f"select claim_version {rows}"),
        await literal(connection, "text", f"select owner_id {rows}"),
    )


async def literal(connection: PostgresConnection, kind: str, query: str) -> str:
    values = [str(row[0]) for row in await connection.fetch(query)]
    return f"'{{{','.join(values)}}}'::{kind}[]"
