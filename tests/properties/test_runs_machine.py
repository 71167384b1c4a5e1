"""Random histories of one run: two processes settle, wait for commits, are overtaken, and die before or after any of them.

Every commit of a process stops at a gate. The machine says when it is let through, whether its answer comes back, and what
others do meanwhile: claim, settle, pause, resume, cancel a task's lease, speak for an agent. Whatever happened, the run is
then driven to its end by one more process: the outputs are the same, no task is live, nothing is left in an inbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from tests.engines import port_of

from treadle.evaluator import Limits
from treadle.kernel.core import Core
from treadle.kernel.functions.operations import FunctionRuns
from treadle.kernel.functions.service import Functions
from treadle.kernel.queue.decide import settlement
from treadle.kernel.runs.advancer import Advancer
from treadle.kernel.runs.flows import Flows
from treadle.kernel.runs.service import Runs
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Finish, Unit, UnitAnswer
from treadle.kernel.store.value_store import ValueStore
from treadle.kernel.store.verify import verify
from treadle.model.errors import IllegalTransition, Refused, StoreUnavailable
from treadle.model.names import ADVANCE, HANDLER
from treadle.model.outcomes import Succeeded
from treadle.model.retry import RetryPolicy
from treadle.model.tasks import Task
from treadle.model.values import decode
from treadle.stores.sqlite import SqliteStore
from treadle.testing import ManualClock, SeededIds

FLOW = [
    (
        "machine.afl",
        """
namespace m {
    event facet Do(n: Long) => (out: Long)
    facet Twice(n: Long) => (out: Long) andThen {
        a = Do(n = $.n)
        b = Do(n = a.out)
        yield Twice(out = b.out)
    }
    workflow W(items: Json) => (outs: Json, sum: Long) andThen foreach item in $.items {
        t = Twice(n = $.item)
        yield W(outs = [t.out])
    } andThen {
        left = Do(n = 10)
        right = Do(n = 20)
        both = Do(n = left.out + right.out)
        yield W(sum = both.out)
    }
}
""",
    )
]
INPUTS = {"items": [1, 2, 3, 4, 5]}
OUTPUTS = {"outs": [4, 8, 12, 16, 20], "sum": 120}
LEASE_FOR = 10_000
LIVE = ("pending", "running", "paused", "awaiting_external", "awaiting_approval")


class Gate:
    """A store as a process sees it: its commits wait until they are let through; a dead process hears nothing any more."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.parallel_commits = 2
        self.waiting: list[tuple[list[Unit], asyncio.Future[list[UnitAnswer]]]] = []
        self.dead = False
        self.open = False

    def __getattr__(self, name: str) -> Any:
        return port_of(getattr(self._store, name), self._wrap) or self._wrap(name, getattr(self._store, name))

    def _wrap(self, name: str, method: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            if self.dead:
                await asyncio.get_running_loop().create_future()
            return await method(*args, **options)

        return call

    async def commit(self, units: Sequence[Unit]) -> list[UnitAnswer]:
        if self.open:
            return await self._store.commit(units)
        let: asyncio.Future[list[UnitAnswer]] = asyncio.get_running_loop().create_future()
        if not self.dead:
            self.waiting.append((list(units), let))
        return await let

    async def let_through(self, *, answer: bool = True) -> None:
        units, let = self.waiting.pop(0)
        try:
            answers = await self._store.commit(units)
        except IllegalTransition as error:
            if answer:
                let.set_exception(error)
            return
        if answer:
            let.set_result(answers)

    async def lose(self, *, done: bool) -> None:
        """The connection dies; nothing is known about the commit."""
        units, let = self.waiting.pop(0)
        if done:
            with suppress(IllegalTransition):
                await self._store.commit(units)
        let.set_exception(StoreUnavailable("gone"))


class Process:
    """The state of one process: its memory, and the claims that only it knows."""

    def __init__(self, store: SqliteStore, clock: ManualClock, ids: SeededIds, name: str) -> None:
        self.gate = Gate(store)
        gate: Any = self.gate
        self.name = name
        self.committer = Committer(gate, clock, lambda _: None)
        core = Core(gate, self.committer, ValueStore(gate), ids, clock, lambda _: None)
        flows = Flows(core)
        self.advancer = Advancer(core, flows, Limits(expand=2))
        self.runs = Runs(core, self.advancer, flows, FunctionRuns(core, Functions(core, lambda _: None)))
        self.held: list[Task] = []
        self.activity: list[asyncio.Task[Any]] = []

    async def settle(self, task: Task) -> None:
        result = {} if task.kind == ADVANCE else {"out": decode(task.payload)["n"] * 2}
        decided = settlement(task, Succeeded(result), RetryPolicy())
        assert isinstance(decided, Finish)
        await self.advancer.settle(task, task.claim, decided)


class RunMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.all_active: list[asyncio.Task[Any]] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def settle_down(self) -> None:
        """Let everything run that can."""

        async def turns() -> None:
            for _ in range(60):
                await asyncio.sleep(0)

        self.do(turns())

    @initialize()
    def start(self) -> None:
        self.clock, self.ids = ManualClock(), SeededIds()
        self.store = SqliteStore(None, clock=self.clock)
        self.do(self.store.open())
        self.made = 0
        self.processes = [self.new_process(), self.new_process()]
        self.operator = self.new_process()
        self.operator.gate.open = True
        self.run_id = self.do(self.operator.runs.start(FLOW, "m.W", INPUTS)).id

    def new_process(self) -> Process:
        self.made += 1
        return Process(self.store, self.clock, self.ids, f"process-{self.made}")

    def begin(self, process: Process, work: Coroutine[Any, Any, Any]) -> None:
        async def forgiving() -> None:
            try:
                await work
            except (IllegalTransition, Refused, StoreUnavailable):
                pass

        async def created() -> asyncio.Task[Any]:
            return asyncio.get_running_loop().create_task(forgiving())

        activity = self.do(created())
        process.activity.append(activity)
        self.all_active.append(activity)
        self.settle_down()

    async def claim_from(self, name: str, limit: int, *kinds: str) -> list[Task]:
        queues = [queue_id for queue_id, queue in (await self.store.tasks.list_queues()).items() if queue.kind in kinds]
        taken: list[Task] = []
        for queue_id in queues:
            if len(taken) < limit:
                taken += await self.store.tasks.claim([queue_id], name, LEASE_FOR, limit - len(taken))
        return taken

    which = st.integers(0, 1)

    @rule(which=which, limit=st.integers(1, 4), kind=st.sampled_from([HANDLER, HANDLER, ADVANCE]))
    def claim(self, which: int, limit: int, kind: str) -> None:
        process = self.processes[which]
        process.held += self.do(self.claim_from(process.name, limit, kind))

    @rule(which=which, number=st.integers(0, 10), count=st.integers(1, 3))
    def settle(self, which: int, number: int, count: int) -> None:
        """Holders settle, several at once, in time or late."""
        process = self.processes[which]
        for _ in range(count):
            if process.held:
                task = process.held.pop(number % len(process.held))
                self.begin(process, process.settle(task))

    @precondition(lambda self: any(process.gate.waiting for process in self.processes))
    @rule(which=which)
    def let_through(self, which: int) -> None:
        gates = [process.gate for process in self.processes if process.gate.waiting]
        self.do(gates[which % len(gates)].let_through())
        self.settle_down()

    @precondition(lambda self: any(process.gate.waiting for process in self.processes))
    @rule(which=which, done=st.booleans())
    def lose_the_connection(self, which: int, done: bool) -> None:
        """The commit happened or it did not; the process does not know, and sends it again."""
        gates = [process.gate for process in self.processes if process.gate.waiting]
        gate = gates[which % len(gates)]
        self.do(gate.lose(done=done))
        self.settle_down()
        self.clock.advance(2)
        self.settle_down()

    @precondition(lambda self: any(process.gate.waiting for process in self.processes))
    @rule(which=which, done=st.booleans())
    def crash(self, which: int, done: bool) -> None:
        """The process dies, before or after its commit in flight; another one starts in its place."""
        process = self.processes[which]
        if process.gate.waiting and done:
            self.do(process.gate.let_through(answer=False))
        process.gate.dead = True
        self.processes[which] = self.new_process()

    @rule()
    def leases_run_out(self) -> None:
        self.clock.advance(LEASE_FOR / 1000)
        self.do(self.store.tasks.wake(1000))
        self.settle_down()

    @rule(which=st.integers(0, 2))
    def pause(self, which: int) -> None:
        """By one of the processes, whose commit waits like any other, or by an operator at once."""
        process = [*self.processes, self.operator][which]
        self.begin(process, process.runs.pause(self.run_id))

    @rule(which=st.integers(0, 3))
    def resume(self, which: int) -> None:
        process = [*self.processes, self.operator, self.operator][which]
        self.begin(process, process.runs.resume(self.run_id))

    @rule(which=which, number=st.integers(0, 10))
    def an_agent_answers(self, which: int, number: int) -> None:
        live = self.do(self.store.tasks.list_matching(TaskFilter(states=LIVE, run_id=self.run_id), 100))
        waiting = [task for task in live if task.kind == HANDLER]
        if waiting:
            task = waiting[number % len(waiting)]
            result = {"out": decode(task.payload)["n"] * 2}
            self.begin(self.processes[which], self.processes[which].runs.continue_step(self.run_id, task.step_id or "", result))

    async def finish(self) -> None:
        last = self.new_process()
        last.gate.open = True
        self.clock.advance(LEASE_FOR / 1000)
        await self.store.tasks.wake(1000)
        run = await last.runs.get_run(self.run_id)
        if run.state == "paused":
            await last.runs.resume(self.run_id)
        while tasks := await self.claim_from(last.name, 100, HANDLER, ADVANCE):
            await asyncio.gather(*(last.settle(task) for task in tasks))
        run = await last.runs.get_run(self.run_id)
        assert (run.state, await last.runs.outputs(run)) == ("completed", OUTPUTS)
        assert await self.store.tasks.list_matching(TaskFilter(states=LIVE), 100) == []
        assert await self.store.runs.list_steps(self.run_id, None, 100, with_inbox=True) == []
        report = await verify(self.store)
        assert report.problems == ()
        rows = await last.runs.list_steps(self.run_id)
        assert (run.steps, len(rows)) == (len(rows), 2 + 1 + 5 * (1 + 1 + 1 + 2) + 3)
        assert {row.open for row in rows} == {0}

    def teardown(self) -> None:
        try:
            if hasattr(self, "run_id"):
                for process in self.processes:
                    process.gate.dead = True
                self.do(self.finish())
        finally:
            self.do(self.clean_up())
            self.loop.close()

    async def clean_up(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if hasattr(self, "store"):
            await self.store.close()


def run_machine(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        RunMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


def test_a_run_shared_by_two_processes_always_ends_consistently() -> None:
    """No history leaves a run unfinished or its steps contradictory."""
    run_machine(12, 40)


@pytest.mark.soak
def test_a_run_shared_by_two_processes_always_ends_consistently_many_times() -> None:
    """No history leaves a run unfinished or its steps contradictory."""
    run_machine(3000, 60)
