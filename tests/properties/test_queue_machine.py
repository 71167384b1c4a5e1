"""Random histories of the queue: workers that claim, crash, come back late and repeat themselves; operators; time.

A small model predicts each task; after every step the store is compared with it, and the log with the rows.
At the end everything is driven to completion: no task is stuck, and none was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from tests.contract.databases import Database, Postgres, SqliteMemory

from treadle.kernel.queue.decide import settlement
from treadle.kernel.store.queries import Renewal, TaskFilter
from treadle.kernel.store.units import Finish, Keep, Redrive, Requeue, Unit, Verdict
from treadle.kernel.store.verify import verify
from treadle.model.outcomes import Failed, Outcome, Paused, Problem, Released, Retry, Succeeded, Waiting
from treadle.model.retry import RetryPolicy
from treadle.model.states import FINAL_TASK_STATES, BlockReason
from treadle.model.tasks import Claim, NewTask, Task
from treadle.testing import SeededIds
from treadle_conformance.task_steps import OTHER, WORK, Line, cancel, requeue, seen

POLICY = RetryPolicy(retries=2)
PROBLEM = Problem("boom", "It broke.")
QUEUES = (WORK, OTHER)

outcomes = st.sampled_from(
    [
        Succeeded({"n": 1}),
        Succeeded(),
        Failed(PROBLEM),
        Retry(PROBLEM),
        Retry(PROBLEM, after_for=0),
        Waiting(5_000, {"at": 1}),
        Waiting(0),
        Paused("why not"),
        Released(),
    ]
)
owners = st.sampled_from(["ann", "bob", "cyd"])
pick = st.integers(0, 10_000)


@dataclass(frozen=True)
class Expected:
    """The expected state of a task."""

    state: str = "pending"
    owner_id: str | None = None
    claim_version: int = 0
    version: int = 0
    attempt: int = 1
    failures: int = 0
    takeovers: int = 0
    blocked_by: int = 0
    wake_at: int | None = None
    checkpoint: str | None = None
    result: str | None = None
    unique_key: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in FINAL_TASK_STATES

    @property
    def ready(self) -> bool:
        return not self.finished and self.owner_id is None and self.wake_at is None and not self.blocked_by


COMPARED = [name for name in Expected.__dataclass_fields__ if name != "wake_at"]


class QueueMachine(RuleBasedStateMachine):
    """Drives the store through its ports and checks every answer."""

    make_database: Any = None
    """Set by the tests: makes an empty database."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.thread = ThreadPoolExecutor(1)
        self.database: Database = self.make_database()
        self.expected: dict[str, Expected] = {}

    @initialize()
    def open(self) -> None:
        self.store = self.do(self.database.open_store())
        self.queue_ids = self.do(self.store.tasks.queue_ids(QUEUES))
        self.line = Line(self.store.servers.lease_connection(), self.thread)
        self.ids = SeededIds()
        self.queues: dict[str, Any] = {}
        self.priorities: dict[str, int] = {}
        self.handed_out: set[tuple[str, int]] = set()
        self.holders: list[Task] = []
        """Claims that their holders remember, whether live or lost."""
        self.committed: list[Unit] = []
        """Units under a claim that were answered `done`."""

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    async def _line(self, name: str, *arguments: Any) -> Any:
        return await getattr(self.line, name)(*arguments)

    @property
    def now(self) -> int:
        return self.database.clock.now()

    def commit(self, unit: Unit) -> Verdict:
        (answer,) = self.do(self.store.commit([unit]))
        return answer.verdict

    # --- work arrives ---

    @rule(count=st.integers(1, 3), queue=st.sampled_from(QUEUES), priority=st.integers(-1, 1), delay=st.sampled_from([0, 0, 4_000]))
    def insert(self, count: int, queue: Any, priority: int, delay: int) -> None:
        tasks = tuple(NewTask(id=self.ids.new_id(), queue=queue, priority=priority, delay=delay) for _ in range(count))
        assert self.commit(Unit(tasks=tasks)) == Verdict.DONE
        self.expect_new(*tasks)

    @rule(key=st.sampled_from(["k1", "k2"]), queue=st.sampled_from(QUEUES))
    def insert_once(self, key: str, queue: Any) -> None:
        live = [task_id for task_id, task in self.expected.items() if task.unique_key == key and not task.finished]
        assert len(live) <= 1
        task = NewTask(id=self.ids.new_id(), queue=queue, unique_key=key)
        (answer,) = self.do(self.store.commit([Unit(tasks=(task,))]))
        assert answer.verdict == Verdict.DONE
        assert answer.existing == ({key: live[0]} if live else {})
        if not live:
            self.expect_new(task)

    def expect_new(self, *tasks: NewTask) -> None:
        for task in tasks:
            wake_at = self.now + task.delay if task.delay else None
            self.expected[task.id] = Expected(wake_at=wake_at, unique_key=task.unique_key)
            self.queues[task.id], self.priorities[task.id] = task.queue, task.priority

    # --- workers ---

    @rule(
        owner=owners,
        queues=st.sampled_from([(WORK,), (OTHER,), QUEUES]),
        limit=st.integers(1, 3),
        lease_for=st.sampled_from([5_000, 60_000]),
    )
    def claim(self, owner: str, queues: Any, limit: int, lease_for: int) -> None:
        ready = [task_id for task_id, task in self.expected.items() if task.ready and self.queues[task_id] in queues]
        taken = self.do(self.store.tasks.claim([self.queue_ids[queue] for queue in queues], owner, lease_for, limit))
        assert bool(taken) == bool(ready)
        assert len({task.id for task in taken}) == len(taken) <= limit
        assert len({task.queue for task in taken}) <= 1
        for task in taken:
            before = self.expected[task.id]
            assert before.ready
            assert task.priority == min(self.priorities[task_id] for task_id in ready)
            assert (task.id, task.claim_version) not in self.handed_out
            self.handed_out.add((task.id, task.claim_version))
            self.expected[task.id] = replace(
                before, owner_id=owner, claim_version=before.claim_version + 1, wake_at=self.now + lease_for
            )
        self.holders += taken

    def holds(self, claim: Claim) -> bool:
        task = self.expected[claim.task_id]
        return not task.finished and (task.claim_version, task.owner_id) == (claim.version, claim.owner_id)

    @precondition(lambda self: self.holders)
    @rule(which=pick, outcome=outcomes, follow=st.booleans(), forget=st.booleans())
    def settle(self, which: int, outcome: Outcome, follow: bool, forget: bool) -> None:
        """A holder settles, in time or late; after a lost response it may settle differently later."""
        task = self.holders[which % len(self.holders)]
        followers = (NewTask(id=self.ids.new_id(), queue=WORK),) if follow else ()
        unit = Unit(task.claim, settlement(task, outcome, POLICY), followers)
        spent = any(known.guard == unit.guard and not isinstance(known.settlement, Keep) for known in self.committed)
        in_time = self.holds(task.claim)
        if spent:
            # Its transition was made under this claim: that is `repeat`'s affair.
            return
        assert self.commit(unit) == (Verdict.DONE if in_time else Verdict.CLAIM_LOST)
        if in_time:
            self.committed.append(unit)
            self.expect_settled(task.id, unit.settlement)
            self.expect_new(*followers)
        if forget:
            self.holders.remove(task)

    def expect_settled(self, task_id: str, settled: Any) -> None:
        before = self.expected[task_id]
        match settled:
            case Finish():
                after = replace(before, state=settled.state, result=settled.result, wake_at=None, blocked_by=0)
                if settled.transition == "cancel":
                    after = replace(after, owner_id=None)
            case Requeue():
                after = replace(
                    before,
                    state=settled.state,
                    owner_id=None,
                    attempt=settled.attempt,
                    failures=settled.failures,
                    takeovers=settled.takeovers,
                    blocked_by=settled.blocked_by,
                    wake_at=None if settled.delay is None else self.now + settled.delay,
                    checkpoint=settled.checkpoint,
                )
            case Keep():
                self.expected[task_id] = replace(before, checkpoint=settled.checkpoint)
                return
        self.expected[task_id] = replace(after, version=before.version + 1)

    @precondition(lambda self: self.holders)
    @rule(which=pick, checkpoint=st.sampled_from([None, "1", "2"]))
    def checkpoint(self, which: int, checkpoint: str | None) -> None:
        task = self.holders[which % len(self.holders)]
        unit = Unit(task.claim, Keep(checkpoint))
        in_time = self.holds(task.claim)
        assert self.commit(unit) == (Verdict.DONE if in_time else Verdict.CLAIM_LOST)
        if in_time:
            task.checkpoint = checkpoint
            self.expect_settled(task.id, unit.settlement)

    @precondition(lambda self: self.committed)
    @rule(which=pick, times=st.integers(1, 2))
    def repeat(self, which: int, times: int) -> None:
        """The connection died during COMMIT: the same units are sent again, possibly after other changes."""
        unit = self.committed[which % len(self.committed)]
        for _ in range(times):
            assert self.commit(unit) == Verdict.DONE

    @precondition(lambda self: self.holders)
    @rule(which=pick)
    def crash(self, which: int) -> None:
        """A holder is gone permanently; its lease will tell."""
        self.holders.pop(which % len(self.holders))

    @precondition(lambda self: self.holders)
    @rule(which=st.lists(pick, min_size=1, max_size=3), lease_for=st.sampled_from([5_000, 60_000]), progressed=st.booleans())
    def renew(self, which: list[int], lease_for: int, progressed: bool) -> None:
        claims = {self.holders[number % len(self.holders)].claim for number in which}
        held = {claim.task_id for claim in claims if self.holds(claim)}
        assert self.do(self._line("renew", [Renewal(claim, progressed) for claim in claims], lease_for)) == held
        assert self.do(self._line("held", list(claims))) == held
        for task_id in held:
            self.expected[task_id] = replace(self.expected[task_id], wake_at=self.now + lease_for)

    # --- time ---

    @rule(ms=st.sampled_from([1, 999, 1_000, 5_000, 60_000]))
    def advance(self, ms: int) -> None:
        self.do(self.database.clock.advance(ms))

    @rule(expire_leases=st.sampled_from([True, True, False]))
    def wake(self, expire_leases: bool) -> None:
        due = {
            task_id: task
            for task_id, task in self.expected.items()
            if task.wake_at is not None and task.wake_at <= self.now and (expire_leases or task.owner_id is None)
        }
        expired = {task_id for task_id, task in due.items() if task.owner_id is not None}
        woken = self.do(self.store.tasks.wake(1_000, expire_leases=expire_leases))
        assert (woken.count, woken.expired) == (len(due), len(expired))
        for task_id, task in due.items():
            lost = int(task_id in expired)
            self.expected[task_id] = replace(
                task,
                owner_id=None,
                wake_at=None,
                takeovers=task.takeovers + lost,
                attempt=task.attempt + lost * (task.state == "pending"),
                version=task.version + lost,
            )

    # --- operators ---

    def look(self, which: int, *, finished: bool) -> Task | None:
        found = [task_id for task_id, task in self.expected.items() if task.finished == finished]
        return self.do(self.store.tasks.find(found[which % len(found)])) if found else None

    @rule(which=pick, meanwhile=st.booleans())
    def cancel(self, which: int, meanwhile: bool) -> None:
        if task := self.look(which, finished=False):
            guard = seen(task)
            if meanwhile:
                self.claim("eve", QUEUES, 3, 60_000)
            still = (self.expected[task.id].version, self.expected[task.id].claim_version) == (guard.version, guard.claim_version)
            verdict = self.commit(Unit(guard, cancel()))
            assert verdict == (Verdict.DONE if still else Verdict.CLAIM_LOST)
            if still:
                self.expect_settled(task.id, cancel())
                assert self.commit(Unit(guard, cancel())) == Verdict.CLAIM_LOST

    @rule(which=pick)
    def hold_or_release(self, which: int) -> None:
        if (task := self.look(which, finished=False)) and task.owner_id is None:
            transition, blocked_by = ("resume", 0) if task.blocked_by else ("pause", BlockReason.TASK_PAUSED)
            settled = requeue(task, transition, blocked_by=blocked_by, actor="op", checkpoint=task.checkpoint)
            assert self.commit(Unit(seen(task), settled)) == Verdict.DONE
            self.expect_settled(task.id, settled)

    @rule(which=pick)
    def retry(self, which: int) -> None:
        if (task := self.look(which, finished=True)) and task.state != "completed":
            assert self.commit(Unit(seen(task), Redrive("requeue", "op"))) == Verdict.DONE
            assert self.commit(Unit(seen(task), Redrive("requeue", "op"))) == Verdict.CLAIM_LOST
            before = self.expected[task.id]
            key_taken = any(
                other.unique_key == before.unique_key and not other.finished
                for other in self.expected.values()
                if before.unique_key is not None
            )
            self.expected[task.id] = replace(
                before,
                state="pending",
                owner_id=None,
                version=before.version + 1,
                attempt=before.attempt + (before.claim_version > 0),
                failures=0,
                takeovers=0,
                blocked_by=0,
                result=None,
                unique_key=None if key_taken else before.unique_key,
            )

    # --- invariants ---

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        tasks = self.do(self.store.tasks.list_matching(TaskFilter(), 10_000))
        assert sorted(task.id for task in tasks) == sorted(self.expected)
        for task in tasks:
            expected = self.expected[task.id]
            for name in COMPARED:
                if name == "owner_id" and task.finished:
                    continue
                assert getattr(task, name) == getattr(expected, name), (name, task, expected)
            assert task.finished == expected.finished
            if not task.finished:
                assert task.wake_at == expected.wake_at
                assert task.owner_id is None or task.wake_at is not None

    @invariant()
    def every_completion_is_seen(self) -> None:
        done = {task_id: task.result for task_id, task in self.expected.items() if task.finished}
        found = self.do(self.store.tasks.find_many(list(self.expected), ended=True))
        assert sorted((task.id, task.result) for task in found if task.result) == sorted(
            (task_id, result) for task_id, result in done.items() if result
        )
        assert sorted(task.id for task in found) == sorted(done)
        assert sum(self.do(self.store.tasks.count_finished()).by_state.values()) == len(done)

    @invariant()
    def the_log_explains_the_rows(self) -> None:
        report = self.do(verify(self.store))
        assert (report.checked, report.problems) == (len(self.expected), ())

    def teardown(self) -> None:
        """After any history: release all claims, advance the clock, and every task can be completed."""
        try:
            if hasattr(self, "line"):
                self.finish_everything()
        finally:
            if hasattr(self, "line"):
                self.do(self._line("close"))
            self.thread.shutdown()
            self.do(self.database.close())
            self.loop.close()

    def finish_everything(self) -> None:
        for _ in range(2 * len(self.expected) + 2):
            if all(task.finished for task in self.expected.values()):
                break
            for number in range(len(self.expected)):
                held = self.look(number, finished=False)
                if held and held.blocked_by and held.owner_id is None:
                    self.hold_or_release(number)
            self.advance(120_000)
            self.wake(True)
            self.holders.clear()
            self.claim("last", QUEUES, 1_000, 60_000)
            for task in list(self.holders):
                self.settle(self.holders.index(task), Succeeded({"n": 2}), False, True)
        assert all(task.finished for task in self.expected.values())
        self.nothing_is_lost_or_doubled()
        self.the_log_explains_the_rows()


def limits(max_examples: int, steps: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.mark.parametrize("examples", [15, pytest.param(1000, marks=pytest.mark.soak)])
def test_random_histories_of_the_queue_in_memory(request: pytest.FixtureRequest, tmp_path: Path, examples: int) -> None:
    """No history breaks a rule or an invariant of the machine."""

    class InMemory(QueueMachine):
        @staticmethod
        def make_database() -> Database:
            return SqliteMemory(request, tmp_path)

    run_state_machine_as_test(InMemory, settings=limits(examples, 40))


@pytest.mark.parametrize("examples", [5, pytest.param(200, marks=pytest.mark.soak)])
def test_random_histories_of_the_queue_on_postgresql(request: pytest.FixtureRequest, tmp_path: Path, examples: int) -> None:
    """No history breaks a rule or an invariant of the machine."""
    schemas = request.getfixturevalue("schemas")

    class OnPostgres(QueueMachine):
        @staticmethod
        def make_database() -> Database:
            return Postgres(request, tmp_path, schema=schemas.take())

        def teardown(self) -> None:
            try:
                super().teardown()
            finally:
                schemas.give_back(self.database.name)

    run_state_machine_as_test(OnPostgres, settings=limits(examples, 30))
