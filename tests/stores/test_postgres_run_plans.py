"""Statements about runs use their indexes whatever the statistics say, among 100,000 steps, and read few rows."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.limits import BOUND
from tests.stores.test_postgres_plans import UNHURRIED, explain, literal

from treadle.stores.postgres import PostgresStore
from treadle.stores.postgres.connection.connect import HOT, LISTS, PostgresConnection
from treadle.testing import ManualClock

pytestmark = pytest.mark.new_schema

STEPS, BATCH = 100_000, 100
TABLES = ("runs", "steps", "tasks", "blobs", "flow_versions", "tags")

FILL = f"""
insert into queues (namespace, kind, task_list, name) values ('default', 'handler', 'default', 'a');

insert into runs (id, namespace, kind, flow_id, workflow, state, version, transitions, steps, task_list, priority, inputs,
  idempotency_key, root_id, created_at)
select id, 'default', 'workflow', 'f', 'w', 'running', 0, 1, 0, 'default', 0, '{{}}', 'k' || n, id, n
from (select n, ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid as id from generate_series(1, 2000) as n) as made;

-- one run with a foreach of many items, each with a step; the other runs have some too
insert into steps (id, run_id, parent_id, ordinal, kind, name, state, document, inbox, created_at, updated_at)
select ('00000000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid,
  ('00000000-0000-7000-8000-' || lpad(to_hex(case when n <= {STEPS // 2} then 1 else 2 + n % 1000 end), 12, '0'))::uuid,
  case
    when n = 1 then null
    when n = 2 then '00000000-0000-7000-9000-000000000001'::uuid
    when n % 2 = 1 then '00000000-0000-7000-9000-000000000002'::uuid
    else ('00000000-0000-7000-9000-' || lpad(to_hex(n - 1), 12, '0'))::uuid
  end,
  n, case when n > 2 and n % 2 = 1 then 'item' else 'step' end, 'n', 'x', '{{}}',
  case when n % 5000 = 0 then '{{}}' end, n, n
from generate_series(1, {STEPS}) as n;

insert into tasks (id, queue_id, namespace, priority, due_at, blocked_by, state, claim_version, attempt, failures, takeovers,
  version, created_at, run_id, step_id, root_id, payload)
select gen_random_uuid(), 1, 'default', 0, n, 0, 'pending', 1, 1, 0, 0, 0, n,
  ('00000000-0000-7000-8000-' || lpad(to_hex(1 + n % 2000), 12, '0'))::uuid,
  ('00000000-0000-7000-9000-' || lpad(to_hex(n), 12, '0'))::uuid, gen_random_uuid(), '{{}}'
from generate_series(1, 20000) as n;

insert into tags (owner_id, key, value, entity, namespace, created_at)
select id, 'customer', 's' || (n % 100), 'run', 'default', n
from (select row_number() over () as n, id from runs) as made;

update runs set error = '{{"message": "a common error ' || created_at || '"}}' where created_at % 2 = 0;
update runs set error = '{{"message": "a rare error"}}' where created_at % 1000 = 1;

insert into blobs (digest, value) select 'd' || n, '""' from generate_series(1, 5000) as n;
"""

RUN = "'00000000-0000-7000-8000-000000000001'"
ITEM_STEPS = f"select ('00000000-0000-7000-9000-' || lpad(to_hex(2 * n + 2), 12, '0'))::uuid from generate_series(1, {BATCH}) as n"


@pytest.fixture(params=["statistics of empty tables", "fresh statistics"])
async def connection(postgres_url: str, request: pytest.FixtureRequest) -> AsyncIterator[PostgresConnection]:
    store = PostgresStore(postgres_url, clock=ManualClock())
    await store.open()
    connection = await store._database.connector.connect(UNHURRIED, timeout=BOUND)
    for table in TABLES:
        await connection.execute(f"alter table {table} set (autovacuum_enabled = false)")
    await connection.execute(f"analyze {', '.join(TABLES)}")
    await connection.execute(FILL)
    if request.param == "fresh statistics":
        await connection.execute(f"analyze {', '.join(TABLES)}")
    yield connection
    await connection.close()
    await store.close()


async def test_statements_about_runs_use_their_indexes(connection: PostgresConnection) -> None:
    await check_reads(connection)
    await check_writes(connection)
    await check_functions(connection)
    await check_tasks_of_a_run(connection)


async def check_reads(connection: PostgresConnection) -> None:
    steps = await literal(connection, "uuid", ITEM_STEPS)
    plan = await explain(connection, "runs.sql", "load_near", RUN, steps)
    assert plan.indexes("steps") == {"steps_pkey", "steps_parent"}
    plan.reads_few_rows(6 * BATCH)  # each has an item above it; the block and the root are shared
    plan = await explain(connection, "runs.sql", "load_rows", RUN, steps)
    assert plan.indexes("steps") == {"steps_pkey"}
    plan.reads_few_rows(2 * BATCH)
    items = await literal(connection, "uuid", ITEM_STEPS.replace("2 * n + 2", "2 * n + 1"))
    plan = await explain(connection, "runs.sql", "load_children", RUN, items)
    assert plan.indexes("steps") == {"steps_parent", "steps_items"}
    plan.reads_few_rows(2 * BATCH)
    plan = await explain(connection, "runs.sql", "list_inbox", RUN, "250")
    assert plan.indexes("steps") == {"steps_inbox"}
    plan.reads_few_rows(BATCH)
    plan = await explain(connection, "runs.sql", "list_steps", RUN, "null", str(BATCH))
    assert plan.indexes("steps") == {"steps_run"}
    plan.reads_few_rows(BATCH)
    plan = await explain(connection, "runs.sql", "find_run", RUN)
    assert plan.indexes("runs") == {"runs_pkey"}
    runs = await literal(connection, "uuid", f"select id from runs order by id limit {BATCH}")
    plan = await explain(connection, "runs.sql", "find_runs", runs, "array['completed', 'failed']")
    assert plan.indexes("runs") == {"runs_pkey"}
    plan.reads_few_rows(2 * BATCH)
    newest = "'ffffffff-ffff-ffff-ffff-ffffffffffff'"
    times = ("0", "4611686018427387904")
    last = ("null", "null", "4611686018427387904", "50")
    which = ("null", newest, "null", "null", "null", *times, *last)
    for name, given, index in (
        ("list_runs", ("null", "'default'", "null"), "runs_created"),
        ("list_runs_of_state", ("array['running']", "'default'", "null"), "runs_state"),
        ("list_runs_of_workflow", ("null", "'default'", "'w'"), "runs_workflow"),
    ):
        plan = await explain(connection, "runs.sql", name, *given, *which)
        assert plan.indexes("runs") == {index}, name
        plan.reads_few_rows(BATCH)
    span = ("'default'", "'run'", "4611686018427387904", newest, "0")
    plan = await explain(connection, "search.sql", "list_tagged", *span, "'customer'", "'s7'", "50")
    assert plan.indexes("tags") == {"tags_value"}
    plan = await explain(connection, "search.sql", "list_tag_keys", "'default'", "'run'", "50")
    assert plan.indexes("tags") == {"tags_value"}
    plan.reads_few_rows(BATCH)
    plan = await explain(connection, "runs.sql", "list_failed_runs", "'default'", "0", "50", "4611686018427387904", newest)
    assert plan.indexes("runs") == {"runs_failed"}
    async with connection.transaction():
        for name in HOT.keys() - LISTS.keys():
            await connection.execute(f"set local {name} = on")
        for name, value in LISTS.items():
            await connection.execute(f"set local {name} = '{value}'")
        for name in ("list_some_runs_with_words", "list_runs_with_words"):
            plan = await explain(connection, "search.sql", name, *span, "$$'rare'$$", "50")
            assert {node.get("Index Name") for node in plan.nodes} - {None} == {"runs_words"}, name
        plan = await explain(connection, "search.sql", "list_new_runs_with_words", *span, "$$'common'$$", "50", "'common'", "500")
        assert plan.indexes("runs") == {"runs_error"}
        plan.reads_few_rows(3 * BATCH)
    plan = await explain(connection, "search.sql", "list_run_ids", "'default'", RUN, RUN, "10")
    assert plan.indexes("runs") == {"runs_pkey"}
    plan = await explain(connection, "traces.sql", "list_trace_roots", "'default'", "'t'", "50")
    assert plan.indexes("runs") == {"runs_trace"}
    assert plan.indexes("tasks") == {"tasks_trace"}
    plan = await explain(connection, "traces.sql", "list_tree_runs", f"({runs})[1:5]", "100")
    assert plan.indexes("runs") == {"runs_pkey", "runs_root"}
    plan = await explain(connection, "traces.sql", "list_tree_tasks", f"({runs})[1:5]", "100")
    assert plan.indexes("tasks") == {"tasks_pkey", "tasks_root"}
    plan.reads_few_rows(BATCH)
    plan = await explain(connection, "runs.sql", "list_open_work", f"({runs})[1:50]")
    assert plan.indexes("tasks") == {"tasks_run", "tasks_pkey"}
    plan.reads_few_rows(15 * BATCH)  # each run has ten tasks
    plan = await explain(connection, "runs.sql", "list_step_tasks", steps)
    assert plan.indexes("tasks") == {"tasks_step"}
    plan.reads_few_rows(2 * BATCH)
    plan = await explain(connection, "runs.sql", "find_blobs", "array['d1', 'd2', 'd3']")
    assert plan.indexes("blobs") == {"blobs_pkey"}


async def check_writes(connection: PostgresConnection) -> None:
    runs = await literal(connection, "uuid", f"select id from runs order by id limit {BATCH}")
    steps = await literal(connection, "uuid", ITEM_STEPS)
    ones, words = f"array_fill(1, array[{BATCH}])", f"array_fill('running'::text, array[{BATCH}])"
    plan = await explain(connection, "commit/guards.sql", "lock_runs", runs)
    assert plan.indexes("runs") == {"runs_pkey"}
    plan = await explain(connection, "commit/rows.sql", "bump_runs", runs, ones, ones)
    assert plan.indexes("runs") == {"runs_pkey"}
    plan.reads_few_rows(2 * BATCH)
    plan = await explain(
        connection, "commit/rows.sql", "transition_runs", runs, words, words, words, "'{}'", "'{}'", "'{}'", "'{}'", "'{}'", "'{}'"
    )
    assert plan.indexes("runs") == {"runs_pkey"}
    plan.reads_few_rows(2 * BATCH)
    keys = await literal(connection, "text", f"select 'k' || n from generate_series(1, {BATCH}) as n")
    plan = await explain(connection, "commit/rows.sql", "find_runs_by_key", f"array_fill('default'::text, array[{BATCH}])", keys)
    assert plan.indexes("runs") == {"runs_idempotency_key"}
    plan.reads_few_rows(2 * BATCH)
    plan = await explain(connection, "commit/rows.sql", "put_inbox", steps, words)
    assert plan.indexes("steps") == {"steps_pkey"}
    plan.reads_few_rows(2 * BATCH)
    plan = await explain(connection, "commit/rows.sql", "clear_inbox", steps)
    assert plan.indexes("steps") == {"steps_pkey"}
    plan.reads_few_rows(2 * BATCH)


async def check_functions(connection: PostgresConnection) -> None:
    runs = await literal(connection, "uuid", f"select id from runs order by id limit {BATCH}")
    steps = await literal(connection, "uuid", ITEM_STEPS)
    tasks = await literal(connection, "uuid", f"select id from tasks order by id limit {BATCH}")
    ones, words = f"array_fill(1, array[{BATCH}])", f"array_fill('x'::text, array[{BATCH}])"
    columns = (ones, tasks, ones, words, steps, runs, "'{}'", ones, words, words, "'{}'", words)
    given = (*(f"{column}::text" for column in columns), words)
    plan = await explain(connection, "commit/rows.sql", "put_checkpoints", *given)
    assert plan.indexes("tasks") == {"tasks_pkey"}
    plan.reads_few_rows(3 * BATCH)
    plan = await explain(connection, "commit/guards.sql", "lock_tasks_and_receivers", tasks, runs)
    assert plan.indexes("tasks") == {"tasks_pkey", "tasks_run"}
    plan.reads_few_rows(15 * BATCH)  # each run has ten tasks
    ids = await literal(connection, "uuid", f"select gen_random_uuid() from generate_series(1, {BATCH})")
    plan = await explain(connection, "commit/messages.sql", "put_messages", ids, runs, "'{}'", "'{}'", words)
    assert plan.indexes("tasks") == {"tasks_run"}
    assert plan.indexes("runs") == {"runs_pkey"}
    plan.reads_few_rows(15 * BATCH)
    plan = await explain(connection, "records.sql", "list_messages", RUN, "100", "0")
    assert plan.indexes("mail") == {"mail_run"}
    plan = await explain(connection, "runs.sql", "list_children", RUN)
    assert plan.indexes("runs") == {"runs_parent"}
    plan = await explain(connection, "commit/guards.sql", "lock_records", ids)
    assert plan.indexes("records") == {"records_pkey"}
    plan = await explain(connection, "commit/records.sql", "find_holders", words, words, words)
    assert plan.indexes("records") == {"records_name"}
    plan = await explain(connection, "records.sql", "find_outcomes", words)
    assert plan.indexes("idempotency_outcomes") == {"idempotency_outcomes_pkey"}


async def check_tasks_of_a_run(connection: PostgresConnection) -> None:
    for name, more in (("block_run", ()), ("unblock_run", ()), ("cancel_run_tasks", ("'ann'", "'{}'", "null"))):
        plan = await explain(connection, "commit/rows.sql", name, RUN, *more)
        assert plan.indexes("tasks") == {"tasks_run", "tasks_pkey"}, name  # locked in order, then changed by id
        plan.reads_few_rows(2 * BATCH)
