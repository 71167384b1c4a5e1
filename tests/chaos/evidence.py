"""All that is left when a run is over, read from the store and the service: what `judge` decides on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from tests.chaos.submissions import Submission

from treadle import Engine
from treadle.goals.reads import ObjectiveTrail
from treadle.kernel.store.queries import RunFilter, TaskFilter
from treadle.kernel.store.records import RecordFilter
from treadle.kernel.store.verify import check_history
from treadle.model.errors import NotFound
from treadle.model.runs import Run, Step
from treadle.model.states import EXTERNAL
from treadle.model.tasks import Task

T = TypeVar("T")

PAGE = 1000
AT_ONCE = 4
"""Reads on their way at one time."""


class Expiry(NamedTuple):
    """A lease that ran out, or was ended by a start-up, of that owner."""

    task_id: str
    owner_id: str
    at: int
    alive: bool = True
    """Whether its owner was still there, and could do something late."""


@dataclass(slots=True)
class Ledger:
    """Counts made by the service; see `service.Ledger`."""

    plain: dict[str, int]
    asked: dict[str, int]
    made: dict[str, list[str]]
    submits: dict[str, int]
    jobs: dict[str, list[str]]
    looks: int = 0


@dataclass(slots=True)
class Evidence:
    """Everything that a run left behind: rows of the store, acknowledgements, counts of the service, log lines."""

    submissions: Sequence[Submission]
    acks: dict[str, set[str]]
    ledger: Ledger
    tasks: dict[str, Task] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    steps: dict[str, list[Step]] = field(default_factory=dict)
    """The steps of each run."""
    trails: dict[str, ObjectiveTrail] = field(default_factory=dict)
    transitions: dict[str, Counter[str]] = field(default_factory=dict)
    """How often each entity made each transition."""
    expiries: list[Expiry] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)
    """External jobs that are still followed."""
    verified: int = 0
    unexplained: list[str] = field(default_factory=list)
    """Problems reported by `verify`."""
    loop_errors: list[str] = field(default_factory=list)
    """Unexpected messages in the logs of processes."""


async def gather(engine: Engine, submissions: Sequence[Submission], acks: dict[str, set[str]], ledger: dict[str, Any]) -> Evidence:
    """Read everything; nobody works any more."""
    found = Evidence(submissions, acks, Ledger(**ledger))
    store = engine.kernel.store
    async for task in _pages(lambda last: store.tasks.list_matching(TaskFilter(before_id=last), PAGE)):
        found.tasks[task.id] = task
    async for run in _pages(lambda last: store.runs.list_matching(RunFilter(before_id=last), PAGE)):
        found.runs[run.id] = run
    for run_id, steps in zip(
        found.runs, await _many(lambda run_id: store.runs.list_steps(run_id, None, PAGE), found.runs), strict=True
    ):
        found.steps[run_id] = steps
    objectives = [
        work_id for submission in submissions if submission.kind == "objective" for work_id in acks.get(submission.key, ())
    ]
    for trail in await _many(lambda objective_id: _trail(engine, objective_id), objectives):
        if trail is not None:
            found.trails[trail.objective.objective_id] = trail
    live = RecordFilter(EXTERNAL.entity, states=("live",))
    found.followed = [record.id for record in await store.records.list_matching(live, PAGE)]
    await _read_log(engine, found)
    return found


async def _trail(engine: Engine, objective_id: str) -> ObjectiveTrail | None:
    """The trail of an objective; None if the objective was lost."""
    try:
        return await engine.goals.objectives.show(objective_id)
    except NotFound:
        return None


async def _read_log(engine: Engine, found: Evidence) -> None:
    """The transitions of everything, with what `Engine.verify` says of them."""
    last: str | None = None
    while True:
        histories = await engine.kernel.store.log.list_histories(last, PAGE)
        for history in histories:
            found.unexplained += check_history(history)
            found.transitions[history.entity_id] = Counter(transition.transition for transition in history.transitions)
            if history.entity == "task":
                found.expiries += [
                    Expiry(transition.entity_id, transition.actor or "", transition.at)
                    for transition in history.transitions
                    if transition.transition == "expire"
                ]
        found.verified += len(histories)
        if len(histories) < PAGE:
            break
        last = histories[-1].entity_id
    found.unexplained += await engine.kernel.external_upkeep.check()


async def _pages(read: Callable[[str | None], Awaitable[list[Any]]]) -> Any:
    last: str | None = None
    while True:
        page = await read(last)
        for each in page:
            yield each
        if len(page) < PAGE:
            return
        last = page[-1].id


async def _many(read: Callable[[str], Awaitable[T]], ids: Any) -> list[T]:
    """Read one item for each id, a few concurrently."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(each: str) -> T:
        async with room:
            return await read(each)

    return list(await asyncio.gather(*(one(each) for each in ids)))
