"""Two connections that want the same rows at the same moment, in an order that the test says.

A third connection holds a row. Both queue up behind it, one after the other; then it lets go. So it is seen that guards are
decided by the state after acquiring the lock, not by the state when the statement began.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any

import psycopg
import pytest
from tests.limits import BOUND

from treadle.kernel.store.committer import Committer
from treadle.kernel.store.queries import Renewal
from treadle.kernel.store.records import Await, ChangeRecord, PutMessage, PutRecord
from treadle.kernel.store.units import BlockRun, Keep, PutSteps, RunGuard, RunTransition, Seen, Unit, UnitAnswer, Verdict, tag_rows
from treadle.kernel.store.verify import verify
from treadle.model.errors import IllegalTransition, StoreUnavailable
from treadle.model.records import Message, Record
from treadle.model.runs import Run
from treadle.model.states import BlockReason
from treadle.model.tasks import Claim, NewTask, Task
from treadle.stores.postgres import PostgresStore
from treadle.stores.postgres import store as store_module
from treadle.stores.postgres import tasks as tasks_module
from treadle.stores.postgres.connection.connect import HOT
from treadle.testing import ManualClock
from treadle_conformance.run_steps import begin, claim_steps, get_run, live_of, step_task, unit_of
from treadle_conformance.task_steps import (
    MINUTE,
    OTHER,
    WORK,
    cancel,
    claim,
    claim_one,
    get,
    ids,
    new_task,
    put,
    put_and_claim,
    requeue,
    seen,
    succeed,
    transitions_of,
)

DONE, CLAIM_LOST, DEFERRED = Verdict.DONE, Verdict.CLAIM_LOST, Verdict.DEFERRED
either_first = pytest.mark.parametrize("ann_first", [True, False], ids=["ann first", "bob first"])


class Gate:
    """A transaction that holds rows until it is opened."""

    def __init__(self, url: str, schema: str, admin: psycopg.Connection[Any]) -> None:
        self._connection = psycopg.connect(url, options=f"-c search_path={schema}")
        self._schema, self._admin = schema, admin

    def blocked_by(self, table: str, row_id: str) -> None:
        self.execute(f"select 1 from {table} where id = %s for update", row_id)

    def execute(self, statement: str, *values: object) -> None:
        """Do something that others see only once the gate is open."""
        self._connection.execute(statement, values)  # type: ignore[call-overload]

    def open(self) -> None:
        self._connection.commit()

    def close(self) -> None:
        self._connection.close()

    async def queued(self, count: int, *others: asyncio.Future[Any]) -> None:
        """Return once so many wait for a lock, or one of the others is done and will not wait."""
        waiting = "select count(*) from pg_stat_activity where application_name = %s and wait_event_type = 'Lock'"
        async with asyncio.timeout(BOUND):
            while self._admin.execute(waiting, (self._schema,)).fetchone() != (count,):
                if any(other.done() for other in others):
                    return
                await asyncio.sleep(0.002)

    async def cross(self, first: Awaitable[Any], second: Awaitable[Any]) -> list[Any]:
        """Run both concurrently, the first one first; return both results."""
        one = asyncio.ensure_future(first)
        await self.queued(1)
        two = asyncio.ensure_future(second)
        await self.queued(2, two)
        self.open()
        async with asyncio.timeout(BOUND):
            return list(await asyncio.gather(one, two))


@pytest.fixture
def gate(postgres_server: str, postgres_schema: str, postgres_admin: psycopg.Connection[Any]) -> Iterator[Gate]:
    made = Gate(postgres_server, postgres_schema, postgres_admin)
    yield made
    made.close()


async def opened(url: str, schema: str) -> PostgresStore:
    store = PostgresStore(f"{url}&application_name={schema}", clock=ManualClock())
    await store.open()
    return store


@pytest.fixture
async def ann(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresStore]:
    store = await opened(postgres_url, postgres_schema)
    yield store
    assert (await verify(store)).problems == ()
    await store.close()


@pytest.fixture
async def bob(postgres_url: str, postgres_schema: str) -> AsyncIterator[PostgresStore]:
    store = await opened(postgres_url, postgres_schema)
    yield store
    await store.close()


async def crossed(
    gate: Gate, ann: Awaitable[list[UnitAnswer]], bob: Awaitable[list[UnitAnswer]], *, ann_first: bool
) -> tuple[Verdict, Verdict]:
    """The answers to ann's unit and to bob's."""
    answers = await gate.cross(ann, bob) if ann_first else reversed(await gate.cross(bob, ann))
    (one,), (two,) = answers
    return one.verdict, two.verdict


@either_first
async def test_of_a_settle_and_a_cancel_that_cross_one_is_done(
    ann: PostgresStore, bob: PostgresStore, gate: Gate, ann_first: bool
) -> None:
    task = await put_and_claim(ann)
    gate.blocked_by("tasks", task.id)
    settles, cancels = ann.commit([Unit(task.claim, succeed(), (new_task(),))]), bob.commit([Unit(seen(task), cancel())])
    verdicts = await crossed(gate, settles, cancels, ann_first=ann_first)
    assert verdicts == ((DONE, CLAIM_LOST) if ann_first else (CLAIM_LOST, DONE))
    assert (await get(ann, task.id)).state == ("completed" if ann_first else "canceled")
    assert len(await claim(ann)) == (1 if ann_first else 0)  # the consequences of a settle are stored with it, or not at all


async def test_concurrent_claims_of_one_task_have_one_winner(ann: PostgresStore, bob: PostgresStore, gate: Gate) -> None:
    task = new_task()
    await put(ann, task)
    gate.blocked_by("tasks", task.id)
    claims = [asyncio.ensure_future(claim(ann)), asyncio.ensure_future(claim(bob, owner="bob"))]
    await gate.queued(2, *claims)  # or they do not wait for it
    gate.open()
    async with asyncio.timeout(BOUND):
        taken = [each.claim for some in await asyncio.gather(*claims) for each in some]
        taken += [each.claim for store in (ann, bob) for each in await claim(store)]
    assert [(each.task_id, each.version) for each in taken] == [(task.id, 1)]


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with a follower"])
async def test_a_settle_that_waited_for_a_takeover_is_lost(ann: PostgresStore, bob: PostgresStore, gate: Gate, alone: bool) -> None:
    task = await put_and_claim(ann)
    gate.execute("update tasks set owner_id = null, wake_at = null, takeovers = takeovers + 1 where id = %s", task.id)
    late = asyncio.ensure_future(ann.commit([Unit(task.claim, succeed(), () if alone else (new_task(),))]))
    await gate.queued(1)
    gate.open()
    assert [answer.verdict for answer in await late] == [CLAIM_LOST]
    again = await claim_one(bob, owner="bob")
    assert (again.id, again.claim_version) == (task.id, 2)
    assert await claim(bob, owner="bob") == []


@either_first
async def test_concurrent_copies_of_a_unit_are_applied_once(
    ann: PostgresStore, bob: PostgresStore, gate: Gate, ann_first: bool
) -> None:
    task, follower = await put_and_claim(ann), new_task()
    unit = Unit(task.claim, succeed(), (follower,))
    gate.blocked_by("tasks", task.id)
    assert await crossed(gate, ann.commit([unit]), bob.commit([unit]), ann_first=ann_first) == (DONE, DONE)
    assert transitions_of(await ann.log.list_transitions(task.id)) == ["succeed"]
    assert [each.id for each in await claim(ann)] == [follower.id]


@pytest.mark.parametrize("repeat", ["alone", "with others", "in a transaction", "by SQL"])
async def test_a_repeated_enqueue_that_crosses_the_end_of_its_task_does_not_store_it_again(
    ann: PostgresStore, bob: PostgresStore, gate: Gate, repeat: str
) -> None:
    """The first answer was lost: the task is being completed while it is enqueued again. A handler must not run a second time."""
    new = new_task()
    await put(ann, new)
    task = await claim_one(ann)
    gate.execute("insert into tags values (%s, 'tag', '', 'task', 'default', 0)", task.id)
    ends = asyncio.ensure_future(bob.commit([Unit(task.claim, succeed(), rows=tag_rows("task", task.id, {"tag": ""}))]))
    await gate.queued(1)  # the task is deleted, but not for others
    again = asyncio.ensure_future(_enqueue_again(ann, new, repeat))
    await gate.queued(2, again)
    gate.open()
    async with asyncio.timeout(BOUND):
        assert [answer.verdict for answer in await ends] == [DONE]
        await again
    assert [each for each in await claim(ann) if each.id == task.id] == []
    assert transitions_of(await ann.log.list_transitions(task.id)) == ["succeed"]


async def _enqueue_again(store: PostgresStore, task: NewTask, how: str) -> None:
    match how:
        case "alone":
            await store.commit([Unit(tasks=(task,))])
        case "with others":
            await store.commit([Unit(tasks=(task, new_task()))])
        case "in a transaction":
            holder = await put_and_claim(store)
            await store.commit([Unit(holder.claim, succeed(), (task,))])
        case _:
            connection = await store._database.connector.connect(HOT)
            spec = {"id": task.id, "name": task.queue.name, "namespace": task.queue.namespace, "task_list": task.queue.task_list}
            await connection.execute("select treadle_enqueue_v1($1::text::json)", json.dumps(spec))
            await connection.close()


@either_first
async def test_concurrent_advances_from_the_same_version_have_one_winner(
    ann: PostgresStore, bob: PostgresStore, gate: Gate, ann_first: bool
) -> None:
    run = await begin(ann, "a", "b", tasks=("a", "b"))
    one, two = (await claim_steps(ann)).values()
    gate.blocked_by("runs", run.id)
    units = [[unit_of(run, (task.claim, succeed()), tasks=(new_task(run_id=run.id),))] for task in (one, two)]
    verdicts = await crossed(gate, ann.commit(units[0]), bob.commit(units[1]), ann_first=ann_first)
    assert verdicts == ((DONE, DEFERRED) if ann_first else (DEFERRED, DONE))
    assert (await get_run(ann, run.id)).version == run.version + 1
    winner, loser = (one, two) if ann_first else (two, one)
    assert (await get(ann, winner.id)).state == "completed"
    assert (await get(ann, loser.id)).claim == loser.claim  # still held, and can be settled at the new version
    assert len(await live_of(ann, run)) == 2


@either_first
async def test_a_function_does_not_sleep_past_a_concurrent_message(
    ann: PostgresStore, bob: PostgresStore, gate: Gate, ann_first: bool
) -> None:
    run = await begin(ann, kind="function")
    await put(ann, new_task(run_id=run.id, root_id=run.id))
    task = await claim_one(ann)
    gate.blocked_by("runs", run.id)
    sleeps = Unit(task.claim, requeue(task, delay=MINUTE), run=RunGuard(run.id, run.version), rows=(Await(run.id, 1),))
    tells = Unit(rows=(PutMessage(Message(id=ids.new_id(), run_id=run.id, name="told", document="{}")),))
    verdicts = await crossed(gate, ann.commit([sleeps]), bob.commit([tells]), ann_first=ann_first)
    now = await get(ann, task.id)
    if ann_first:
        assert verdicts == (DONE, DONE)
        assert (now.owner_id, now.wake_at) == (None, None)  # ready
    else:
        assert verdicts == (DEFERRED, DONE)
        assert now.claim == task.claim  # its holder has to look at its mail first


@either_first
async def test_tasks_added_while_a_run_is_being_paused_are_paused(
    ann: PostgresStore, bob: PostgresStore, gate: Gate, ann_first: bool
) -> None:
    run = await begin(ann, "a", "b", tasks=("a",))
    (task,) = (await claim_steps(ann)).values()
    step = (await ann.runs.list_steps(run.id, None, 10))[1]
    gate.blocked_by("runs", run.id)
    advances = unit_of(run, (task.claim, succeed()), tasks=(step_task(step),))
    paused = (RunTransition(run.id, "pause", "running", "paused"), BlockRun(run.id, True))
    pauses = Unit(run=RunGuard(run.id, None), rows=paused)
    verdicts = await crossed(gate, ann.commit([advances]), bob.commit([pauses]), ann_first=ann_first)
    assert verdicts == ((DONE, DONE) if ann_first else (DEFERRED, DONE))
    live = await live_of(ann, run)
    assert len(live) == 1
    assert [each.blocked_by for each in live] == [BlockReason.RUN_PAUSED]


@either_first
async def test_a_slot_freed_during_an_insert_is_assigned_once(
    ann: PostgresStore, bob: PostgresStore, gate: Gate, ann_first: bool
) -> None:
    held = await put_and_claim(ann, limit_key="few", limit=1)
    waiting = new_task(limit_key="few", limit=1)
    await put(ann, waiting)
    gate.execute("select pg_advisory_xact_lock(hashtextextended('default' || chr(10) || 'few', hashtext(current_schema())))")
    leaves = ann.commit([Unit(held.claim, succeed())])
    comes = bob.commit([Unit(tasks=(new_task(limit_key="few", limit=1),))])
    assert await crossed(gate, leaves, comes, ann_first=ann_first) == (DONE, DONE)
    (limit,) = await ann.operators.list_limits("default")
    assert (limit.admitted, limit.waiting) == (1, 1)
    assert len(await claim(ann)) == 1


async def test_a_commit_that_times_out_is_abandoned_and_rolled_back(
    ann: PostgresStore, bob: PostgresStore, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers of events wait a bounded time for an assigned number: no transaction may commit after that."""
    task, follower = await put_and_claim(ann), new_task()
    unit = Unit(task.claim, succeed(), (follower,))
    gate.blocked_by("tasks", task.id)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "COMMIT_TIMEOUT", 0.2)
        with pytest.raises(StoreUnavailable):
            await ann.commit([unit])
    gate.open()
    assert (await get(bob, task.id)).claim == task.claim
    assert await bob.tasks.find(follower.id) is None
    assert [answer.verdict for answer in await ann.commit([unit])] == [DONE]


# --- Wake-ups: a transaction that holds a ready task reports its queue, because a claim skips the task meanwhile ---


async def ready_function(store: PostgresStore, **fields: Any) -> tuple[Run, Task]:
    """A function run with an own task that is ready."""
    run = await begin(store, kind="function")
    made = new_task(run_id=run.id, root_id=run.id, **fields)
    await put(store, made)
    return run, await get(store, made.id)


def message_to(run: Run) -> PutMessage:
    return PutMessage(Message(id=ids.new_id(), run_id=run.id, name="told", document="{}"))


def touching_units(run: Run, task: Task) -> dict[str, Unit]:
    """Units that hold the ready task of the function for the length of their transaction, and leave it ready."""
    stale = Seen(task.id, task.version + 7, task.claim_version)
    lost = Claim(task.id, task.claim_version + 7, "gone")
    return {
        "a signal": Unit(rows=(message_to(run),)),
        "two signals": Unit(rows=(message_to(run), message_to(run))),
        "an operator's stale cancel": Unit(stale, cancel()),
        "an operator's stale pause": Unit(stale, requeue(task, "pause", blocked_by=BlockReason.TASK_PAUSED)),
        "a lost claim's success": Unit(lost, succeed(), (new_task(OTHER),)),
        "a lost claim's success with a signal": Unit(lost, succeed(), rows=(message_to(run),)),
        "a lost claim's retry": Unit(lost, requeue(task, delay=MINUTE)),
        "a lost claim's checkpoint": Unit(lost, Keep("1")),
        "a poll now": Unit(seen(task), requeue(task, "resume")),
    }


TOUCHES = list(touching_units(Run(id="", flow_id="", workflow="", root_id="", trace_id=""), Task(id="", queue_id=0)))


@pytest.mark.parametrize("touch", TOUCHES)
async def test_a_commit_that_locks_a_ready_task_reports_its_queue(
    ann: PostgresStore, bob: PostgresStore, gate: Gate, touch: str
) -> None:
    run, task = await ready_function(ann)
    blocker = Record(id=ids.new_id(), entity="schedule", state="active")
    await ann.commit([Unit(rows=(PutRecord(blocker),))])
    gate.blocked_by("records", blocker.id)
    waits = Unit(rows=(ChangeRecord(blocker.id, 0, "{}"),))  # a commit locks records after tasks
    commit = asyncio.ensure_future(ann.commit([touching_units(run, task)[touch], waits]))
    await gate.queued(1)
    assert await claim(bob, owner="bob") == []  # because it is locked
    gate.open()
    answers = await commit
    assert task.queue_id in {queue_id for answer in answers for queue_id in answer.queue_ids}
    assert [each.id for each in await claim(bob, owner="bob")] == [task.id]


async def test_a_commit_that_locks_a_task_over_its_limit_admits_it(ann: PostgresStore, bob: PostgresStore, gate: Gate) -> None:
    held = await put_and_claim(ann, limit_key="few", limit=1)
    run, task = await ready_function(ann, limit_key="few", limit=1)
    blocker = Record(id=ids.new_id(), entity="schedule", state="active")
    await ann.commit([Unit(rows=(PutRecord(blocker),))])
    gate.blocked_by("records", blocker.id)
    commit = asyncio.ensure_future(ann.commit([Unit(rows=(message_to(run), ChangeRecord(blocker.id, 0, "{}")))]))
    await gate.queued(1)
    (answer,) = await bob.commit([Unit(held.claim, succeed())])
    assert answer.queue_ids == ()  # nothing to admit but the locked task
    gate.open()
    (answer,) = await commit
    assert answer.queue_ids == (task.queue_id,)
    assert [each.id for each in await claim(bob, owner="bob")] == [task.id]


async def test_a_resume_that_locks_a_ready_task_of_its_run_reports_its_queue(
    ann: PostgresStore, bob: PostgresStore, gate: Gate
) -> None:
    run, task = await ready_function(ann)
    later = new_task(run_id=run.id, root_id=run.id)
    await put(ann, later)
    gate.blocked_by("tasks", later.id)
    resume = asyncio.ensure_future(ann.commit([Unit(run=RunGuard(run.id, None), rows=(BlockRun(run.id, False),))]))
    await gate.queued(1)
    assert await claim(bob, owner="bob") == []  # because it is locked
    gate.open()
    (answer,) = await resume
    assert answer.queue_ids == (task.queue_id,)
    assert {each.id for each in await claim(bob, owner="bob", limit=2)} == {task.id, later.id}


@pytest.mark.parametrize("limited", [False, True])
async def test_a_commit_that_locks_a_task_of_a_queue_with_a_rate_reports_the_queue(
    ann: PostgresStore, bob: PostgresStore, gate: Gate, limited: bool
) -> None:
    fields: dict[str, Any] = {"limit_key": "few", "limit": 1} if limited else {}
    held = await put_and_claim(ann, **fields)
    run, task = await ready_function(ann, **fields)
    await ann.operators.set_rate(task.queue_id, 1000.0, 10)
    blocker = Record(id=ids.new_id(), entity="schedule", state="active")
    await ann.commit([Unit(rows=(PutRecord(blocker),))])
    gate.blocked_by("records", blocker.id)
    commit = asyncio.ensure_future(ann.commit([Unit(rows=(message_to(run), ChangeRecord(blocker.id, 0, "{}")))]))
    await gate.queued(1)
    await bob.commit([Unit(held.claim, succeed())])
    assert await claim(bob, owner="bob") == []  # because it is locked
    gate.open()
    (answer,) = await commit
    assert answer.queue_ids == (task.queue_id,)
    assert [each.id for each in await claim(bob, owner="bob")] == [task.id]


@pytest.mark.parametrize("behind", ["in another queue", "at a lower priority", "at the same priority"])
async def test_a_claim_takes_the_task_behind_a_locked_one(ann: PostgresStore, gate: Gate, behind: str) -> None:
    first, queue = new_task(priority=1), OTHER if behind == "in another queue" else WORK
    second = new_task(queue, priority=2 if behind == "at a lower priority" else 1)
    await put(ann, first, second)
    gate.blocked_by("tasks", first.id)
    assert [each.id for each in await claim(ann, WORK, OTHER)] == [second.id]
    assert await claim(ann, WORK, OTHER) == []
    gate.open()
    assert [each.id for each in await claim(ann, WORK, OTHER)] == [first.id]


async def test_a_wake_up_reports_a_task_woken_concurrently_by_a_message(ann: PostgresStore, bob: PostgresStore, gate: Gate) -> None:
    """The statement locks the task although it is awake by then, so a claim that the message caused skips it."""
    _, task = await ready_function(ann)
    gate.execute("update tasks set wake_at = treadle_now() - 1 where id = %s", task.id)
    gate.open()
    gate.execute("select pg_advisory_xact_lock(1)")
    waking = await bob._database.connector.connect(HOT)
    try:
        statement = tasks_module._SQL["wake"]
        for old, new in (
            ("with due as", "with waits as materialized (select pg_advisory_xact_lock(1)), due as"),
            ("  from tasks\n", "  from tasks, waits\n"),
            ("  for update skip", "  for update of tasks skip"),
        ):
            assert old in statement
            statement = statement.replace(old, new, 1)
        woken = asyncio.ensure_future(waking.fetchrow(statement, 100, False, False))
        await gate.queued(1)
        await ann.commit([Unit(seen(task), requeue(task, "wait", quiet=True))])  # as a message does: awake
        gate.open()
        row = await woken
        assert (row["count"], row["queue_ids"]) == (0, [task.queue_id])
    finally:
        await waking.close()


async def test_a_renewal_that_finds_its_task_ready_notifies(ann: PostgresStore, bob: PostgresStore) -> None:
    taken = await put_and_claim(ann)
    heard: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
    await bob.subscribe(heard.put_nowait)
    await ann.commit([Unit(taken.claim, requeue(taken))])
    while not heard.empty():
        heard.get_nowait()
    assert await ann.tasks.extend([Renewal(taken.claim)], MINUTE) == {}
    async with asyncio.timeout(BOUND):
        assert await heard.get() == (taken.queue_id,)


async def test_a_checkpoint_of_a_lost_claim_reports_the_ready_task(ann: PostgresStore) -> None:
    run = await begin(ann, "a", tasks=("a",))
    (task,) = (await claim_steps(ann)).values()
    await ann.commit([Unit(task.claim, requeue(task))])
    step = (await ann.runs.list_steps(run.id, None, 10))[0]
    (answer,) = await ann.commit([Unit(task.claim, rows=(PutSteps(run.id, (step,), 0),))])
    assert (answer.verdict, answer.queue_ids) == (CLAIM_LOST, (task.queue_id,))


async def test_a_worker_without_polling_receives_a_task_locked_by_a_signal(ann: PostgresStore, gate: Gate) -> None:
    """The worker hears of the task, skips it while a signal's transaction holds it, and hears of it again."""
    run, task = await ready_function(ann)
    blocker = Record(id=ids.new_id(), entity="schedule", state="active")
    await ann.commit([Unit(rows=(PutRecord(blocker),))])
    gate.blocked_by("records", blocker.id)
    committer = Committer(ann, ManualClock())
    claims, signal, claimed = [], asyncio.Event(), asyncio.Event()
    committer.on_ready.append(lambda _: signal.set())

    async def work() -> list[Task]:  # the loop of a worker that never polls
        while True:
            signal.clear()
            claims.append(found := await claim(ann, owner="bob"))
            claimed.set()
            if found:
                return found
            await signal.wait()

    sent = committer.submit(Unit(rows=(message_to(run), ChangeRecord(blocker.id, 0, "{}"))))
    await gate.queued(1)
    worker = asyncio.ensure_future(work())
    await claimed.wait()
    gate.open()
    async with asyncio.timeout(BOUND):
        assert [each.id for each in await worker] == [task.id]
    assert claims[0] == []
    await sent
    await committer.drain()


async def test_workers_claim_again_after_a_commit_that_was_rolled_back(ann: PostgresStore) -> None:
    run, _ = await ready_function(ann)
    committer, heard = Committer(ann, ManualClock()), []
    committer.on_ready.append(heard.append)
    with pytest.raises(IllegalTransition):
        await committer.submit(Unit(rows=(message_to(run), RunTransition(run.id, "resume", "paused", "running"))))
    assert heard == [()]
    await committer.drain()


@pytest.mark.parametrize("pooled", ["", "&pgbouncer=1"], ids=["direct", "behind PgBouncer"])
async def test_a_call_that_is_canceled_while_it_waits_raises_the_cancellation(
    gate: Gate, postgres_url: str, postgres_schema: str, pooled: str
) -> None:
    """Behind PgBouncer a call is a transaction, and its rollback fails on the connection that the cancellation has ended."""
    store = await opened(postgres_url + pooled, postgres_schema)
    gate.execute("lock table queues in access exclusive mode")
    waiting = asyncio.ensure_future(store.tasks.list_queues())
    await gate.queued(1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(BOUND):
            await waiting
    gate.open()
    await store.close()
