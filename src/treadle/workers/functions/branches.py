"""The branches of a function: the function itself and the arguments of its gathers, each an asyncio task of the driver."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from treadle.kernel.store.units import Row
from treadle.model.errors import MisusedContext
from treadle.model.runs import Step
from treadle.model.tasks import NewTask
from treadle.workers.activity import task_name
from treadle.workers.functions.determinism import executing
from treadle.workers.interruptions import stops_caller

if TYPE_CHECKING:
    from treadle.workers.functions.execution import Execution
    from treadle.workers.functions.hosts import Host
    from treadle.workers.functions.journal import Journal
    from treadle.workers.functions.waits import Group
    from treadle.workers.streams import Streams


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


class Branch:
    """The position of one branch, and the rows that it has decided. Its places begin with `scope`."""

    __slots__ = (
        "busy",
        "committing",
        "dropped",
        "host",
        "hosting",
        "names",
        "parent",
        "pending",
        "place",
        "position",
        "randoms",
        "scope",
        "streams",
        "told",
        "waiting",
    )

    def __init__(self, scope: str = "", parent: Branch | None = None) -> None:
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
        self.told: bool = parent is not None and parent.told
        """Whether `Canceled` was raised in it, or in a branch inside it."""

    def tell(self) -> None:
        """Note that `Canceled` is raised in the branch: it ends the gathers around it, too."""
        branch: Branch | None = self
        while branch is not None and not branch.told:
            branch.told = True
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


class Branches:
    """The branches of one run that have not ended."""

    def __init__(self, execution: Execution, journal: Journal) -> None:
        self._execution = execution
        self._journal = journal
        self._branches: dict[asyncio.Task[Any], Branch] = {}

    def enter(self) -> Branch:
        """Return the branch of the caller; raises `MisusedContext` where `ctx` cannot be used."""
        task = asyncio.current_task()
        branch = self._branches.get(task) if task is not None else None
        if self._execution.closed:
            raise asyncio.CancelledError
        if branch is None:
            raise MisusedContext(
                f"An operation of ctx was awaited outside the function {self._execution.function.lane_name}, e.g. in a separate "
                "asyncio task. Use `ctx.gather(...)` to do things concurrently."
            )
        if branch.busy is not None:
            raise MisusedContext(f"ctx cannot be used inside the step {branch.busy}; a step is one unit of work.")
        branch.hosting = None
        return branch

    def enter_as(self, task: asyncio.Task[Any], branch: Branch) -> Branch | None:
        """Let the task continue as that branch; return the branch that it was."""
        before = self._branches.get(task)
        if before is not None and before.busy is not None:
            raise MisusedContext(f"ctx cannot be used inside the step {before.busy}; a step is one unit of work.")
        self._branches[task] = branch
        return before

    def leave(self, task: asyncio.Task[Any], before: Branch | None) -> None:
        """Let the task be the branch again that it was."""
        if before is not None and not self._execution.closed:
            self._branches[task] = before
        else:
            self._branches.pop(task, None)

    def is_abandoned(self) -> bool:
        """Return whether a framework cancels the calling task, which awaits an operation of a host."""
        task = asyncio.current_task()
        branch = None if task is None else self._branches.get(task)
        return task is not None and branch is not None and branch.host is not None and task.cancelling() > 0

    def start(self, branch: Branch, code: Coroutine[Any, Any, None]) -> None:
        """Execute the code as that branch; the code calls `ended` at its end."""
        self._execution.active += 1
        function = self._execution.function
        context = copy_context()
        context.run(executing.set, (function.name, function.code, branch))
        task = asyncio.get_running_loop().create_task(code, name=task_name(function.lane_name), context=context)
        self._branches[task] = branch

    def ended(self) -> None:
        """Count the calling branch as ended."""
        self._execution.active -= 1
        self._execution.schedule()

    def fork(self, group: Group, index: int, branch: Branch, awaitable: Any) -> None:
        """Execute an argument of a gather as its own branch."""
        group.coded += 1
        self.start(branch, self._run(group, index, branch, awaitable))

    async def _run(self, group: Group, index: int, branch: Branch, awaitable: Any) -> None:
        value: Any = None
        error: BaseException | None = None
        try:
            value = await awaitable
        except BaseException as raised:
            if branch.dropped:
                self._forget(asyncio.current_task())
                return
            if self._execution.closed if isinstance(raised, asyncio.CancelledError) else stops_caller(raised):
                raise
            error = raised
        self._journal.reach_end(branch)
        task = asyncio.current_task()
        if task is not None:
            self._branches.pop(task, None)
        if branch.pending is not None and branch.parent is not None:
            branch.parent.next_unit().take(branch.pending)
        group.coded -= 1
        group.end(index, value, error, self._execution)
        self.ended()

    def drop(self, branch: Branch) -> None:
        """Stop a branch for whose result nothing waits; a commit in progress ends first."""
        branch.dropped = True
        task = next((task for task, each in self._branches.items() if each is branch), None)
        if task is None or task.done():
            return
        if inspect.getcoroutinestate(task.get_coro()) == inspect.CORO_CREATED:  # type: ignore[arg-type]
            self._forget(task)
        if not branch.committing:
            task.cancel()

    def _forget(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None:
            self._branches.pop(task, None)
        self.ended()

    async def join(self, group: Group) -> None:
        """Wait until a gather can continue."""
        if group.left:
            group.future = self._execution.suspend()
            await self._execution.suspended(group.future)

    def collect(self, unit: PendingUnit) -> PendingUnit:
        """Move the rows of all branches to the unit."""
        for branch in self._branches.values():
            if branch.pending is not None:
                unit.take(branch.pending)
                branch.pending = None
        return unit

    def close(self) -> None:
        """Cancel all branches."""
        for task in self._branches:
            if not task.done():
                task.cancel()
        self._branches.clear()
