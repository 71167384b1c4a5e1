"""The report of a run: text, JSON, and the section of RESULTS.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bench.results import table
from tests.chaos.play import Played
from tests.chaos.takeovers import Spread

SHOWN = 50
"""Broken promises that are said one by one."""


def as_text(played: Played) -> str:
    """The report of one run."""
    plan, verdict = played.plan, played.verdict
    lines = [
        "",
        f"{plan.store}: {plan.tasks:,} wishes, seed {plan.seed}, {plan.workers} workers, leases of {plan.lease:g} s, "
        f"{played.seconds:.0f} s ({played.calm_after:.0f} s of them with trouble)",
        f"  went wrong: {_counts(played.storms) or 'nothing'}",
        f"  noticed:    {_counts(played.told) or 'nothing'}; {verdict.expiries} leases ran out or were ended by a start-up",
        f"  ended:      {_counts(verdict.ended)}; {verdict.given_up} given up as their workers were lost too often",
        f"  effects:    {verdict.effects:,}, each made once where that is deduplicated; {verdict.effects_again} asked for again, "
        f"{verdict.unknown} x tool_call.unknown in the log",
        f"  jobs:       {verdict.jobs:,} external jobs, each made once; {verdict.submits_again} submitted again, under one token",
        f"  bodies:     {verdict.bodies:,} runs of plain code, {verdict.bodies_again} of them again (at least once is promised)",
        f"  verify:     {verdict.verified:,} histories",
    ]
    for way, times in played.takeovers.items():
        lines.append(f"  taken over: {times.count} tasks whose worker was {way}")
        lines.append(f"                {_spread(times.ready, plan.lease)} until ready again")
        lines.append(f"                {_spread(times.begun, plan.lease)} until begun anew")
    problems = verdict.problems
    lines.append(f"  broken:     {len(problems) or 'nothing'}")
    lines += [f"    - {problem}" for problem in problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"    ... and {len(problems) - SHOWN} more")
    if played.folder is not None:
        lines.append(f"  logs:       {played.folder}")
    return "\n".join(lines)


def as_json(played: Played) -> dict[str, Any]:
    """The same for programs."""
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
        ("wishes (tasks, runs, external jobs, objectives)", *(each.plan.tasks for each in runs)),
        ("worker processes", *(each.plan.workers for each in runs)),
        ("seconds; of them with trouble", *(f"{each.seconds:.0f}; {each.calm_after:.0f}" for each in runs)),
        ("leases that ran out or were ended by a start-up", *(each.verdict.expiries for each in runs)),
        ("**promises broken**", *(len(each.verdict.problems) for each in runs)),
        ("given up after too many lost workers (dead letters)", *(each.verdict.given_up for each in runs)),
        ("effects; each made once at a service that deduplicates", *(each.verdict.effects for each in runs)),
        (
            "asked for again; `tool_call.unknown` in the log",
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
        ("histories that `verify` explained", *(each.verdict.verified for each in runs)),
    ]
    wrong = sorted({way for each in runs for way in each.storms})
    takeovers = [
        (each.plan.store, way, times.count, until, *_cells(spread, each.plan.lease))
        for each in runs
        for way, times in each.takeovers.items()
        for until, spread in (("ready again", times.ready), ("begun anew", times.begun))
    ]
    parts = [
        table(["", *names], rows),
        "What went wrong:\n\n" + table(["", *names], [(way, *(each.storms[way] for each in runs)) for way in wrong]),
        f"Takeovers: from the blow until others could have the work, and until somebody had begun it (what was due before it goes "
        f"first), in seconds and in leases (of {runs[0].plan.lease:g} s); a database that was away meanwhile is in it:\n\n"
        + table(["", "its worker was", "tasks", "until", "p50", "p99", "longest"], takeovers),
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
