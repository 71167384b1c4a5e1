"""The report of a run: text, JSON, and the section of RESULTS.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bench.results import table
from tests.chaos.play import Played
from tests.chaos.takeovers import Spread

SHOWN = 50
"""Maximum number of broken promises that are listed."""


def as_text(played: Played) -> str:
    """The report of one run."""
    plan, verdict = played.plan, played.verdict
    lines = [
        "",
        f"{plan.store}: {plan.tasks:,} items of work, seed {plan.seed}, {plan.workers} workers, leases of {plan.lease:g} s, "
        f"{played.seconds:.0f} s ({played.calm_after:.0f} s of them with faults)",
        f"  faults:     {_counts(played.storms) or 'nothing'}",
        f"  noticed:    {_counts(played.told) or 'nothing'}; {verdict.expiries} leases expired or were ended by a start-up",
        f"  ended:      {_counts(verdict.ended)}; {verdict.given_up} given up after too many lost workers",
        f"  effects:    {verdict.effects:,}, each performed once where the service deduplicates; "
        f"{verdict.effects_again} requested again, {verdict.unknown} x tool_call.unknown in the log",
        f"  jobs:       {verdict.jobs:,} external jobs, each created once; {verdict.submits_again} submitted again",
        f"  bodies:     {verdict.bodies:,} executions of plain code, {verdict.bodies_again} repeated (promised: at least once)",
        f"  verify:     {verdict.verified:,} histories",
    ]
    for way, times in played.takeovers.items():
        lines.append(f"  taken over: {times.count} tasks whose worker was {way}")
        lines.append(f"                {_spread(times.ready, plan.lease)} until ready again")
        lines.append(f"                {_spread(times.begun, plan.lease)} until started again")
    problems = verdict.problems
    lines.append(f"  broken:     {len(problems) or 'nothing'}")
    lines += [f"    - {problem}" for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"    ... and {len(problems) - SHOWN} more")
    if played.folder is not None:
        lines.append(f"  logs:       {played.folder}")
    return "\n".join(lines)


def as_json(played: Played) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "plan": dataclasses.asdict(played.plan),
        "seconds": round(played.seconds, 1),
        "seconds_of_trouble": round(played.calm_after, 1),
        "went_wrong": played.storms,
        "noticed": played.told,
        "takeovers": {way: dataclasses.asdict(times) for way, times in played.takeovers.items()},
        "verdict": {each.name: getattr(played.verdict, each.name) for each in dataclasses.fields(played.verdict)},
        "folder": None if played.folder is None else str(played.folder),
    }


def as_markdown(runs: Sequence[Played]) -> str:
    """The section of RESULTS.md."""
    names = [each.plan.store for each in runs]
    rows: list[tuple[object, ...]] = [
        ("submitted work (tasks, runs, external jobs, objectives)", *(each.plan.tasks for each in runs)),
        ("worker processes", *(each.plan.workers for each in runs)),
        ("seconds; of these with faults", *(f"{each.seconds:.0f}; {each.calm_after:.0f}" for each in runs)),
        ("leases that expired or were ended by a start-up", *(each.verdict.expiries for each in runs)),
        ("**promises broken**", *(len(each.verdict.problems) for each in runs)),
        ("given up after too many lost workers (dead letters)", *(each.verdict.given_up for each in runs)),
        ("effects; each performed once by a service that deduplicates", *(each.verdict.effects for each in runs)),
        (
            "requested again; `tool_call.unknown` in the log",
            *(_pair(each.verdict.effects_again, each.verdict.unknown) for each in runs),
        ),
        (
            "external jobs; submitted again under the same token",
            *(_pair(each.verdict.jobs, each.verdict.submits_again) for each in runs),
        ),
        (
            "executions of plain code; again (at least once)",
            *(_pair(each.verdict.bodies, each.verdict.bodies_again) for each in runs),
        ),
        ("histories checked by `verify`", *(each.verdict.verified for each in runs)),
    ]
    wrong = sorted({way for each in runs for way in each.storms})
    takeovers = [
        (each.plan.store, way, times.count, until, *_cells(spread, each.plan.lease))
        for each in runs
        for way, times in each.takeovers.items()
        for until, spread in (("ready again", times.ready), ("started again", times.begun))
    ]
    parts = [
        table(["", *names], rows),
        "Injected faults:\n\n" + table(["", *names], [(way, *(each.storms[way] for each in runs)) for way in wrong]),
        f"Takeovers: time from the fault until the work was ready for other workers, and until one had started it (after earlier "
        f"work), in seconds and in leases (of {runs[0].plan.lease:g} s); includes outages of the database:\n\n"
        + table(["", "fault of its worker", "tasks", "until", "p50", "p99", "longest"], takeovers),
    ]
    for each in runs:
        parts += [f"- {each.plan.store}: {problem}" for problem in each.verdict.problems[:SHOWN]]
    return "\n\n".join(parts)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} x {what}" for what, count in sorted(counts.items()) if count)


def _pair(one: int, other: int) -> str:
    return f"{one:,}; {other:,}"


def _cells(spread: Spread, lease: float) -> list[str]:
    return [f"{seconds:.2f} s ({seconds / lease:.2f})" for seconds in (spread.p50, spread.p99, spread.longest)]


def _spread(spread: Spread, lease: float) -> str:
    p50, p99, longest = _cells(spread, lease)
    return f"p50 {p50}, p99 {p99}, longest {longest}"
