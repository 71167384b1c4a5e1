"""Targets: the work that a tick or a change starts, in the same unit that records the tick or change.

A target is a task of a handler, a run of a workflow, or a run of a durable function. `Starters` builds its rows; the caller
commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from treadle.kernel.queue.service import Queue, TaskSpec, check_priority
from treadle.kernel.store.lookups import current_run
from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Row
from treadle.model.clock import milliseconds
from treadle.model.errors import IllegalMove, InvalidInput, NotFound
from treadle.model.lists import MOST
from treadle.model.names import check_key, check_name
from treadle.model.retry import as_policy
from treadle.model.schedules import FUNCTION, TASK, WORKFLOW, Started, Target
from treadle.model.tags import check_tags, decode_tags
from treadle.model.tasks import NewTask
from treadle.model.values import Json, shown

RUN = "run"
"""The kind of started work that is not a `task`."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The tasks and rows that start the work."""

    tasks: tuple[NewTask, ...] = ()
    rows: tuple[Row, ...] = ()
    committed: Callable[[], None] = lambda: None
    """Call it once the unit is committed."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """The reason of a start: the id for the new work, its deduplication key, and the value passed to it."""

    id: str
    trace_id: str
    given: Json
    key: str | None = None
    actor: str | None = None
    """The trigger, or the person who made it start the work."""


class Starters:
    """Starts targets, and answers queries about started work. `runs` and `functions` load their services on first use."""

    def __init__(self, store: Store, queue: Queue, runs: Callable[[], Any], functions: Callable[[], Any] | None = None) -> None:
        self._store = store
        self._queue = queue
        self._runs = runs
        self._functions = functions

    def kind_of(self, target: Target) -> str:
        """Return the kind of the started work, `task` or `run`; raise `InvalidInput` for an unknown target."""
        if target.kind == TASK:
            return TASK
        if target.kind == WORKFLOW or (target.kind == FUNCTION and self._functions is not None):
            return RUN
        raise InvalidInput(f"A {target.kind} cannot be started here.")

    def check(self, target: Target) -> None:
        """Raise the error of an invalid target, as far as it is known without the store."""
        if self.kind_of(target) == TASK:
            self._queue.check([_task_spec(target, dict(target.inputs), None)])
            return
        if target.kind == WORKFLOW and not target.flow:
            raise InvalidInput(f"Name the published flow of the workflow {target.name}: flow='checkout'.")
        check_name(target.name, f"{target.kind} name")
        check_name(target.task_list, "task list")

    async def prepare(self, target: Target, occasion: Occasion) -> tuple[Started, Prepared]:
        """Return the started work and its rows (none if it was already started under that id); raise if it cannot start."""
        started = Started(kind=self.kind_of(target), id=occasion.id, tick=0)
        inputs = dict(target.inputs)
        if target.given_as is not None:
            inputs[target.given_as] = occasion.given
        if started.kind == TASK:
            task, blobs = self._queue.make(_task_spec(target, inputs, occasion))
            return started, Prepared((task,), blobs)
        if await self._store.runs.find(occasion.id) is not None:
            return started, Prepared()
        options = {
            "version": target.version,
            "task_list": target.task_list,
            "priority": target.priority,
            "trace_id": occasion.trace_id,
            "run_id": occasion.id,
            "deadline": None if target.deadline_for is None else target.deadline_for / 1000,
            "fairness_key": target.fairness_key,
            "tags": target.tags or None,
            "actor": occasion.actor,
        }
        if target.kind == WORKFLOW:
            made = await self._runs().prepare(target.flow, target.name, inputs, **options)
            return started, Prepared(made.unit.tasks, made.unit.rows, made.committed)
        assert self._functions is not None
        _, tasks, rows = await self._functions().prepare(target.name, inputs, **options)
        return started, Prepared(tasks, rows)

    async def was_started(self, kind: str, start_id: str) -> bool:
        """Return whether such a task or run exists."""
        find = self._store.runs.find if kind == RUN else self._store.tasks.find
        return await find(start_id) is not None

    async def find_live(self, started: Started) -> Started | None:
        """Return the work if it is live, or the run as which a function continued; None if it has ended."""
        if started.kind != RUN:
            task = await self._store.tasks.find(started.id)
            return None if task is None or task.finished else started
        if (run := await self._store.runs.find(started.id)) is None:
            return None
        run = await current_run(self._store, run)
        return None if run.finished else msgspec.structs.replace(started, id=run.id)

    async def cancel(self, started: Started, reason: str, actor: str) -> None:
        """Cancel the work, if it is live."""
        left: Started | None = started
        while left is not None:
            try:
                if left.kind == RUN:
                    await self._runs().cancel(left.id, actor=actor, reason=reason)
                else:
                    await self._queue.cancel(left.id, actor=actor, reason=reason)
                return
            except (IllegalMove, NotFound):  # it has ended, or continued as another run
                left = await self.find_live(left)


def _task_spec(target: Target, inputs: dict[str, Json], occasion: Occasion | None) -> TaskSpec:
    return TaskSpec(
        id=None if occasion is None else occasion.id,
        name=target.name,
        payload=inputs,
        priority=target.priority,
        task_list=target.task_list,
        retry=target.retry,
        timeout=None if target.timeout_for is None else target.timeout_for / 1000,
        deadline=None if target.deadline_for is None else target.deadline_for / 1000,
        fairness_key=target.fairness_key,
        idempotency_key=None if occasion is None else occasion.key,
        trace_id=None if occasion is None else occasion.trace_id,
        tags=target.tags or None,
        created_by=None if occasion is None else occasion.actor,
    )


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
    """Return the single given target, or raise `InvalidInput`."""
    named = {TASK: task, WORKFLOW: workflow, FUNCTION: function}
    given = [(kind, name) for kind, name in named.items() if name is not None]
    if len(given) != 1:
        wrong = f", not {' and '.join(kind for kind, _ in given)} together" if given else ""
        raise InvalidInput(f"Name one target to start: a task, a workflow or a function{wrong}.")
    ((kind, name),) = given
    if kind != WORKFLOW and flow is not None:
        raise InvalidInput("Only a workflow has a flow.")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InvalidInput(f"Inputs must be a dict (a JSON object), not {type(inputs).__name__}.")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or not 0 < version <= MOST):
        raise InvalidInput(f"version must be a whole number from 1 to {MOST}, not {shown(version)}.")
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


def named_targets(given: Mapping[str, Any]) -> dict[str, str]:
    """Return the targets among the options of a schedule or watcher, by kind."""
    return {kind: given[kind] for kind in (TASK, WORKFLOW, FUNCTION) if given.get(kind) is not None}


def target_from(given: Mapping[str, Any], names: Mapping[str, str], kept: Target, given_as: str | None) -> Target:
    """Return the target of the options; those that are not given stay as in `kept`."""
    timeout, deadline = given.get("timeout"), given.get("deadline")
    fairness_key = given.get("fairness_key", kept.fairness_key)
    made = make_target(
        **names,
        flow=given.get("flow", kept.flow),
        version=given.get("version", kept.version),
        inputs=given.get("inputs", kept.inputs),
        given_as=given_as,
        task_list=check_name(given.get("task_list", kept.task_list), "task list"),
        priority=given.get("priority", kept.priority),
        retry=as_policy(given["retry"]) if "retry" in given else kept.retry,
        timeout_for=kept.timeout_for if timeout is None else milliseconds(timeout, "timeout", positive=True),
        deadline_for=kept.deadline_for if deadline is None else milliseconds(deadline, "deadline", positive=True),
        fairness_key=None if fairness_key is None else check_key(fairness_key, "fairness key"),
        tags=decode_tags(check_tags(given["tags"])) if "tags" in given else kept.tags,
    )
    return msgspec.structs.replace(made, more=kept.more)
