"""The table of features, and the pairs of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.pairs.case import Act, Case, Fault, Item

from treadle.engine.operations import Operations

RUNS = ("function", "workflow")
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


def _acts(case: Case, *acts: Act, reasons: tuple[str, ...] = (), **fields: Any) -> None:
    case.acts += acts
    case.reasons |= {*reasons}
    _set(case, **fields)


# operators


async def _each(items: list[Item], act: Callable[[str], Any]) -> None:
    for item in items:
        if item.id is not None:
            await act(item.id)


async def _pause_list(api: Operations, items: list[Item]) -> None:
    await api.lists.pause("default")


async def _resume_list(api: Operations, items: list[Item]) -> None:
    await api.lists.resume("default")


async def _pause(api: Operations, items: list[Item], runs: bool = False) -> None:
    await _each(items, api.runs.pause if runs else api.tasks.pause)


async def _resume(api: Operations, items: list[Item], runs: bool = False) -> None:
    await _each(items, api.runs.resume if runs else api.tasks.resume)


async def _cancel(api: Operations, items: list[Item], runs: bool = False) -> None:
    await _each(items, api.runs.cancel if runs else api.tasks.cancel)


async def _retry(api: Operations, items: list[Item], runs: bool = False) -> None:
    await _each(items, api.runs.retry if runs else api.tasks.retry)


async def _redrive(api: Operations, items: list[Item]) -> None:
    await api.dead_letters.retry(everything=True)


async def _limit(api: Operations, items: list[Item], handler: str = "pair.Do") -> None:
    await api.lists.limit_handler(handler, 1)


async def _rate(api: Operations, items: list[Item]) -> None:
    await api.lists.limit_rate("default", "pair.Do", 0.5, burst=1)


def _paused(case: Case) -> None:
    _acts(case, Act(0.5, _pause_list), Act(6, _resume_list))


def _canceled(case: Case) -> None:
    _acts(case, Act(1.5, partial(_cancel, runs=case.kind in RUNS)), end="canceled")


def _repaired(case: Case, retry: Any) -> None:
    _acts(case, Act(20, partial(retry, runs=case.kind in RUNS) if retry is _retry else retry), dies=1)


def _held(case: Case) -> None:
    runs = case.kind in RUNS
    _acts(case, Act(1.2, partial(_pause, runs=runs)), Act(8, partial(_resume, runs=runs)))


def _collected(case: Case) -> None:
    """Failures that the code of the run collects; a retry of the run repeats them and what followed."""
    _acts(case, Act(20, partial(_retry, runs=True)), dies=1, collects=True)


HANDLED = ("task", "function", "workflow", "schedule")
"""Kinds that end in a handler of the server."""

FEATURES = (
    *map(_kind, ("task", "function", "workflow", "external", "approval", "schedule", "remote", "agent")),
    _option("delay", delay=3),
    _option("priority", priority=-5),
    _option("idempotency key", idempotency_key="same"),
    _option("unique key", unique_key="same"),
    _option("fairness key", fairness_key="tenant"),
    _option("tags", tags={"customer": "acme"}),
    _option("trace", trace_id="trace-1"),
    _option("timeout", ("task",), timeout=2),
    _option("progress deadline", ("task",), progress_every=0.5),
    Feature("option", "typed result", lambda case: case.returns.update(count=3.0, extra=None), HANDLED),
    Feature("option", "one named parameter", lambda case: case.payload.update(settings={"colour": "red"}), ("task",)),
    Feature("option", "collected failures", _collected, RUNS),
    Feature("option", "forgotten await", lambda case: _set(case, forgets=True, end="failed", error="never_awaited"), ("function",)),
    Feature("limit", "limit of a key", lambda case: case.options.update(limit_key="few", limit=1), ("task",)),
    Feature("limit", "limit of a handler", lambda case: _acts(case, Act(0, _limit)), HANDLED),
    Feature("limit", "rate", lambda case: _acts(case, Act(0, _rate)), HANDLED),
    Feature("limit", "paused list", _paused),
    Feature("place", "scopes", lambda case: _set(case, scopes=("a", "b")), ("external",)),
    Feature(
        "place", "namespaces", lambda case: _set(case, namespaces=("default", "other")), ("task", *RUNS, "external", "approval")
    ),
    Feature("place", "containers", lambda case: _set(case, same_pid=True)),
    Feature("place", "older server", lambda case: _set(case, old_server=True)),
    Feature("end", "raises once", lambda case: _set(case, raises=1), HANDLED),
    Feature("end", "canceled", _canceled, ("task", *RUNS, "external", "approval", "remote")),
    Feature("end", "hangs", lambda case: (_set(case, hangs=1), case.options.setdefault("timeout", 2)) and None, ("task",)),
    Feature("repair", "retry", lambda case: _repaired(case, _retry), ("task", *RUNS)),
    Feature("repair", "dead letters", lambda case: _repaired(case, _redrive), ("task",)),
    Feature("repair", "pause and resume", _held, ("task", *RUNS)),
    *(Feature("fault", fault.value, lambda case, fault=fault: _set(case, fault=fault)) for fault in Fault),
)
DEFAULT_KIND = {"workflow": ("typed result",), "function": ("collected failures", "forgotten await"), "external": ("scopes",)}
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
    ("idempotency key", "namespaces"),
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
