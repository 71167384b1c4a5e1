"""The execution of a run in this process: its claim, its clock, and whether any of its code still executes.

The parts of a driver share it. A branch that waits durably is suspended in a future; when no branch is active, the driver parks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from treadle.kernel.functions.decide import CancelRequest, read_request
from treadle.kernel.functions.reads import StepInProgress, note_steps
from treadle.kernel.functions.steps import step_id
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.value_store import ValueStore
from treadle.model.clock import Clock
from treadle.model.ids import Ids
from treadle.model.outcomes import Problem
from treadle.model.tasks import Task
from treadle.settings import Settings
from treadle.workers.call import Executor
from treadle.workers.context import Context
from treadle.workers.functions.branches import Branch
from treadle.workers.functions.determinism import executing
from treadle.workers.functions.registry import Function

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
    """Returns the version of a function for a new run; raises `FunctionNotFound`."""
    on_finished: Callable[[str], None]
    """Called with the id of each run that ended here."""
    namespace: str
    payload_limit: int
    settings: Settings = field(default_factory=Settings)
    wire: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda call: call
    """Returns the code of a step with its dependencies injected."""


class Execution:
    """One run in this process, from its first claim here until it ends, is evicted or is taken over."""

    def __init__(self, runtime: Runtime, function: Function, task: Task) -> None:
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
        self.held = False
        """Whether the run is paused."""
        self.problem: Problem | None = None
        """The divergence between the code and the recorded steps."""
        self.crash: BaseException | None = None
        """The error of a commit or a read that a branch requested."""
        self.on_turn: Callable[[], None] = lambda: None
        """Called at the end of a turn of the event loop in which branches decided something while others still execute."""
        self.resting = 0
        """Hosts with no operation that could continue."""
        self._hosted: dict[asyncio.Future[None], Branch] = {}
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
        is_open = not self.runtime.value_store.is_sealed  # the progress of a task is stored as plain text
        steps = [
            StepInProgress(
                step_id(self.run_id, place, redo), place, kind, name, ordinal, began_at, attempt, (is_open and about) or None
            )
            for place, (began_at, kind, name, redo, ordinal, attempt, about) in list(self.executing.items())
            if now - began_at >= _LONG_FOR
        ]
        said = context.progress_text
        if steps or said is self._noted is not None:
            text = note_steps(said, self.token.version, steps)
            if text != said:
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
        while self.held:
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
