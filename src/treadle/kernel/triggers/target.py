"""Starting work for a tick or a change: what is put into the unit that says that it happened, so that both happen, or neither.

A target is a task of a handler, a run of a workflow, or a run of a durable function. Each kind has a *starter*, which makes
the rows; nothing is committed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from treadle.kernel.functions.rows import continued_id, is_function
from treadle.kernel.queue.service import Queue, TaskSpec, check_priority
from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Row
from treadle.model.errors import IllegalMove, InvalidInput, NotFound
from treadle.model.lists import MOST
from treadle.model.names import check_key, check_name
from treadle.model.schedules import FUNCTION, TASK, WORKFLOW, Started, Target
from treadle.model.tasks import NewTask
from treadle.model.values import Json

RUN = "run"
"""The kind of what was started, beside `task`."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a unit needs to start it."""

    tasks: tuple[NewTask, ...] = ()
    rows: tuple[Row, ...] = ()
    committed: Callable[[], None] = lambda: None
    """To be called once that unit is done."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """Why something is started: the id that it gets, a key that stands for it, and what it is told."""

    id: str
    trace_id: str
    given: Json
    key: str | None = None


class Starter(Protocol):
    """Makes the rows with which one kind of target begins."""

    started: str
    """`task` or `run`: what comes of it."""

    def check(self, target: Target) -> None:
        """Raise what is wrong with the target, as far as that can be known without the store."""

    async def prepare(self, target: Target, inputs: dict[str, Json], occasion: Occasion) -> Prepared:
        """The rows; raises what keeps it from being started now."""


class TaskStarter:
    """Starts tasks of handlers."""

    started = TASK

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def check(self, target: Target) -> None:
        """Name, list, priority and payload as for `enqueue`."""
        self._queue.check([self._spec(target, dict(target.inputs), None)])

    async def prepare(self, target: Target, inputs: dict[str, Json], occasion: Occasion) -> Prepared:
        """One new task."""
        task, blobs = self._queue.make(self._spec(target, inputs, occasion))
        return Prepared((task,), blobs)

    @staticmethod
    def _spec(target: Target, inputs: dict[str, Json], occasion: Occasion | None) -> TaskSpec:
        return TaskSpec(
            id=None if occasion is None else occasion.id,
            name=target.name,
            payload=inputs,
            priority=target.priority,
            task_list=target.task_list,
            retry=target.retry,
            timeout=None if target.timeout_for is None else target.timeout_for / 1000,
            idempotency_key=None if occasion is None else occasion.key,
            trace_id=None if occasion is None else occasion.trace_id,
        )


class RunStarter:
    """Starts runs of workflows of published flows."""

    started = RUN

    def __init__(self, runs: Callable[[], Any]) -> None:
        self._runs = runs
        """The service of runs, loaded when there is one to start."""

    def check(self, target: Target) -> None:
        """It needs a flow to be in; what that holds is looked at when it starts."""
        if not target.flow:
            raise InvalidInput(f"Say which published flow the workflow {target.name} is in: flow='checkout'.")
        check_name(target.task_list, "task list")

    async def prepare(self, target: Target, inputs: dict[str, Json], occasion: Occasion) -> Prepared:
        """The run with its first steps."""
        made = await self._runs().prepare(
            target.flow,
            target.name,
            inputs,
            version=target.version,
            task_list=target.task_list,
            priority=target.priority,
            trace_id=occasion.trace_id,
            run_id=occasion.id,
        )
        return Prepared(made.unit.tasks, made.unit.rows, made.committed)


class FunctionStarter:
    """Starts runs of durable functions."""

    started = RUN

    def __init__(self, functions: Callable[[], Any]) -> None:
        self._functions = functions
        """The service of functions, loaded when there is one to start."""

    def check(self, target: Target) -> None:
        """Its name and list; whether anybody has it is known only when it starts."""
        check_name(target.name, "function name")
        check_name(target.task_list, "task list")

    async def prepare(self, target: Target, inputs: dict[str, Json], occasion: Occasion) -> Prepared:
        """The run and its task."""
        _, task, rows = await self._functions().prepare(
            target.name,
            inputs,
            version=target.version,
            task_list=target.task_list,
            priority=target.priority,
            trace_id=occasion.trace_id,
            run_id=occasion.id,
        )
        return Prepared((task,), rows)


class Starters:
    """The starters by kind of target, and what is asked of what they started."""

    def __init__(self, store: Store, queue: Queue, runs: Callable[[], Any]) -> None:
        self._store = store
        self._queue = queue
        self._runs = runs
        self._by_kind: dict[str, Starter] = {TASK: TaskStarter(queue), WORKFLOW: RunStarter(runs)}

    def add(self, kind: str, starter: Starter) -> None:
        """Serve another kind of target."""
        self._by_kind[kind] = starter

    def check(self, target: Target) -> None:
        """Raise what is wrong with the target."""
        self._of(target).check(target)

    async def prepare(self, target: Target, occasion: Occasion) -> tuple[Started, Prepared]:
        """What is started, and what a unit needs for that; nothing if it was started before under that id."""
        starter = self._of(target)
        started = Started(kind=starter.started, id=occasion.id, tick=0)
        if starter.started == RUN and await self._store.find_run(occasion.id) is not None:
            return started, Prepared()
        inputs = dict(target.inputs)
        if target.given_as is not None:
            inputs[target.given_as] = occasion.given
        return started, await starter.prepare(target, inputs, occasion)

    async def was_started(self, kind: str, start_id: str) -> bool:
        """Whether there is such a task or run."""
        find = self._store.find_run if kind == RUN else self._store.find_task
        return await find(start_id) is not None

    async def find_live(self, started: Started) -> Started | None:
        """What of it still goes on: itself, or the run as which a function has gone on; None if it has ended."""
        if started.kind != RUN:
            task = await self._store.find_task(started.id)
            return None if task is None or task.finished else started
        run = await self._store.find_run(started.id)
        while run is not None and run.finished:
            run = await self._store.find_run(continued_id(run.id)) if is_function(run.flow_id) else None
        return None if run is None else msgspec.structs.replace(started, id=run.id)

    async def cancel(self, started: Started, reason: str, actor: str) -> None:
        """End it, if it still goes on."""
        left: Started | None = started
        while left is not None:
            try:
                if left.kind == RUN:
                    await self._runs().cancel(left.id, actor=actor, reason=reason)
                else:
                    await self._queue.cancel(left.id, actor=actor, reason=reason)
                return
            except (IllegalMove, NotFound):  # it has ended by itself, or gone on as another run
                left = await self.find_live(left)

    def kind_of(self, target: Target) -> str:
        """`task` or `run`: what comes of the target."""
        return self._of(target).started

    def _of(self, target: Target) -> Starter:
        starter = self._by_kind.get(target.kind)
        if starter is None:
            known = ", ".join(sorted(self._by_kind))
            raise InvalidInput(f"Nothing here starts a {target.kind}; there are {known}.")
        return starter


def make_target(
    *,
    task: str | None = None,
    workflow: str | None = None,
    function: str | None = None,
    flow: str | None = None,
    version: int | None = None,
    inputs: Mapping[str, Json] | None = None,
    given_as: str | None = None,
    **options: Any,
) -> Target:
    """The one target that was given, or `InvalidInput`."""
    named = {TASK: task, WORKFLOW: workflow, FUNCTION: function}
    given = [(kind, name) for kind, name in named.items() if name is not None]
    if len(given) != 1:
        said = f", not {' and '.join(kind for kind, _ in given)} together" if given else ""
        raise InvalidInput(f"Say what to start: a task, a workflow or a function{said}.")
    ((kind, name),) = given
    if kind != WORKFLOW and flow is not None:
        raise InvalidInput("Only a workflow is in a flow.")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InvalidInput(f"Inputs are a dict (a JSON object), not {type(inputs).__name__}.")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or not 0 < version <= MOST):
        raise InvalidInput(f"version is a whole number from 1 to {MOST}, not {version!r}.")
    check_priority(options.get("priority", 0))
    if given_as is not None:
        check_key(given_as, "name of an input")
    return Target(
        kind=kind,
        name=check_name(name, f"{kind} name"),
        flow=None if flow is None else check_key(flow, "flow"),
        version=version,
        inputs=dict(inputs or {}),
        given_as=given_as,
        **options,
    )
