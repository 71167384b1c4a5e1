"""Failover of a real PostgreSQL cluster, as one process sees it: which server it uses, and which it refuses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest
from tests.chaos.cluster import Cluster, Node, cluster, wait_until
from tests.chaos.failover import BY_PATRONI, ISOLATED, KILLED, as_text, fail_over, fail_over_by_patroni
from tests.chaos.patroni import missing
from tests.chaos.stage import Plan
from tests.limits import BOUND

from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.units import Unit, Verdict
from treadle.model.errors import StoreReadOnly, StoreUnavailable
from treadle.model.tasks import NewTask
from treadle.stores.postgres import PostgresStore
from treadle.stores.postgres.connection import failover
from treadle.stores.postgres.connection.connect import HOT
from treadle_conformance.task_steps import claim, new_task, put_and_claim, settle, succeed

pytestmark = pytest.mark.xdist_group("failover")

WAITS_FOR_A_STANDBY = "select count(*) from pg_stat_activity where wait_event = 'SyncRep' and application_name = 'treadle'"


@pytest.fixture
def three() -> Iterator[Cluster]:
    with cluster() as made:
        yield made


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url, clock=SystemClock())
    try:
        await store.open()
        yield store
    finally:
        await store.close()


async def put(store: PostgresStore, task: NewTask) -> None:
    (answer,) = await store.commit([Unit(tasks=(task,))])
    assert answer.verdict is Verdict.DONE


async def insist(store: PostgresStore, task: NewTask) -> None:
    """Put it as often as it takes."""
    async with asyncio.timeout(BOUND):
        while True:
            with suppress(StoreUnavailable):
                return await put(store, task)
            await asyncio.sleep(0.05)


def host(*nodes: Node) -> str:
    hosts = ",".join(f"127.0.0.1:{node.gate_port}" for node in nodes)
    return f"postgresql://postgres:s3cret@{hosts}/postgres"


async def test_a_process_follows_a_failover_and_refuses_the_old_primary(three: Cluster) -> None:
    first, second = new_task(), new_task()
    async with opened(three.url) as store:
        await put(store, first)
        three.primary.kill()
        old = three.fail_over()
        await insist(store, second)
        assert {(await store.tasks.find(task.id)) is not None for task in (first, second)} == {True}

        old.start()  # as the primary that it was, on its old timeline
        with pytest.raises(
            StoreUnavailable, match="overtaken by a failover: it is on timeline 1, and timeline 2 exists"
        ) as refused:
            async with opened(host(old)):
                pass
        assert "s3cret" not in str(refused.value)
        assert old.name != three.primary.name

    failover._newest.clear()  # as in a new process
    async with opened(three.url) as store:
        await put(store, new_task())
        assert store._database.hot is not None
        assert store._database.hot._idle[0].standing.timeline == 2

    failover._newest.clear()
    (follower,) = [node for node in three.standbys if node is not old]
    wait_until(
        lambda: follower.ask("select min_recovery_end_timeline from pg_control_recovery()") == 2 or follower.ask("checkpoint")
    )
    with pytest.raises(StoreUnavailable, match="overtaken"):  # the standby of the new primary has told on it
        async with opened(host(old, follower)):
            pass


async def test_standbys_are_refused_unless_they_may_be_read(three: Cluster) -> None:
    async with opened(three.url) as store:
        await put(store, task := new_task())
    standby = three.standbys[0]
    for url in (host(standby), host(*three.standbys)):
        with pytest.raises(StoreUnavailable, match="is a standby"):
            async with opened(url):
                pass
    wait_until(lambda: standby.ask(f"select count(*) from treadle.tasks where id = '{task.id}'") == 1)
    async with opened(f"{host(standby)}?target_session_attrs=any") as reader:
        assert await reader.tasks.find(task.id) is not None
        with pytest.raises(StoreReadOnly):
            await put(reader, new_task())


async def test_two_unordered_primaries_are_both_refused(three: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(three.url) as store:
        await put(store, new_task())
    three.primary.kill()
    for node in three.standbys:
        node.promote()
    with pytest.raises(StoreUnavailable, match="several servers take writes"):
        async with opened(host(*three.standbys)):
            pass


async def test_a_primary_that_is_cut_off_is_abandoned_when_another_one_is_up(three: Cluster) -> None:
    async with opened(three.url) as store:
        await put(store, new_task())
        three.primary.isolate()
        waiting = asyncio.create_task(insist(store, task := new_task()))  # its request hears no answer
        three.fail_over()
        await waiting
        assert three.primary.ask(f"select count(*) from treadle.tasks where id = '{task.id}'") == 1


async def test_a_resumed_old_primary_settles_no_task(three: Cluster) -> None:
    """It reads the requests that were sent to it while it was frozen, and it is still a primary for all who ask it."""
    async with opened(three.url) as store:
        held = await put_and_claim(store)
        old = three.primary
        old.freeze()
        sent = [
            asyncio.create_task(settle(store, held.claim, succeed('{"n":1}'))),
            asyncio.create_task(put(store, task := new_task())),
        ]
        three.fail_over()
        for answer in await asyncio.gather(*sent, return_exceptions=True):  # sent again by the store, or left to the sender
            assert answer in (None, Verdict.DONE) or isinstance(answer, StoreUnavailable)
        await insist(store, task)
        assert await settle(store, held.claim, succeed('{"n":1}')) in (Verdict.DONE, Verdict.CLAIM_LOST)
        (ended,) = await store.tasks.find_many([held.id], ended=True)
        assert (ended.state, ended.result) == ("completed", '{"n":1}')

        old.resume()
        assert old.ask("select not pg_is_in_recovery()")
        await put(store, late := new_task())
        assert await store.tasks.find(late.id) is not None
        with pytest.raises(StoreUnavailable, match="overtaken"):
            async with opened(host(old)):
                pass
        failover._newest.clear()  # as in a process that knows nothing
        async with opened(three.url) as beginner:
            assert await beginner.tasks.find(late.id) is not None
        assert old.ask("select count(*) from treadle.finished") == 0, "what no standby has is shown to nobody"
        assert old.ask(f"select count(*) from treadle.tasks where id in ('{task.id}', '{late.id}')") == 0


async def test_a_commit_without_a_standby_copy_is_never_acknowledged(three: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that waits for a standby, is given up by its sender, survives a restart of the server, and is sent again."""
    monkeypatch.setattr("treadle.stores.postgres.store.COMMIT_TIMEOUT", 1.0)
    task = new_task()
    async with opened(three.url) as store:
        await put(store, new_task())
        for node in three.standbys:
            node.stop("immediate")
        with pytest.raises(StoreUnavailable):
            await put(store, task)
        assert three.primary.ask(WAITS_FOR_A_STANDBY) == 1, "it was canceled, and is now visible to all"
        with pytest.raises(StoreUnavailable):
            await put(store, task)

        three.primary.kill()
        three.primary.start()
        assert three.primary.ask(f"select count(*) from treadle.tasks where id = '{task.id}'") == 1, "PostgreSQL shows it now"
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await put(store, task)

        three.standbys[0].start()
        await insist(store, task)
        assert three.standbys[0].ask("select pg_is_in_recovery()")


async def test_an_isolated_primary_acknowledges_no_commit_of_a_process_connected_only_to_it(
    three: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off from its standbys and is not fenced; the process knows no other server, and nothing of the failover."""
    monkeypatch.setattr("treadle.stores.postgres.store.COMMIT_TIMEOUT", 1.0)
    old, alone = three.primary, f"postgresql://postgres@127.0.0.1:{three.primary.port}/postgres"  # past the gate
    async with opened(alone) as store:
        held, queued = await put_and_claim(store), new_task()
        await put(store, queued)
        old.isolate()
        three.fail_over()
        with pytest.raises(StoreUnavailable):
            await put(store, unheard := new_task())
        with pytest.raises(StoreUnavailable):
            await settle(store, held.claim, succeed())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await claim(store, owner="old")  # so that no handler starts
        async with opened(alone) as beginner:  # nor is anything acknowledged to a process that starts now
            with pytest.raises(StoreUnavailable):
                await put(beginner, new_task())
        assert old.ask(WAITS_FOR_A_STANDBY) >= 3, "their commits wait forever, and nobody sees them"
        assert old.ask("select count(*) from treadle.finished") == 0

        async with opened(host(three.primary)) as right:
            assert await right.tasks.expire_leases_of(["owner-1"]) == 1
            await right.tasks.wake(100)
            (again,) = [task for task in await claim(right, owner="new") if task.id == held.id]
            assert again.claim_version == held.claim_version + 1
            assert await settle(right, again.claim, succeed('{"by":"new"}')) is Verdict.DONE
            assert await right.tasks.find(unheard.id) is None

        with pytest.raises(StoreUnavailable, match="overtaken"):  # this process has seen the new primary meanwhile
            await put(store, new_task())
    old.stop("immediate")
    three.rejoin(old)
    old.reconnect()
    failover._newest.clear()  # as in a process that knows nothing
    with pytest.raises(StoreUnavailable, match="is a standby"):
        async with opened(alone):
            pass
    async with opened(three.url) as store:
        assert await settle(store, held.claim, succeed('{"by":"old"}')) is Verdict.CLAIM_LOST
        (ended,) = await store.tasks.find_many([held.id], ended=True)
        assert (ended.state, ended.result) == ("completed", '{"by":"new"}')
        assert await store.tasks.find(unheard.id) is None


async def test_a_statement_that_takes_too_long_is_abandoned_and_not_canceled(three: Cluster) -> None:
    """PostgreSQL completes a commit without its standby when it is canceled."""
    async with opened(three.url) as store:
        for node in three.standbys:
            node.stop("immediate")
        line = await store._database.connector.connect(HOT, timeout=1.0)
        with pytest.raises(TimeoutError):
            await line.execute("update treadle_schema set version = version")
        assert line.is_closed()
        other = await store._database.connector.connect(HOT)
        stopped = asyncio.ensure_future(other.execute("select pg_logical_emit_message(true, 'test', '')"))
        while three.primary.ask(WAITS_FOR_A_STANDBY) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        stopped.cancel()
        await asyncio.gather(stopped, return_exceptions=True)
        assert other.is_closed()
        await asyncio.sleep(0.5)  # a request to cancel would arrive within it
        assert three.primary.ask(WAITS_FOR_A_STANDBY) == 2


async def test_the_log_gives_the_reason_for_each_unusable_server(three: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    three.primary.kill()
    with caplog.at_level(logging.WARNING), pytest.raises(StoreUnavailable) as refused:
        async with opened(three.url):
            pass
    assert "cannot be reached" in str(refused.value)
    assert str(refused.value).count("is a standby") == 2


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "asynchronous"])
def test_work_continues_after_failovers(synchronous: bool) -> None:
    plan = Plan("failover", 400, 5, 0, workers=4, patience=BOUND, chunk=20, backlog=100)
    done = asyncio.run(fail_over(plan, lambda line: None, synchronous=synchronous, ways=(KILLED, ISOLATED)))
    assert not done.broken, as_text(done)
    assert bool(done.lost) is not synchronous, as_text(done)
    assert [each.way for each in done.failovers] == [KILLED, ISOLATED]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_work_continues_after_failovers_by_patroni() -> None:
    """The old primary is killed, cut off, left without its Patroni so that two servers take writes, and frozen."""
    plan = Plan("patroni", 800, 5, 0, workers=4, patience=BOUND, chunk=20, backlog=100)
    done = asyncio.run(fail_over_by_patroni(plan, lambda line: None, BY_PATRONI))
    assert not done.broken, as_text(done)
    assert not done.lost, as_text(done)
    assert [each.way for each in done.failovers] == list(BY_PATRONI)
    assert all(each.first is not None for each in done.failovers), "there was work after each of them"
