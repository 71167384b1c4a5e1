"""An engine for tests: an empty store in memory, a clock that the test advances, and a worker in the test's own process.

    async with Environment(shop.engine) as env:
        run = await env.engine.start("order", {"id": 7})
        await env.drain()                    # everything that is due now
        await env.approve(actor="ada")
        await env.advance(days=3)           # timers, retries and schedules fire in order, each at its time
        assert await env.result(run) == {"state": "shipped"}

Nothing happens except inside `drain`, `advance` and `result`; no test sleeps. The engine keeps its handlers and functions, and
returns to its own store when the environment closes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from treadle.engine import Engine, use_store
from treadle.engine.handles import Handle
from treadle.engine.machine import SystemMachine
from treadle.engine.sync import BlockingHandle, blocking
from treadle.engine.worker_host import WorkerHost
from treadle.kernel.functions.notes import shown_wake_at
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import TreadleError
from treadle.model.external import ExternalProductionFailure, ExternalProductionHandle, Production
from treadle.model.ids import Ref, parse_id
from treadle.model.names import HANDLER, UPKEEP
from treadle.model.states import LIVE_TASK_STATES, TaskState
from treadle.model.values import Json
from treadle.settings import Settings
from treadle.testing.clock import ManualClock, SeededIds
from treadle.workers.context import Context
from treadle.workers.specialists import RenderSpecialist

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from treadle.api.approvals import Approval
    from treadle.kernel.telemetry.events import Emit
    from treadle.model.tasks import Task
    from treadle.workers.lease_renewer import LeaseRenewer

Said = Production | dict[str, Any] | ExternalProductionHandle | ExternalProductionFailure | BaseException | object


class StubExternalSpecialist(RenderSpecialist):
    """Returns a handle from `start`, and the given outcomes from successive polls; exceptions are raised.

    `started` has the payload and token of each start, `polled` the job of each poll. Productions are appended, as in a real
    specialist. After the last outcome, a poll raises. A test may change `outcomes` and `start_outcome`.
    """

    def __init__(
        self,
        poll_outcomes: Sequence[Said] = (),
        *,
        external_job_id: str = "job-1",
        initial_polling_interval_seconds: float = 1,
        start_outcome: Said | None = None,
    ) -> None:
        self.outcomes = list(poll_outcomes)
        self.start_outcome = start_outcome or ExternalProductionHandle(external_job_id, initial_polling_interval_seconds)
        self.started: list[tuple[dict[str, Any], str | None]] = []
        self.polled: list[str] = []
        self.canceled: list[str] = []

    async def start(self, payload: dict[str, Any], ctx: Context) -> Any:
        """Return the handle, or the scripted outcome."""
        self.started.append((payload, ctx.dispatch_token))
        return self._come_to(self.start_outcome, ctx)

    async def poll(self, external_job_id: str, ctx: Context) -> Any:
        """Return the next outcome."""
        self.polled.append(external_job_id)
        if not self.outcomes:
            raise LookupError("The stub has no more outcomes.")
        return self._come_to(self.outcomes.pop(0), ctx)

    async def cancel(self, external_job_id: str) -> None:
        """Record the cancellation."""
        self.canceled.append(external_job_id)

    @staticmethod
    def _come_to(outcome: Said, ctx: Context) -> Any:
        if isinstance(outcome, BaseException):
            raise outcome
        return ctx.append_produced(outcome) if isinstance(outcome, Production) else outcome


StubExternalRenderSpecialist = StubExternalSpecialist


T = TypeVar("T")

WAKE_LIMIT = PAGE = 1000
LEASE_FOR = 365 * 86_400_000
"""Leases outlast every test: they are not renewed while the clock stands still."""
RESULT_TIMEOUT = timedelta(days=365)


class Stalled(TreadleError, code="stalled"):
    """The awaited work cannot end by itself."""


@dataclass(frozen=True, slots=True)
class EnqueuedTask:
    """A task that the code under test has enqueued."""

    id: str
    name: str
    payload: Json
    state: str
    task_list: str
    priority: int
    due_in: float
    """Seconds until it may start; 0 if it is due."""


class _TestMachine(SystemMachine):
    """Real threads and processes, but no lease renewal."""

    def renew_leases(self, renewer: LeaseRenewer, emit: Emit) -> Callable[[], Awaitable[None]]:
        """Return a stop function that does nothing."""

        async def stop() -> None:
            renewer.close()

        return stop


class Environment:
    """An engine on an empty store in memory, with its clock and its worker; open it with `async with`.

    Without an `engine` it makes a new one, for handlers that the test registers. `lists` are the task lists that the worker serves.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        settings: Settings | None = None,
        lists: tuple[str, ...] = ("default",),
        concurrency: int | None = None,
        seed: int = 0,
    ) -> None:
        self.clock = ManualClock()
        self.engine = engine or Engine("memory://", settings=settings or Settings())
        self._settings = settings
        self._lists = lists
        self._concurrency = concurrency
        self._seed = seed
        self._former: tuple[str, Settings] | None = None

    async def __aenter__(self) -> Self:
        self.move_in()
        await self.engine.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.close()
        self.move_out()

    def move_in(self) -> None:
        """Give the closed engine a new store."""
        settings = self._settings or replace(self.engine.kernel.settings, store="memory://")
        ids = SeededIds(self._seed, self.clock)
        self._former = use_store(self.engine, "memory://", settings, clock=self.clock, ids=ids)

    def move_out(self) -> None:
        """Return the closed engine to its own store."""
        if self._former is not None:
            use_store(self.engine, *self._former)

    # time

    async def drain(self) -> None:
        """Run everything that is due now, and its consequences, until nothing more can run at this time.

        Each call is a new worker: durable functions are replayed from their recorded steps, as after a restart.
        """
        host = self.make_host()
        await host.start()
        try:
            while True:
                await host.worker.drained()
                if not (await self.engine.kernel.store.tasks.wake(WAKE_LIMIT)).count:
                    return
        finally:
            await host.stop()

    def make_host(self) -> WorkerHost:
        """Return a worker of the engine that is not started."""
        return WorkerHost(
            self.engine.kernel,
            concurrency=self._concurrency,
            threads=4,
            processes=2,
            task_lists=self._lists,
            lease_for=LEASE_FOR,
            grace=1.0,
            name="test",
            machine=_TestMachine(),
        )

    async def advance(self, /, duration: Duration = 0, **units: float) -> None:
        """Let time pass (seconds, a `timedelta`, or `days=3`, `hours=1`, ...); due work runs in order, each at its time."""
        until = self.clock.now() + milliseconds(duration) + milliseconds(timedelta(**units))
        await self.drain()
        while (due_at := await self._next_at()) is not None and due_at <= until:
            await self._go_to(due_at)
        await self._go_to(until)

    async def result(self, work: Ref, *, within: Duration = RESULT_TIMEOUT) -> Any:
        """Run the task or run to its end, advancing the clock as far as it needs, and return its result or raise its error.

        Raises `Stalled` with the explanation of `why` if the work waits for something that only the test can supply.
        """
        work_id, until = parse_id(work, "task or run id"), self.clock.now() + milliseconds(within)
        kernel = self.engine.kernel
        await self.drain()
        task = await kernel.store.tasks.find(work_id)
        while not await self._ended(work_id, task=task is not None):
            due_at = await self._next_at()
            if due_at is None and await self._has_more():
                continue
            if due_at is None or due_at > until:
                reason = await self.engine.why(work_id)
                raise Stalled(f"{work_id} does not end by itself: {reason.text}")
            await self._go_to(due_at)
        if isinstance(work, Handle):
            return await work.result()  # as its annotated type
        return await self.engine.result(work_id)

    # enqueued work

    async def enqueued(self, name: str | None = None) -> list[EnqueuedTask]:
        """Return the handler tasks that the store holds, oldest first: finished ones too. Tasks of workflow steps count."""
        tasks: list[Task] = []
        before: str | None = None
        while page := await self.engine.kernel.reads.list_tasks(name=name, kind=HANDLER, before_id=before, limit=PAGE):
            tasks += page
            before = page[-1].id
        now, unpack = self.clock.now(), self.engine.kernel.value_store.unpack
        return [
            EnqueuedTask(
                task.id,
                task.name,
                await unpack(task.payload),
                task.state,
                task.queue.task_list,
                task.priority,
                max(0, (task.wake_at or now) - now) / 1000,
            )
            for task in reversed(tasks)
        ]

    async def assert_enqueued(self, name: str, payload: Mapping[str, Json] | None = None, *, count: int | None = None) -> None:
        """Fail unless tasks of that name are stored, with at least the given payload fields; `count` of them, if given."""
        tasks = await self.enqueued(name)
        matching = [task for task in tasks if _contains(task.payload, payload or {})]
        if len(matching) != count if count is not None else not matching:
            wanted = f"{'a task' if count is None else f'{count} tasks'} {name!r}" + (f" with {dict(payload)}" if payload else "")
            others = [f"{task.name} {task.payload}" for task in (tasks or await self.enqueued())]
            raise AssertionError(f"Expected {wanted}; found {len(matching)}. Stored: {'; '.join(others) or 'no task'}")

    async def assert_not_enqueued(self, name: str, payload: Mapping[str, Json] | None = None) -> None:
        """Fail if a task of that name is stored with at least the given payload fields."""
        await self.assert_enqueued(name, payload, count=0)

    # people

    async def approve(
        self,
        work: Ref | None = None,
        *,
        actor: str = "test",
        reason: str | None = None,
        edits: dict[str, Json] | None = None,
        groups: tuple[str, ...] = (),
    ) -> Approval:
        """Approve the pending request of the run or task (None: the only one), then drain."""
        return await self._decide("approve", work, actor=actor, reason=reason, edits=edits, groups=groups)

    async def deny(
        self, work: Ref | None = None, *, actor: str = "test", reason: str = "denied in a test", groups: tuple[str, ...] = ()
    ) -> Approval:
        """Deny the pending request of the run or task (None: the only one), then drain."""
        return await self._decide("deny", work, actor=actor, reason=reason, edits=None, groups=groups)

    async def _decide(self, decision: str, work: Ref | None, **options: Any) -> Approval:
        await self.drain()
        pending = (await self.engine.approvals.list()).approvals
        if work is not None:
            work_id = parse_id(work, "task or run id")
            pending = [approval for approval in pending if work_id in (approval.id, approval.task_id, approval.run_id)]
        if len(pending) != 1:
            titles = "; ".join(f"{approval.id} {approval.title!r}" for approval in pending) or "none"
            raise AssertionError(f"Expected one pending approval{'' if work is None else f' of {work_id}'}; found: {titles}")
        decided = await self.engine.approvals.decide(pending[0].id, decision, **options)
        await self.drain()
        return decided

    # parts

    async def _go_to(self, at: int) -> None:
        self.clock.advance(timedelta(milliseconds=max(0, at - self.clock.now())))
        await self.drain()

    async def _next_at(self) -> int | None:
        """Return the next time at which something becomes due: a timer, or the token of a rate limit."""
        store, now = self.engine.kernel.store, self.clock.now()
        due = [at async for task in self._live() if _is_timed(task) and (at := shown_wake_at(task)) is not None]
        for approval in (await self.engine.approvals.list(limit=PAGE)).approvals:
            times = (approval.remind_at, approval.escalate_at, approval.expires_at)
            due += [at.ms for at in times if at is not None]
        if (token_for := await store.tasks.next_token_for(list(await store.tasks.list_queues()))) is not None:
            due.append(now + token_for)
        for limit in await self.engine.kernel.store.operators.list_limits(self.engine.kernel.settings.namespace):
            if limit.waiting and limit.stuck_for(now) is None and (start_for := limit.next_start_for(now)):
                due.append(now + start_for)
        return max(now + 1, min(due)) if due else None

    async def _has_more(self) -> bool:
        """Drain again; return whether that ran anything.

        On a store whose clock does not stand still, a task can become due after the last worker stopped claiming.
        """
        before = {(task.id, task.claim_version) async for task in self._live() if _is_timed(task)}
        await self.drain()
        return before != {(task.id, task.claim_version) async for task in self._live() if _is_timed(task)}

    async def _live(self) -> AsyncIterator[Task]:
        before: str | None = None
        while page := await self.engine.kernel.reads.list_tasks(states=LIVE_TASK_STATES, kind=None, before_id=before, limit=PAGE):
            for task in page:
                yield task
            before = page[-1].id

    async def _ended(self, work_id: str, *, task: bool) -> bool:
        if task:
            return (await self.engine.kernel.reads.get_task(work_id)).finished
        return (await self.engine.kernel.runs.get_run(work_id)).finished


def _is_timed(task: Task) -> bool:
    """Whether the task's due time means something: pruning is invisible, and approvals have times of their own."""
    return task.kind not in UPKEEP and task.state != TaskState.AWAITING_APPROVAL


def _contains(value: Json, wanted: Mapping[str, Json]) -> bool:
    return isinstance(value, dict) and all(key in value and value[key] == expected for key, expected in wanted.items())


class BlockingEnvironment:
    """`Environment` for tests without an event loop; open it with `with`. `engine` has the blocking calls of an engine."""

    def __init__(self, engine: Engine | None = None, **options: Any) -> None:
        self._inner = Environment(engine, **options)
        self.clock = self._inner.clock
        self.engine = self._inner.engine.blocking()

    def __enter__(self) -> Self:
        self._inner.move_in()
        try:
            self.engine.__enter__()
        except BaseException:
            self._inner.move_out()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self.engine.__exit__(*raised)
        finally:
            self._inner.move_out()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's event loop and wait for it."""
        return self.engine.run(coroutine)

    drain = blocking(Environment.drain)
    advance = blocking(Environment.advance)

    def result(self, work: Any, *, within: Duration = RESULT_TIMEOUT) -> Any:
        """As `Environment.result`; the result of a handle is of its annotated type."""
        ended = self.run(self._inner.result(work, within=within))
        return work.result() if isinstance(work, BlockingHandle) else ended

    enqueued = blocking(Environment.enqueued)
    assert_enqueued = blocking(Environment.assert_enqueued)
    assert_not_enqueued = blocking(Environment.assert_not_enqueued)
    approve = blocking(Environment.approve)
    deny = blocking(Environment.deny)
