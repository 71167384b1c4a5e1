"""The execution of a run in this process: its claim, its clock, its branches, and whether any of its code still executes.

The parts of a driver share it. A branch that waits durably is suspended in a future; with no active branch, the run is suspended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

from treadle.kernel.core import Around
from treadle.kernel.functions.decide import CancelRequest, read_request
from treadle.kernel.functions.notes import note_steps
from treadle.kernel.functions.steps import Recorded, step_id
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Row
from treadle.kernel.store.value_store import ValueStore
from treadle.model.clock import Clock
from treadle.model.errors import MisusedContext
from treadle.model.ids import Ids
from treadle.model.outcomes import Problem
from treadle.model.runs import Step
from treadle.model.states import StepState
from treadle.model.tasks import NewTask, Task, TaskLimit
from treadle.settings import Settings
from treadle.workers.call import Executor
from treadle.workers.context import Context
from treadle.workers.functions.registry import RegisteredFunction
from treadle.workers.streams import Streams

if TYPE_CHECKING:
    from treadle.kernel.streams import StreamReads

executing: ContextVar[tuple[str, CodeType | None, FunctionBranch] | None] = ContextVar("executing", default=None)
"""The function whose code this context executes: its name, its code, and the branch."""


def current_code() -> tuple[str, CodeType] | None:
    """Return the name and the code of the function that executes in this context, outside its steps."""
    current = executing.get()
    if current is None or current[1] is None or current[2].busy is not None:
        return None
    return current[0], current[1]


class PendingUnit:
    """Rows that branches have decided and that the next unit commits."""

    __slots__ = ("consumed", "guarded", "publishes", "rows", "starts", "steps", "tasks")

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        """By id; the last version of a step counts."""
        self.tasks: list[NewTask] = []
        self.rows: list[Row] = []
        self.consumed: list[str] = []
        """Ids of messages that ended waits."""
        self.starts: list[tuple[NewTask, tuple[Row, ...], Step]] = []
        """Child runs with the steps that start them. They start only if the run has not changed since it was last read, so
        that a pause or a cancellation reaches them."""
        self.guarded = False
        """Whether the unit must raise the run's version."""
        self.publishes = False
        """Whether the unit stores the published values, as they are when it is committed."""

    def __bool__(self) -> bool:
        return bool(self.steps or self.tasks or self.rows or self.consumed or self.starts)

    def take(self, other: PendingUnit) -> None:
        """Add all rows of another unit."""
        self.steps.update(other.steps)
        self.tasks += other.tasks
        self.rows += other.rows
        self.consumed += other.consumed
        self.starts += other.starts
        self.guarded = self.guarded or other.guarded
        self.publishes = self.publishes or other.publishes


class FunctionBranch:
    """The position of one branch, and the rows that it has decided. Its places begin with `scope`."""

    __slots__ = (
        "busy",
        "committing",
        "dropped",
        "host",
        "hosting",
        "interrupted",
        "names",
        "parent",
        "pending",
        "place",
        "position",
        "randoms",
        "scope",
        "streams",
        "waiting",
    )

    def __init__(self, scope: str = "", parent: FunctionBranch | None = None) -> None:
        self.scope = scope
        self.parent = parent
        self.position = 0
        self.randoms = 0
        self.names: dict[str, int] = {}
        self.pending: PendingUnit | None = None
        self.busy: str | None = None
        """The step whose code it executes, in which `ctx` cannot be used, except for streams."""
        self.host: Host | None = None
        """The host whose operation it is."""
        self.hosting: Host | None = None
        """The host of the operations that other asyncio tasks await for it."""
        self.waiting: asyncio.Future[None] | None = None
        """The future that an operation of a host awaits while it waits durably."""
        self.place = ""
        """The place of that step."""
        self.streams: Streams | None = None
        """The streams of that step, once it has opened one."""
        self.committing = False
        """Whether it waits for a commit, which must not be interrupted: the unit may have rows of other branches."""
        self.dropped = False
        """Whether nothing waits for it any more: it ends at its next operation, and nothing that it does is recorded."""
        self.interrupted: bool = parent is not None and parent.interrupted
        """Whether `Canceled` was raised in it, or in a branch inside it."""

    def interrupt(self) -> None:
        """Note that `Canceled` is raised in the branch: it ends the gathers around it, too."""
        branch: FunctionBranch | None = self
        while branch is not None and not branch.interrupted:
            branch.interrupted = True
            branch = branch.parent

    def next_unit(self) -> PendingUnit:
        """Return the unit that collects its rows until its next commit."""
        if self.pending is None:
            self.pending = PendingUnit()
        return self.pending

    def number(self, name: str) -> str:
        """Return the name, with a number from the second use in this branch."""
        count = self.names.get(name, 0) + 1
        self.names[name] = count
        return name if count == 1 else f"{name}#{count}"


_MOMENT = 0.05
"""Seconds without a new operation after which a branch rests. A wrong guess costs a replay, nothing else."""


class Host:
    """The operations of one branch that other asyncio tasks await: their places by name, and whether all of them wait.

    The order in which such tasks reach their operations differs between executions, so a replay finds their steps by name instead
    of by position: the steps of a host share one place of its branch, each in a scope of its own.

    While the framework's code executes, the branch counts as active. When all operations of the host wait durably and none has
    begun for a moment, the branch rests: the run is suspended and closed, as nobody can see whether the framework does something
    else meanwhile. A replay continues it. So a run that waits for an approval in a tool occupies no worker.
    """

    def __init__(
        self, execution: FunctionExecution, branch: FunctionBranch, place: str, recorded: dict[str, int], width: int
    ) -> None:
        self._execution = execution
        self._branch = branch
        self._place = place
        self._recorded = recorded
        """Indexes of recorded operations that are not begun here, by name."""
        self._next = width
        self._names = FunctionBranch()
        self._operations = 0
        self._waiting = 0
        self._resting = False
        self._timer: asyncio.TimerHandle | None = None

    def number(self, name: str) -> str:
        """Return an id that is unique in the run, the same in every replay if the calls come in the same order."""
        return f"{self._place}/{self._names.number(name)}"

    def branch_for(self, name: str) -> tuple[str, FunctionBranch]:
        """Return the operation's name and branch; a name that is used again is numbered, in the order of the calls."""
        name = self._names.number(name)
        index = self._recorded.pop(name, None)
        if index is None:
            index, self._next = self._next, self._next + 1
        branch = FunctionBranch(f"{self._place}.{index}.", self._branch)
        branch.host = self
        return name, branch

    def begin(self) -> None:
        """Count an operation that begins."""
        self._operations += 1
        self._execution.active += 1
        self._wake()

    def end(self, branch: FunctionBranch) -> None:
        """Count an operation as ended."""
        self._operations -= 1
        if branch.waiting is not None:  # the framework canceled a task that waits
            self._execution.abandon(branch.waiting)
        self._execution.active -= 1
        if not self._execution.closed:
            self._consider()

    def suspended(self) -> None:
        """Count an operation that begins to wait durably."""
        self._waiting += 1
        self._consider()

    def resumed(self) -> None:
        """Count an operation that continues."""
        self._waiting -= 1
        self._wake()

    def _consider(self) -> None:
        if self._is_idle() and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_MOMENT, self._rest)

    def _is_idle(self) -> bool:
        return 0 < self._operations == self._waiting

    def _rest(self) -> None:
        self._timer = None
        execution = self._execution
        if self._is_idle() and not self._resting and not execution.closed:
            self._resting = True
            execution.resting += 1
            execution.active -= 1
            execution.schedule()

    def _wake(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._resting:
            self._resting = False
            self._execution.resting -= 1
            self._execution.active += 1


_LONG_FOR = 1000
"""Milliseconds after which a step in progress is stored for display."""


@dataclass(slots=True)
class Runtime:
    """The parts of a worker that functions use."""

    store: Store
    committer: Committer
    value_store: ValueStore
    clock: Clock
    ids: Ids
    executor: Executor
    resolve: Callable[[str, int | None], Awaitable[int]]
    """Returns the version of a function for a new run; raises `NotFound`."""
    on_finished: Callable[[str], None]
    """Called with the id of each run that ended here."""
    namespace: str
    payload_limit: int
    settings: Settings = field(default_factory=Settings)
    wire: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda call: call
    """Returns the code of a step with its dependencies injected."""
    around: Around = field(default_factory=dict)
    """The interceptors of the engine."""
    wrap_in_thread: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda call: call
    """Returns the code of a sync step as it is called in a thread."""
    record_step: Callable[[Any, Mapping[str, Any], Callable[[Any], str], Callable[[Any], Any] | None], str] | None = None
    """Executes the code of a transactional step in the user's database, or returns its recorded result."""
    limits_for: Callable[[str, Mapping[str, Any]], Mapping[str, TaskLimit]] = lambda name, payload: {}
    """Returns the limit keys that the handler declares for a task: see `Core`."""
    streams: StreamReads = field(kw_only=True)


class FunctionExecution:
    """One run in this process, from its first claim here until it ends, is evicted or is taken over."""

    def __init__(self, runtime: Runtime, function: RegisteredFunction, task: Task) -> None:
        self.runtime = runtime
        self.function = function
        self.run_id = task.run_id or ""
        self.root_id = task.root_id
        self.task = task
        self.token = task.claim
        self.context: Context | None = None
        self.cancel: CancelRequest | None = None
        """The request to cancel the run after its cleanup."""
        self.active = 0
        """Branches that execute code."""
        self.closed = False
        """Whether every further operation is refused."""
        self.lost = False
        """Whether the claim is lost, so that nothing decided here counts."""
        self.run_paused = False
        """Whether the run is paused."""
        self.problem: Problem | None = None
        """The divergence between the code and the recorded steps."""
        self.misuse: MisusedContext | None = None
        """The error of an operation that was awaited where a replay cannot follow it."""
        self.crash: BaseException | None = None
        """The error of a commit or a read that a branch requested."""
        self.on_turn: Callable[[], None] = lambda: None
        """Called at the end of a turn of the event loop in which branches decided something while others still execute."""
        self.resting = 0
        """Hosts with no operation that could continue."""
        self._hosted: dict[asyncio.Future[None], FunctionBranch] = {}
        self._scheduled = False
        self._resting: asyncio.Future[None] | None = None
        self._paused: list[asyncio.Future[None]] = []
        self._claimed_at = 0
        self._anchor = 0.0
        self.executing: dict[str, tuple[int, str, str, int, int, int, str]] = {}
        """The steps whose code executes now, by place: when they began, kind, name, redo, ordinal, attempt, arguments.
        The lease renewer reads it in its own thread."""
        self._noted: str | None = None

    def claimed(self, task: Task, context: Context) -> None:
        """Continue under a new claim."""
        self.task, self.token, self.context = task, context.token, context
        self.cancel = read_request(task)
        self._claimed_at, self._anchor = task.claimed_at or 0, self.runtime.clock.monotonic()
        self.executing, self._noted = {}, None
        context.before_renewal = self._note_steps

    def now(self) -> int:
        """Return the store's time, computed from the time of the claim; ahead by no more than the two clocks drift."""
        return self._claimed_at + round((self.runtime.clock.monotonic() - self._anchor) * 1000)

    def _note_steps(self) -> None:
        """Report long steps as progress of the task when they have changed, so that the next renewal stores them."""
        context, now = self.context, self.now()
        if context is None:
            return
        is_open = not self.runtime.value_store.has_codec  # the progress of a task is stored as plain text
        steps = [
            Recorded(
                id=step_id(self.run_id, place, redo),
                place=place,
                kind=kind,
                name=name,
                state=StepState.RUNNING,
                ordinal=ordinal,
                began_at=began_at,
                attempt=attempt,
                about=(is_open and about) or None,
            )
            for place, (began_at, kind, name, redo, ordinal, attempt, about) in list(self.executing.items())
            if now - began_at >= _LONG_FOR
        ]
        progress = context.progress_text
        if steps or progress is self._noted is not None:
            text = note_steps(progress, self.token.version, steps)
            if text != progress:
                context.note_progress(text)
                self._noted = text

    # branches

    def suspend(self) -> asyncio.Future[None]:
        """Count the calling branch as waiting; it awaits the returned future until `resume`."""
        self.active -= 1
        self.schedule()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        current = executing.get()
        if current is not None and (host := current[2].host) is not None:
            current[2].waiting = future
            self._hosted[future] = current[2]
            host.suspended()
        return future

    async def suspended(self, future: asyncio.Future[None]) -> None:
        """Await a future of `suspend`; a branch that is stopped meanwhile counts as executing again until it has ended."""
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.abandon(future)
            raise

    def resume(self, future: asyncio.Future[None] | None) -> None:
        """Let the branch that awaits the future continue, if it still waits."""
        if future is not None and not future.done():
            self.abandon(future)
            future.set_result(None)

    def abandon(self, future: asyncio.Future[None]) -> None:
        """Count the branch that awaits the future as active again."""
        self.active += 1
        if (branch := self._hosted.pop(future, None)) is not None and branch.host is not None:
            branch.waiting = None
            branch.host.resumed()

    async def wait_while_held(self) -> None:
        """Suspend the calling branch while the run is paused."""
        while self.run_paused:
            future = self.suspend()
            self._paused.append(future)
            await self.suspended(future)

    def resume_paused(self) -> None:
        """Let the branches continue that a pause suspended."""
        paused, self._paused = self._paused, []
        for future in paused:
            self.resume(future)

    # turns

    def schedule(self) -> None:
        """Handle the end of this turn of the event loop, when everything that branches decide in it is known."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if not self.active or self._interrupted:
            if self._resting is not None and not self._resting.done():
                self._resting.set_result(None)
        elif not self.closed:
            self.on_turn()

    @property
    def _interrupted(self) -> bool:
        return self.lost or self.problem is not None or self.crash is not None

    async def rest(self) -> None:
        """Wait until no branch is active; raise the error of a crash."""
        if self._scheduled or (self.active and not self._interrupted):
            self._resting = asyncio.get_running_loop().create_future()
            try:
                await self._resting
            finally:
                self._resting = None
        if self.crash is not None:
            raise self.crash

    # ends

    def lose(self) -> None:
        """Note that the claim is lost."""
        self.lost = self.closed = True
        self.schedule()

    def diverge(self, place: str, recorded: str, now: str) -> None:
        """End this replay, because the code differs from the recorded steps; raises `CancelledError`."""
        self.problem = self.problem or diverged(place, recorded, now)
        self.closed = True
        self.schedule()
        raise asyncio.CancelledError

    def crashed(self, error: BaseException) -> asyncio.CancelledError:
        """Note an error of the driver, and return the exception that stops the calling branch: user code never sees it."""
        self.crash = self.crash or error
        self.closed = True
        self.schedule()
        return asyncio.CancelledError()


def diverged(place: str, recorded: str, now: str) -> Problem:
    """Return the problem of code that differs from the recorded steps."""
    return Problem("nondeterministic", f"nondeterministic at {place}: recorded {recorded}, now {now}")
