"""The tree of a run's steps on one time axis: many items under one row with counts, failures open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from treadle.api.runs import Run
from treadle.api.steps import Step, StepSummary, StepTime
from treadle.engine.operations import Operations
from treadle.interfaces.web.filters import leaf
from treadle.interfaces.web.traces import MS, Bar, Scale, spans_of
from treadle.model.clock import span
from treadle.model.runs import depth_first

FOLD_FROM = 12
"""Siblings of one kind from which on they are one row with counts, below which only some are shown."""
_FAILURES, _RUNNING = 20, 3
"""Failed and running items that are shown below such a row."""
_WHOLE = 300
"""Steps up to which a run is drawn as a whole; of a larger one, a page of its top level, and its failures."""
_PAGE = 200
_LIMIT = 1000
_ITEMS = "items"
_DEPTH, _LEVELS = 12, 3
_KINDS = {"step": "running", "effect": "running", "call": "running", "sleep": "waiting", "wait": "waiting", "result": "waiting"}
_KINDS |= {"approval": "approval", "update": "waiting"}
"""The colour of a function's step by its kind."""
_MARKS = frozenset({"tag", "now", "patch", "publish", "reply", "start", "first"})
"""Kinds of a function's steps that take no time; they are not drawn once completed."""


@dataclass(frozen=True, slots=True)
class TreeRow:
    """A step, or several alike (`id` is then the key that opens them), with its bars."""

    id: str
    name: str
    about: str
    state: str
    depth: int
    bars: tuple[Bar, ...]
    took: str
    counts: str = ""
    is_step: bool = True
    folds: bool = False
    """Whether more steps are below it, which are not shown."""


@dataclass(frozen=True, slots=True)
class StepTree:
    """The rows, the labels of the axis in milliseconds, and the cursor of the next page."""

    rows: list[TreeRow]
    ticks: list[int]
    next_after: str | None = None


def counts_text(states: Counter[str]) -> str:
    """`200 items · 199 ok · 1 failed`."""
    named = [(states["completed"], "ok"), *((number, state) for state, number in states.items() if state != "completed")]
    return " · ".join([f"{states.total():,} items", *(f"{number:,} {state}" for number, state in named if number)])


def tree_order(steps: Iterable[StepSummary]) -> list[StepSummary]:
    """Each step below its parent, siblings as they come."""
    listed = list(steps)
    places = {step.id: place for place, step in enumerate(listed)}
    return list(depth_first(listed, lambda step: step.id, lambda step: step.parent_id, lambda step: places[step.id]))


def folded(
    steps: Sequence[StepSummary], opened: Collection[str], keep: Collection[str]
) -> list[StepSummary | tuple[str, list[StepSummary]]]:
    """The steps to show, in order; of many siblings alike, only those to look at.

    Steps alike are the items of a foreach, and a function's steps in the branches of one gather; these follow an entry
    of their own, a key and the steps.
    """
    groups: dict[tuple[str | None, str], list[StepSummary]] = {}
    for step in steps:
        if key := _group(step):
            groups.setdefault((step.parent_id, key), []).append(step)
    many = {step.id: group for group, alike in groups.items() if len(alike) >= FOLD_FROM for step in alike}
    hidden: set[str | None] = set()
    begun: set[tuple[str | None, str]] = set()
    rows: list[StepSummary | tuple[str, list[StepSummary]]] = []
    for step in steps:
        group = many.get(step.id)
        if group is not None and group not in begun:
            begun.add(group)
            key = f"{group[0] or ''}:{group[1]}"
            if group[1] != _ITEMS:  # their foreach has a row of its own
                rows.append((key, groups[group]))
            if key not in opened:
                hidden |= {alike.id for alike in groups[group]} - _to_look_at(groups[group], keep)
        if step.id in hidden or step.parent_id in hidden:
            hidden.add(step.id)
        else:
            rows.append(step)
    return rows


def _group(step: StepSummary) -> str:
    if step.kind == "item":
        return _ITEMS
    scope, bracket, _ = step.path.rpartition("[") if step.parent_id is None else ("", "", "")
    return scope if bracket else ""


def _to_look_at(alike: Sequence[StepSummary], keep: Collection[str]) -> set[str]:
    failed = [step.id for step in alike if step.state == "failed"][:_FAILURES]
    running = [step.id for step in alike if step.state == "running"][:_RUNNING]
    return {*failed, *running, *(step.id for step in alike if step.id in keep)}


async def step_tree(
    api: Operations,
    run: Run,
    *,
    state: Sequence[str],
    below: str | None,
    after: str | None,
    opened: Collection[str],
    chosen: Step | None,
) -> StepTree:
    """The tree of a run, of the steps below one, or of those in a state."""
    now = (await api.system.time()).now
    keep = {chosen.id} if chosen else set()
    next_after: str | None = None
    if state:
        page = await api.steps.list(run.id, state=state, below=below, values=False, limit=_PAGE, after=after, order="program")
        steps: list[StepSummary] = list(page.steps)
        next_after = page.next_after
    elif below is None and run.steps <= _WHOLE:
        times = await api.steps.timeline(run.id, blocks=True, limit=_LIMIT)
        steps, next_after = list(times.steps), times.next_after
        keep |= _ancestors(steps, chosen)
    else:
        times = await api.steps.timeline(run.id, below=below or run.id, blocks=True, limit=_PAGE, after=after)
        steps, next_after = list(times.steps), times.next_after
        if below is None:
            await _add_levels(api, run, steps)
        keep |= await _add_failures(api, run, steps, chosen)
    if run.kind == "function":
        steps = [step for step in steps if step.facet not in _MARKS or step.state != "completed"]
    ordered = tree_order(steps)
    depths = _depths(ordered)
    end = max([run.finished_at or now, *(step.ended_at or run.created_at for step in ordered)])
    scale = Scale(run.created_at, max((end - run.created_at) / MS, 1.0), now)
    entries = ordered if state or below else folded(ordered, opened, keep)
    below_row = Counter(entry.parent_id for entry in entries if not isinstance(entry, tuple))
    rows = [
        _group_row(entry, scale, depths) if isinstance(entry, tuple) else _row(entry, scale, depths, below_row[entry.id])
        for entry in entries
        if state or isinstance(entry, tuple) or not _is_plain(entry) or not below_row[entry.id]
    ]
    return StepTree(rows, scale.ticks, next_after)


async def _add_levels(api: Operations, run: Run, steps: list[StepSummary]) -> None:
    """Add the steps of the workflow, which are below it and its blocks."""
    level = list(steps)
    for _ in range(_LEVELS):
        level = [step for step in level if step.kind == "workflow" or _is_plain(step)]
        pages = [await api.steps.timeline(run.id, below=step.id, blocks=True, limit=_PAGE) for step in level[:_RUNNING]]
        level = [step for page in pages for step in page.steps]
        steps += level


def _is_plain(step: StepSummary) -> bool:
    """Whether it is a block that only holds its steps."""
    return step.kind in ("block", "case") and step.total is None


def _depths(steps: Sequence[StepSummary]) -> dict[str, int]:
    """The number of rows above each step, of those that are shown."""
    depths: dict[str, int] = {}
    plain = {step.id for step in steps if _is_plain(step)}
    for step in steps:
        above = step.parent_id
        depths[step.id] = 0 if above not in depths else depths[above] + (above not in plain)
    return depths


def _ancestors(steps: Sequence[StepSummary], chosen: Step | None) -> set[str]:
    by_id = {step.id: step for step in steps}
    ids: set[str] = set()
    step: StepSummary | None = chosen
    while step is not None and step.parent_id is not None and step.parent_id not in ids:
        ids.add(step.parent_id)
        step = by_id.get(step.parent_id)
    return ids


async def _add_failures(api: Operations, run: Run, steps: list[StepSummary], chosen: Step | None) -> set[str]:
    """Add the failed steps below those listed, level by level, and the chosen one with the steps above it."""
    listed_ids = {step.id for step in steps}
    if run.kind == "function":
        more: list[Step] = (await api.steps.list(run.id, state=["failed"], values=False, limit=_FAILURES)).steps
    else:
        more, level = [], [step.id for step in steps if step.state == "failed" or step.failed][:_RUNNING]
        for _ in range(_DEPTH):
            lists = [
                await api.steps.list(run.id, below=parent, state=["failed"], values=False, limit=_FAILURES) for parent in level
            ]
            below = [step for page in lists for step in page.steps]
            more += below
            level = [step.id for step in below if step.folds][:_RUNNING]
    if chosen is not None:
        more.append(chosen)
        while (
            run.kind == "workflow"
            and more[-1].parent_id is not None
            and more[-1].parent_id not in listed_ids
            and len(more) < _LIMIT
        ):
            more.append(await api.steps.get(run.id, more[-1].parent_id))
    steps += {step.id: step for step in more if step.id not in listed_ids}.values()
    return {step.id for step in more}


def _row(step: StepSummary, scale: Scale, depths: Mapping[str, int], below: int) -> TreeRow:
    counts = ""
    if step.total is not None:
        states = Counter({"failed": step.failed, "open": min(step.open, step.total)})
        counts = counts_text(+Counter({"completed": step.total - states.total(), **states}))
    kind = _KINDS.get(step.facet or "", "step") if step.task_id is None and step.kind == "step" else "step"
    spans = spans_of(step.spans if isinstance(step, StepTime) else (), kind, step.began_at, step.ended_at)
    took_for = round(((step.ended_at or scale.now) - step.began_at) / MS) if step.took_for is None else step.took_for
    folds = step.folds and below < (step.total or 1)
    return TreeRow(
        step.id,
        leaf(step.path),
        step.about,
        step.state,
        depths[step.id],
        scale.bars(spans, step.state),
        span(took_for),
        counts,
        folds=folds,
    )


def _group_row(group: tuple[str, list[StepSummary]], scale: Scale, depths: Mapping[str, int]) -> TreeRow:
    key, alike = group
    states = Counter(step.state for step in alike)
    state = next((state for state in ("failed", "running", "pending", "paused") if states[state]), alike[0].state)
    begun: datetime = min(step.began_at for step in alike)
    ended = None if any(step.ended_at is None for step in alike) else max(step.ended_at for step in alike if step.ended_at)
    took = span(round(((ended or scale.now) - begun) / MS))
    bars = scale.bars([("running", begun, ended)], state)
    name = leaf(alike[0].path).rpartition("].")[2]
    return TreeRow(key, name, "", state, depths[alike[0].id], bars, took, counts_text(states), is_step=False, folds=True)
