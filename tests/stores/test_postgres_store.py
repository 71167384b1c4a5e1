"""Properties of the PostgreSQL store alone: its schema, connections and reconnects, PgBouncer, and conflicts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.limits import BOUND

from treadle.kernel.store.queries import FinishedCounts, Renewal, TaskFilter
from treadle.kernel.store.units import Finish, Redrive, Requeue, Seen, Unit, Verdict
from treadle.model.errors import NotOpen, SchemaBehind, SchemaTooNew, StoreReadOnly, StoreTimeout, StoreUnavailable
from treadle.model.names import QueueKey
from treadle.model.tasks import NewTask, Server, Task
from treadle.stores.postgres import PostgresStore, servers
from treadle.stores.postgres import store as postgres_store
from treadle.stores.postgres.connection import connect, schema
from treadle.stores.postgres.connection.address import parse_address
from treadle.stores.postgres.connection.connect import HOT, LISTS, READS, Connector, Pool, plain, words
from treadle.stores.postgres.connection.schema import LATEST
from treadle.testing import ManualClock, SeededIds

pytestmark = pytest.mark.new_schema

QUEUE = QueueKey("default", "handler", "default", "work")
ids = SeededIds()


class LoopClock:
    """Sleeps for real, as connections come back in real time."""

    def now(self) -> int:
        return 0

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # the clock of the loop


@pytest.fixture
async def store(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(f"{postgres_url}&application_name={postgres_schema}", clock=LoopClock())
    await made.open()
    yield made
    await made.close()


def new_task(**fields: Any) -> NewTask:
    return NewTask(id=ids.new_id(), queue=QUEUE, **fields)


async def put_and_claim(store: PostgresStore, count: int = 1, **fields: Any) -> list[Task]:
    await store.commit([Unit(tasks=tuple(new_task(**fields) for _ in range(count)))])
    queue_ids = await store.tasks.queue_ids([QUEUE])
    return await store.tasks.claim(list(queue_ids.values()), "me", 60_000, count)


def succeeded(task: Task) -> Unit:
    return Unit(task.claim, Finish("succeed", "completed", result="{}"))


# --- the schema ---


async def test_many_processes_may_open_a_new_store_concurrently(postgres_url: str) -> None:
    stores = [PostgresStore(postgres_url, clock=ManualClock()) for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    assert {(await store.health.describe())["schema_version"] for store in stores} == {LATEST}
    await asyncio.gather(*(store.close() for store in stores))


async def test_a_migration_has_no_statement_timeout(
    postgres_url: str, postgres_server: str, postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Big tables take their time, and who starts meanwhile waits; other statements are answered within seconds or given up."""
    assert Connector.connect.__kwdefaults__ is not None
    monkeypatch.setitem(Connector.connect.__kwdefaults__, "timeout", 2.0)
    store = PostgresStore(postgres_url, clock=LoopClock())
    with psycopg.connect(postgres_server) as other:
        other.execute("select pg_advisory_xact_lock(hashtextextended('treadle schema ' || %s, 0))", (postgres_schema,))
        opening = asyncio.ensure_future(store.open())
        for _ in range(3):
            done, _ = await asyncio.wait({opening}, timeout=1.0)
            assert not done
        other.rollback()
        async with asyncio.timeout(BOUND):
            await opening
    assert (await store.health.describe())["schema_version"] == LATEST
    await store.close()


async def test_the_schema_goes_up_down_and_up_again(store: PostgresStore, postgres_url: str) -> None:
    await put_and_claim(store)
    await store.migrate_to(0)
    other = PostgresStore(postgres_url, clock=ManualClock())
    with pytest.raises(SchemaBehind, match="treadle store migrate"):
        await other.open(migrate=False)
    with pytest.raises(SchemaBehind):
        await store.tasks.count_finished()
    await store.migrate_to(LATEST)
    assert await store.tasks.count_finished() == FinishedCounts({})
    with pytest.raises(SchemaTooNew):
        await store.migrate_to(LATEST + 1)


async def test_no_lock_of_a_migration_is_held_during_the_next(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renewals of running workers would wait for it, past their leases, while the next migration builds an index."""
    locked = "select from pg_locks where pid = pg_backend_pid() and mode = 'AccessExclusiveLock' and relation is not null"
    check = f"do $$ begin if exists ({locked}) then raise exception 'locked'; end if; end $$;\n"
    await store.migrate_to(1)
    monkeypatch.setattr(schema, "_MIGRATIONS", [step._replace(up=check + step.up) for step in schema._MIGRATIONS])
    await store.migrate_to(LATEST)
    assert (await store.health.describe())["schema_version"] == LATEST


async def test_a_migration_that_fails_leaves_the_schema_at_the_version_before_it(
    store: PostgresStore, postgres_admin: psycopg.Connection[Any], postgres_schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.migrate_to(1)
    steps = list(schema._MIGRATIONS)
    with monkeypatch.context() as patch:
        steps[2] = steps[2]._replace(up="create table half_done (); select 1 / 0;")
        patch.setattr(schema, "_MIGRATIONS", steps)
        with pytest.raises(Exception, match="division by zero"):
            await store.migrate_to(LATEST)
    assert postgres_admin.execute(f"select version from {postgres_schema}.treadle_schema").fetchall() == [(2,)]
    assert postgres_admin.execute("select to_regclass(%s)", (f"{postgres_schema}.half_done",)).fetchall() == [(None,)]
    await store.migrate_to(LATEST)
    assert await put_and_claim(store)


async def test_a_newer_schema_is_not_changed(
    store: PostgresStore, postgres_url: str, postgres_admin: psycopg.Connection[Any], postgres_schema: str
) -> None:
    postgres_admin.execute(f"update {postgres_schema}.treadle_schema set version = 99")
    other = PostgresStore(postgres_url, clock=ManualClock())
    with pytest.raises(SchemaTooNew, match="99"):
        await other.open()
    with pytest.raises(SchemaTooNew):
        await store.migrate_to(0)
    assert postgres_admin.execute(f"select version from {postgres_schema}.treadle_schema").fetchall() == [(99,)]


async def test_a_read_only_database_is_reported_and_readable(store: PostgresStore, postgres_url: str) -> None:
    reader = PostgresStore(f"{postgres_url}&default_transaction_read_only=on", clock=ManualClock())
    await reader.open()
    assert await reader.tasks.list_queues() == {}
    with pytest.raises(StoreReadOnly, match="primary"):
        await reader.commit([Unit(tasks=(new_task(),))])
    await reader.close()


async def test_an_unreachable_server_is_reported_without_the_password(postgres_url: str) -> None:
    for url, said in (
        ("postgresql://ann:s3cret@127.0.0.1:1/work", "Is it running"),
        (postgres_url.replace("/postgres?", "/nowhere?"), "createdb"),
    ):
        store = PostgresStore(url, clock=ManualClock())
        with pytest.raises(StoreUnavailable, match=said) as caught:
            await store.open()
        assert "s3cret" not in str(caught.value) + store.url + repr(store)


async def test_calls_on_a_store_that_is_not_open_raise(postgres_url: str) -> None:
    store = PostgresStore(postgres_url, clock=ManualClock())
    with pytest.raises(NotOpen):
        await store.now()
    with pytest.raises(NotOpen):
        await store.notify([1])
    with pytest.raises(NotOpen):
        await store.subscribe(lambda _: None)
    await store.close()


def test_the_error_for_missing_asyncpg_names_the_extra_to_install() -> None:
    script = (
        "import sys; sys.modules['asyncpg'] = None\ntry: import treadle.stores.postgres\nexcept Exception as e: print(e.code, e)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.startswith("missing_dependency")
    assert "pip install 'treadle[postgres]'" in said


# --- connections ---


def cut_connections(store: PostgresStore, admin: psycopg.Connection[Any]) -> None:
    """End all connections of the store, as a restart of the server does."""
    name = store._database.address.schema
    admin.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = %s", [name])


async def test_a_lost_connection_costs_one_error_and_a_repeated_commit_is_done(
    store: PostgresStore, postgres_admin: psycopg.Connection[Any]
) -> None:
    (task,) = await put_and_claim(store)
    assert await store.commit([succeeded(task)])
    cut_connections(store, postgres_admin)
    for _ in range(4):
        try:
            (answer,) = await store.commit([succeeded(task)])
        except StoreUnavailable:
            continue
        assert answer.verdict is Verdict.DONE
        return
    raise AssertionError("it did not come back")


async def test_a_cancelled_call_leaves_no_broken_connection(store: PostgresStore) -> None:
    for _ in range(6):
        call = asyncio.create_task(put_and_claim(store))
        await asyncio.sleep(0.002)  # the call is canceled in the middle
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    assert len(await put_and_claim(store)) == 1


async def test_a_listener_receives_signals_again_after_its_connection_was_cut(
    store: PostgresStore, postgres_admin: psycopg.Connection[Any]
) -> None:
    heard: list[tuple[int, ...]] = []
    again = asyncio.Event()

    def hear(queue_ids: tuple[int, ...]) -> None:
        heard.append(queue_ids)
        again.set()

    stop = await store.subscribe(hear)
    heard.clear()
    cut_connections(store, postgres_admin)
    async with asyncio.timeout(BOUND):
        while (7, 8) not in heard:
            again.clear()
            await store.notify([7, 8])
            await asyncio.wait([asyncio.create_task(again.wait())], timeout=0.2)
    assert () in heard
    stop()


async def test_a_store_that_cannot_listen_signals_its_subscribers_to_poll(
    store: PostgresStore, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    direct = "postgresql%3A%2F%2F127.0.0.1%3A1%2Fwork"
    deaf = PostgresStore(f"{postgres_url}&direct_url={direct}", clock=LoopClock())
    await deaf.open()
    heard: list[tuple[int, ...]] = []
    again = asyncio.Event()

    def hear(queue_ids: tuple[int, ...]) -> None:
        heard.append(queue_ids)
        if len(heard) == 3:
            again.set()

    await deaf.subscribe(hear)
    await asyncio.wait_for(again.wait(), BOUND)
    assert set(heard) == {()}
    assert caplog.text.count("No signals for now") == 1
    await deaf.close()


async def test_a_lease_line_renews_from_its_thread_also_after_its_connection_was_cut(
    store: PostgresStore, postgres_admin: psycopg.Connection[Any]
) -> None:
    (task,) = await put_and_claim(store)
    line = store.servers.lease_connection()
    found: list[Any] = []

    def keep() -> None:
        found.append(line.renew([Renewal(task.claim, progressed=True, progress="1")], 60_000))
        cut_connections(store, postgres_admin)
        found.append(line.renew([Renewal(task.claim)], 60_000))
        found.append(line.held([task.claim]))
        line.beat(Server(id="me", name="me", host="here", pid=1, version="1", state="running", handlers=["work"]))
        found.append(line.now() > 0)
        line.close()
        line.close()

    thread = threading.Thread(target=keep)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert found == [{task.id}, {task.id}, {task.id}, True]
    found_task = await find(store, task.id)
    assert found_task.progress == "1"
    with pytest.raises(StoreUnavailable):
        line.now()


async def find(store: PostgresStore, task_id: str) -> Task:
    for _ in range(4):
        try:
            task = await store.tasks.find(task_id)
        except StoreUnavailable:
            continue
        assert task is not None
        return task
    raise AssertionError("it did not come back")


async def test_the_clock_of_all_connections_can_be_moved(store: PostgresStore) -> None:
    (task,) = await put_and_claim(store)
    before, line = await store.now(), store.servers.lease_connection()
    assert abs(await asyncio.to_thread(line.now) - before) < 10_000
    await store.set_clock_offset(3_600_000)
    assert await store.now() - before >= 3_600_000
    assert await asyncio.to_thread(line.now) - before >= 3_600_000
    await asyncio.to_thread(line.close)
    assert (await store.tasks.wake(10)).expired == 1
    assert (await store.log.list_transitions(task.id))[0].transition == "expire"


# --- PgBouncer ---


async def test_behind_a_transaction_pooler_no_session_state_is_used(
    store: PostgresStore, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    pooled = PostgresStore(f"{postgres_url}&pgbouncer=1", clock=LoopClock())
    await pooled.open()
    first, second = await put_and_claim(pooled, 2)
    answers = await pooled.commit([succeeded(first), Unit(second.claim, Requeue("retry", "pending", 2, 1, 0, delay=10_000))])
    assert [answer.verdict for answer in answers] == [Verdict.DONE, Verdict.DONE]
    await pooled.set_clock_offset(3_600_000)
    assert (await pooled.tasks.wake(10)).count == 1
    line = pooled.servers.lease_connection()
    assert await asyncio.to_thread(line.held, [second.claim]) == set()
    await asyncio.to_thread(line.close)
    async with pooled._database.hot.connection() as connection:  # type: ignore[union-attr]
        assert await connection.fetchval("show search_path") == pooled._database.address.schema
        assert await connection.fetchval("show enable_seqscan") == "off"
    connection = pooled._database.hot._idle[-1]  # type: ignore[union-attr]
    assert await connection.fetchval("show enable_seqscan") == "on"
    heard = asyncio.Event()
    await pooled.subscribe(lambda _: heard.set())
    await asyncio.wait_for(heard.wait(), BOUND)
    assert "direct_url" in caplog.text
    await pooled.close()


# --- when two cross ---


async def test_a_task_reinserted_by_a_crossing_insert_is_removed_by_the_next_finish(
    store: PostgresStore, postgres_admin: psycopg.Connection[Any], postgres_schema: str
) -> None:
    (task,) = await put_and_claim(store)
    await store.commit([succeeded(task)])
    end = await store.tasks.find(task.id)
    postgres_admin.execute(
        f"insert into {postgres_schema}.tasks (id, queue_id, namespace, priority, due_at, blocked_by, state, claim_version, "
        "attempt, failures, takeovers, version, created_at, root_id, payload) "
        "select id, queue_id, namespace, 0, 0, 0, 'pending', 0, 1, 0, 0, 0, 0, id, '{}' "
        f"from {postgres_schema}.finished"
    )
    (again,) = await store.tasks.claim([task.queue_id], "other", 60_000, 10)
    (answer,) = await store.commit([succeeded(again)])
    assert answer.verdict is Verdict.CLAIM_LOST
    assert await store.tasks.list_depths() == []
    assert await store.tasks.find(task.id) == end


async def test_commits_that_lock_the_same_tasks_in_other_orders_all_succeed(store: PostgresStore) -> None:
    tasks = await put_and_claim(store, 200)
    halves = [[succeeded(task) for task in some] for some in (tasks, list(reversed(tasks)))]
    requeue = [Unit(task.claim, Requeue("retry", "pending", 2, 1, 0)) for task in tasks[::-1]]
    answers = await asyncio.gather(*(store.commit(units) for units in (*halves, requeue)))
    settled = [verdicts for verdicts in answers if all(answer.verdict is Verdict.DONE for answer in verdicts)]
    assert settled


async def test_keys_that_are_inserted_in_other_orders_name_one_task_each(store: PostgresStore) -> None:
    keys = [f"key {number}" for number in range(100)]
    first = Unit(tasks=tuple(new_task(unique_key=key) for key in keys))
    second = Unit(tasks=tuple(new_task(unique_key=key) for key in reversed(keys)))
    (one,), (two,) = await asyncio.gather(store.commit([first]), store.commit([second]))
    assert set(one.existing) | set(two.existing) == set(keys)
    assert not set(one.existing) & set(two.existing)


ODD = [
    "",
    " ",
    "null",
    "NULL",
    "a,b",
    "{}",
    '"',
    '\\"',
    "\\",
    "\\\\N",
    "a\nb\t",
    "'; drop table tasks; --",
    "ä\U0001f600",
    "$1",
    "x" * 5000,
]


async def test_columns_of_short_texts_round_trip(store: PostgresStore) -> None:
    connection = await store._database.connector.connect(HOT)
    try:
        for values in (ODD, ["a", None, "b"], [None, *ODD, None], ["plain", "words"]):
            found = await connection.fetch("select value from unnest($1::text::text[]) as given (value)", words(values))
            assert [row[0] for row in found] == values
        assert (words([]), words([None, None]), plain([]), plain([1, -2])) == ("{}", "{}", "{}", "{1,-2}")
    finally:
        await connection.close()


async def test_unusual_short_texts_of_a_task_survive_a_round_trip(store: PostgresStore) -> None:
    tasks = [new_task(trace_id=text, unique_key=f"k{text}", scope=text) for text in ODD]
    await store.commit([Unit(tasks=tuple(tasks))])
    for task, text in zip(tasks, ODD, strict=True):
        found = await store.tasks.find(task.id)
        assert found is not None
        assert (found.trace_id, found.unique_key, found.scope) == (text, f"k{text}", text)


async def test_ten_thousand_tasks_in_one_unit_and_in_as_many_units(store: PostgresStore) -> None:
    await store.commit([Unit(tasks=tuple(new_task() for _ in range(10_000)))])
    answers = await store.commit([Unit(tasks=(new_task(unique_key=str(number % 5_000)),)) for number in range(10_000)])
    assert sum(bool(answer.existing) for answer in answers) == 5_000
    (depth,) = await store.tasks.list_depths()
    assert depth.ready == 15_000


async def test_only_one_of_two_redriven_tasks_keeps_their_unique_key(store: PostgresStore) -> None:
    failed = []
    for _ in range(2):
        (task,) = await put_and_claim(store, unique_key="key")
        await store.commit([Unit(task.claim, Finish("fail", "failed"))])
        failed.append(task)
    answers = await store.commit([Unit(Seen(task.id, 1, 1), Redrive("requeue", "ann")) for task in failed])
    assert [answer.verdict for answer in answers] == [Verdict.DONE, Verdict.DONE]
    keys = [(await find(store, task.id)).unique_key for task in failed]
    assert sorted(keys, key=str) == [None, "key"]


async def test_one_enqueue_is_one_statement_and_one_transaction(store: PostgresStore) -> None:
    await store.commit([Unit(tasks=(new_task(),))])  # the queue exists, and the statement is prepared
    statements: list[str] = []
    async with store._database.borrow() as connection:
        connection.add_query_logger(lambda logged: statements.append(logged.query))
    answer = await store.commit([Unit(tasks=(new_task(),))])
    assert answer[0].verdict is Verdict.DONE
    await asyncio.sleep(0)  # the driver logs on the next turn of the loop
    assert [" insert into tasks " in " ".join(statement.split()) for statement in statements] == [True]


# --- older versions ---

SERVERS_OF_0_2 = (
    "id, name, host, pid, version, state, handlers, task_lists, concurrency, heartbeat_every_for, started_at, heartbeat_at, "
    "handled, failed, running, server_group, service_name, topics, counts, error"
)


async def test_servers_of_an_older_version_are_written_and_read_by_it_as_before(
    store: PostgresStore, postgres_server: str, postgres_schema: str
) -> None:
    await store.servers.save(Server(id="new", name="n", host="h", pid=1, version="0.3", state="running", process="p"))
    columns = SERVERS_OF_0_2.split(", ")
    given = dict.fromkeys(columns, 0) | dict.fromkeys(("handlers", "task_lists", "topics"), "[]")
    given |= {"id": "old", "name": "o", "host": "h", "version": "0.2", "state": "running", "server_group": "", "service_name": ""}
    given |= {"counts": "{}", "error": None}
    beat = (
        f"insert into servers ({SERVERS_OF_0_2}) values ({', '.join(f'%({name})s' for name in columns)}) "
        "on conflict (id) do update set state = excluded.state, running = servers.running + 1 returning servers.*"
    )
    with psycopg.connect(postgres_server, autocommit=True, options=f"-c search_path={postgres_schema}") as older:
        for _ in range(2):
            older.execute(beat, given)
        read = older.execute("select * from servers order by id")
        assert [each.name for each in read.description or ()] == columns
        assert [row[0] for row in read] == ["new", "old"]
    seen = {server.id: server for server in await store.servers.list_all()}
    assert (seen["old"].running, seen["old"].process, seen["new"].process) == (1, None, "p")


async def test_a_connection_for_reads_has_the_settings_of_its_use(postgres_url: str) -> None:
    pool = Pool(Connector(parse_address(postgres_url)), READS, 2)
    modes = []
    for settings in (None, LISTS, LISTS, None):
        async with pool.connection(settings) as connection:
            modes.append((await connection.fetchval("show plan_cache_mode"), await connection.fetchval("show enable_seqscan")))
            pid = await connection.fetchval("select pg_backend_pid()")
    assert modes == [("force_custom_plan", "on"), *[("force_generic_plan", "off")] * 2, ("force_custom_plan", "on")]
    async with pool.connection(LISTS) as lists, pool.connection() as reads:
        assert {lists.settings["enable_seqscan"], reads.settings["enable_seqscan"]} == {"off", "on"}
        chosen = await lists.fetchval("select pg_backend_pid()")
    assert chosen == pid
    async with pool.connection(LISTS) as connection:  # the one that has these settings already
        assert await connection.fetchval("select pg_backend_pid()") == chosen
    await pool.close()
    assert not connection.for_commits


def renew(store: PostgresStore, task: Task) -> None:
    with closing(store.servers.lease_connection()) as connection:
        connection.renew([Renewal(task.claim)], 60_000)


LOCKED_CALLS: dict[str, Callable[[PostgresStore, Task], Awaitable[object]]] = {
    "commit": lambda store, task: store.commit([Unit(tasks=(new_task(),))]),
    "settle": lambda store, task: store.commit([Unit(task.claim, Finish("succeed", "completed"))]),
    "claim": lambda store, task: store.tasks.claim([task.queue_id], "other", 60_000, 1),
    "wake": lambda store, task: store.tasks.wake(10),
    "find": lambda store, task: store.tasks.find(task.id),
    "list": lambda store, task: store.tasks.list_matching(TaskFilter(), 10),
    "depths": lambda store, task: store.tasks.list_depths(),
    "renew": lambda store, task: asyncio.to_thread(renew, store, task),
}


@pytest.mark.parametrize("limited_by", ["server", "driver"])
async def test_a_locked_table_is_not_reported_as_a_database_that_cannot_be_reached(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch, limited_by: str
) -> None:
    (task,) = await put_and_claim(store)
    if limited_by == "server":
        for settings in (HOT, READS, LISTS):
            monkeypatch.setitem(settings, "statement_timeout", "300")
    else:
        monkeypatch.setattr(connect, "_COMMAND_TIMEOUT", 0.3)
        monkeypatch.setattr(Connector.connect, "__kwdefaults__", {"direct": False, "timeout": 0.3})
        monkeypatch.setattr(postgres_store, "COMMIT_TIMEOUT", 0.3)
        monkeypatch.setattr(servers, "_TIMEOUT", 0.3)
    locked = PostgresStore(postgres_url, clock=LoopClock())
    await locked.open()
    async with store._database.borrow() as holder, holder.transaction():
        await holder.execute("lock table tasks in access exclusive mode")
        for call in LOCKED_CALLS.values():
            with pytest.raises(StoreTimeout, match="holds a lock"):
                await call(locked, task)
    await locked.close()
