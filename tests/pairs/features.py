"""The table of features, and the pairs of them."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tests.pairs.case import RUNS, TRIGGERS, Act, Case, Fault, Item

from treadle.engine.operations import Operations
from treadle.model.errors import IllegalTransition

TASKS = ("task", "external", "approval", "remote")
"""Kinds of work whose options are those of `enqueue`."""


@dataclass(frozen=True)
class Feature:
    """A feature: it changes the case; `kinds` are the kinds of work that have it."""

    dimension: str
    name: str
    change: Callable[[Case], None]
    kinds: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name


def _kind(name: str) -> Feature:
    return Feature("kind", name, lambda case: setattr(case, "kind", name))


def _option(name: str, kinds: tuple[str, ...] = TASKS, **options: Any) -> Feature:
    return Feature("option", name, lambda case: case.options.update(options), kinds)


def _set(case: Case, **fields: Any) -> None:
    for name, value in fields.items():
        setattr(case, name, value)


def _acts(case: Case, *acts: Act, **fields: Any) -> None:
    case.acts += acts
    _set(case, **fields)


# operators


def _each(case: Case, operation: str) -> Callable[[Operations, list[Item]], Awaitable[int]]:
    """An operation on every item; returns the number of those that were not refused, because of the state of the item."""

    async def act(api: Operations, items: list[Item]) -> int:
        changed = 0
        group = api.runs if case.kind in RUNS else api.tasks
        for item in items:
            with contextlib.suppress(IllegalTransition):
                await getattr(group, operation)(item.id)
                changed += 1
        return changed

    return act


def _once(group: str, operation: str, *arguments: Any, **options: Any) -> Callable[[Operations, list[Item]], Awaitable[int]]:
    """One operation on all work."""

    async def act(api: Operations, items: list[Item]) -> int:
        await getattr(getattr(api, group), operation)(*arguments, **options)
        return 1

    return act


def _paused(case: Case) -> None:
    _acts(case, Act(0.5, _once("lists", "pause", "default")), Act(6, _once("lists", "resume", "default")))


def _limited(case: Case) -> None:
    _acts(case, Act(0, _once("lists", "limit_handler", "pair.Do", 1)), at_once=1)


def _limited_by(case: Case, *keys: str) -> None:
    """One key, with a limit of the task's, or several, with limits that an operator has set."""
    if len(keys) == 1:
        _awaited(case, "over_limit", limit_key=keys[0], limit=1)
    else:
        _awaited(case, "over_limit", limit_key=keys)
        _acts(case, *(Act(0, _once("lists", "limit_key", key, limit)) for limit, key in zip((2, 1), keys, strict=True)))
    case.at_once = 1


def _rated(case: Case) -> None:
    _acts(case, Act(0, _once("lists", "limit_rate", "default", "pair.Do", 0.5, burst=1)))


def _canceled(case: Case) -> None:
    _acts(case, Act(1.5, _each(case, "cancel")), end="canceled")


def _retried(case: Case) -> None:
    _acts(case, Act(20, _each(case, "retry")), dies=1)


def _retried_by_task(case: Case) -> None:
    """An operator retries the failed tasks of runs, each by its own id."""

    async def act(api: Operations, items: list[Item]) -> int:
        tasks = [task for task in (await api.tasks.list(name="pair.Do", state=["failed"])).tasks if task.run_id is not None]
        for task in tasks:
            with contextlib.suppress(IllegalTransition):  # it has been retried before the answer was lost
                await api.tasks.retry(task.id)
        return len(tasks)

    _acts(case, Act(20, act), dies=1)


def _padded(case: Case) -> None:
    """Values too large for their rows."""
    case.pad = "x" * 50_000
    case.returns["extra"] = case.pad


def _redriven(case: Case) -> None:
    _acts(case, Act(20, _once("dead_letters", "retry", everything=True)), dies=1)


def _held(case: Case) -> None:
    _acts(case, Act(1.2, _each(case, "pause")), Act(8, _each(case, "resume")))


def _collected(case: Case) -> None:
    """Failures that the code of the run collects; a retry of the run repeats them and what followed."""
    _retried(case)
    case.collects = True


def _reopened(case: Case) -> None:
    _acts(case, Act(1.5, _each(case, "cancel")), Act(8, _each(case, "reopen")), reopens=1)


def _started_anew(case: Case, operation: str) -> None:
    """An operator starts a run again when it has ended, from its beginning or from its first call."""

    async def act(api: Operations, items: list[Item]) -> int:
        for item in items:
            assert item.id is not None
            steps = [step for step in (await api.steps.list(item.id)).steps if step.task_id is not None]
            if operation == "fork" and steps:
                item.further.append((await api.runs.fork(item.id, steps[0].id)).id)
            else:
                item.further.append((await api.runs.rerun(item.id)).id)
        return 0  # a start has its actor in the run

    _acts(case, Act(20, act))


def _hanging(case: Case) -> None:
    case.hangs = 1
    case.options.setdefault("timeout", 2)


def _overdue(case: Case) -> None:
    case.options["deadline"] = 3
    _set(case, hangs=100, end="failed", error="deadline_exceeded")


def _silent(case: Case) -> None:
    case.hangs = 1
    case.options["progress_every"] = 0.5


def _awaited(case: Case, code: str, **options: Any) -> None:
    """Options that make tasks wait for a reason that `why` must name."""
    case.options |= options
    case.reasons.add(code)


def _polled(case: Case) -> None:
    """Agents, which give no task a retry of their own; executions are longer than a lease."""
    _set(case, polled=True, takes=8.0, ends_within=90.0)
    case.options["retry"] = 100


HANDLED = ("task", *RUNS, *TRIGGERS)
"""Kinds that end in a handler of the server."""

FEATURES = (
    *map(_kind, ("task", "function", "parent", "workflow", "external", "approval", *TRIGGERS, "goal", "remote", "agent")),
    Feature("option", "delay", lambda case: _awaited(case, "delayed", delay=3), TASKS),
    _option("priority", priority=-5),
    _option("idempotency key", idempotency_key="same"),
    _option("unique key", unique_key="same"),
    *(
        Feature(
            "key", f"unique key, {conflict}", lambda case, conflict=conflict: _set(case, conflict=conflict), ("task", "function")
        )
        for conflict in ("reject", "replace", "debounce")
    ),
    _option("fairness key", fairness_key="tenant"),
    _option("tags", tags={"customer": "acme"}),
    _option("trace", trace_id="trace-1"),
    _option("timeout", ("task",), timeout=4),
    Feature("option", "progress deadline", _silent, ("task",)),
    Feature("option", "large values", _padded, ("task", *RUNS)),
    Feature("option", "typed result", lambda case: case.returns.update(count=3.0, extra=None), HANDLED),
    Feature("option", "one named parameter", lambda case: case.payload.update(settings={"colour": "red"}), ("task",)),
    Feature("option", "collected failures", _collected, ("function",)),
    Feature("option", "sync function", lambda case: _set(case, blocks=True), ("function",)),
    Feature("option", "forgotten await", lambda case: _set(case, forgets=True, end="failed", error="never_awaited"), ("function",)),
    Feature("code", "sync handler", lambda case: _set(case, handler="sync"), (*HANDLED, "goal")),
    Feature("code", "batch handler", lambda case: _set(case, handler="batch"), (*HANDLED, "goal")),
    Feature("code", "poll_once", _polled, ("task", "workflow")),
    Feature("code", "transactional step", lambda case: _set(case, records=True), ("function", "parent")),
    Feature("code", "new version", lambda case: _set(case, upgrades=True), RUNS),
    Feature("limit", "limit of a key", lambda case: _limited_by(case, "few"), ("task",)),
    Feature("limit", "several limit keys", lambda case: _limited_by(case, "few", "other"), ("task",)),
    Feature("limit", "live runs", lambda case: case.run_options.update(limit=2), ("function",)),
    Feature("option", "delayed run", lambda case: case.run_options.update(delay=1), ("function",)),
    Feature("limit", "limit of a handler", _limited, HANDLED),
    Feature("limit", "rate", _rated, HANDLED),
    *(
        Feature("interface", interface, lambda case, interface=interface: _set(case, interface=interface), ("task", *RUNS))
        for interface in ("HTTP", "MCP")
    ),
    Feature("limit", "paused list", _paused),
    Feature("place", "scopes", lambda case: _set(case, scopes=("a", "b")), ("external",)),
    Feature(
        "place", "namespaces", lambda case: _set(case, namespaces=("default", "other")), ("task", *RUNS, "external", "approval")
    ),
    Feature("place", "containers", lambda case: _set(case, same_pid=True)),
    Feature("place", "older server", lambda case: _set(case, old_server=True)),
    Feature("end", "raises once", lambda case: _set(case, raises=1), (*HANDLED, "goal")),
    Feature("end", "canceled", _canceled, ("task", *RUNS, "external", "approval", "remote")),
    Feature("end", "hangs", _hanging, ("task",)),
    Feature("end", "fails", lambda case: _set(case, dies=100, end="failed"), (*HANDLED, "goal")),
    Feature("end", "denied", lambda case: _set(case, denies=True, end="failed", error="approval_denied"), ("approval",)),
    Feature("end", "deadline", _overdue, ("task",)),
    Feature("repair", "retry", _retried, ("task", *RUNS)),
    Feature("repair", "retry of the task", _retried_by_task, ("function", "workflow")),
    Feature("repair", "reopen", _reopened, ("function",)),
    Feature("repair", "rerun", lambda case: _started_anew(case, "rerun"), RUNS),
    Feature("repair", "fork", lambda case: _started_anew(case, "fork"), RUNS),
    Feature("repair", "dead letters", _redriven, ("task",)),
    Feature("repair", "pause and resume", _held, ("task", *RUNS)),
    *(Feature("fault", fault.value, lambda case, fault=fault: _set(case, fault=fault)) for fault in Fault),
)
DEFAULT_KIND = {
    "workflow": ("typed result",),
    "function": (
        *("live runs", "delayed run", "collected failures", "sync function", "forgotten await", "retry of the task"),
        *("transactional step", "new version", "reopen", "rerun", "fork"),
    ),
    "external": ("scopes",),
    "approval": ("denied",),
}
"""The kind of work of a pair that names none, for features that another kind than a task shows best."""
AGAINST = (
    ("collected failures", "retry"),
    ("collected failures", "canceled"),
    ("forgotten await", "canceled"),
    ("forgotten await", "retry"),
    ("forgotten await", "raises once"),
    ("canceled", "retry"),
    ("canceled", "dead letters"),
    ("canceled", "paused list"),
    ("hangs", "progress deadline"),
    ("fails", "collected failures"),
    ("retry of the task", "canceled"),
    ("retry of the task", "collected failures"),
    ("retry of the task", "forgotten await"),
    *itertools.product(("fails", "deadline"), ("retry", "retry of the task", "dead letters")),
    ("idempotency key", "namespaces"),
    ("goal", "batch handler"),
    *itertools.product(("poll_once",), ("timeout", "hangs", "deadline", "progress deadline", "one named parameter", "namespaces")),
    ("canceled", "reopen"),
    ("sync function", "reopen"),
    ("unique key, debounce", "reopen"),
    ("collected failures", "reopen"),
    ("collected failures", "transactional step"),
    ("collected failures", "new version"),
    ("forgotten await", "transactional step"),
    ("forgotten await", "new version"),
    ("forgotten await", "reopen"),
    *(("unique key", f"unique key, {conflict}") for conflict in ("reject", "replace", "debounce")),
)
"""Pairs that contradict each other."""


@dataclass(frozen=True)
class Pair:
    """Two features; a fault that neither names follows from their names."""

    first: Feature
    second: Feature

    def __str__(self) -> str:
        return f"{self.first} and {self.second}"

    @property
    def kind(self) -> str:
        """The kind of work: that of the pair, or one that has both features."""
        chosen = [feature.name for feature in (self.first, self.second) if feature.dimension == "kind"]
        preferred = [kind for kind, names in DEFAULT_KIND.items() if {self.first.name, self.second.name} & {*names}]
        return (*chosen, *preferred, "task")[0]

    @property
    def applies(self) -> bool:
        """Whether the features go together."""
        features = (self.first, self.second)
        names = {feature.name for feature in features}
        return all(not feature.kinds or self.kind in feature.kinds for feature in features) and not any(
            {*two} <= names for two in AGAINST
        )

    def case(self) -> Case:
        """Build the case; the kind comes first, as other features depend on it."""
        faults = [*Fault]
        case = Case(kind=self.kind, fault=faults[sum(map(ord, str(self))) % len(faults)])
        for feature in (self.first, self.second):
            feature.change(case)
        return case


PAIRS = [
    pair
    for first, second in itertools.combinations(FEATURES, 2)
    if first.dimension != second.dimension and (pair := Pair(first, second)).applies
]
