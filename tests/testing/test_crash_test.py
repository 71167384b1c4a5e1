"""Crash tests for users: what they find, what they let pass, and what they say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from treadle import Engine, Waiting
from treadle.testing import CrashTestFailed, crash_test

SNIPPET = Path(__file__).parents[2] / "docs/snippets/crash_test.py"

FLOW = """
namespace shop {
  event facet Charge(order: String) => (receipt: String)
  workflow Checkout(order: String) => (receipt: String) andThen {
    paid = Charge(order = $.order)
    yield Checkout(receipt = paid.receipt)
  }
}
"""


def test_a_planted_bug_is_located_and_its_fix_passes():
    snippet = runpy.run_path(str(SNIPPET))
    report = crash_test(snippet["careless"], snippet["start"])
    with pytest.raises(CrashTestFailed, match=r"repeated 'charged'"):
        report.check()
    (case,) = report.problems
    line = next(number for number, text in enumerate(SNIPPET.read_text().splitlines(), 1) if "ctx.step(charge)" in text)
    assert case.places == (f"crash_test.py:{line} in order",)
    crash_test(snippet["careful"], snippet["start"]).check()


def test_a_workflow_has_the_same_outcome_after_any_crash():
    def setup(engine: Engine, effects: list[Any]) -> None:
        @engine.handler("shop.Charge")
        async def charge(payload: dict[str, str]) -> dict[str, str]:
            if payload["order"] not in effects:
                effects.append(payload["order"])
            return {"receipt": f"r-{payload['order']}"}

    async def start(engine: Engine) -> Any:
        return await engine.start_run([("shop.afl", FLOW)], "shop.Checkout", {"order": "a"})

    report = crash_test(setup, start)
    report.check()
    assert report.outcome == '{"receipt":"r-a"}'
    assert len(report.cases) == 2 * report.writes > 2


def test_an_outcome_that_differs_after_a_crash_is_reported():
    def setup(engine: Engine, effects: list[Any]) -> None:
        memory: list[int] = []  # of the process, and gone with it

        @engine.handler("count")
        async def count(payload: Any, ctx: Any) -> Any:
            memory.append(1)
            slept = (ctx.checkpoint or {}).get("slept", 0)
            return Waiting(1000, {"slept": slept + 1}) if slept < 2 else {"entered": len(memory)}

    async def start(engine: Engine) -> Any:
        return await engine.enqueue("count")

    report = crash_test(setup, start)
    assert report.outcome == '{"entered":3}'
    assert {case.outcome for case in report.problems} >= {'{"entered":1}', '{"entered":2}'}
    with pytest.raises(CrashTestFailed, match="the result was"):
        report.check()


def test_work_that_writes_too_often_is_refused():
    def setup(engine: Engine, effects: list[Any]) -> None:
        @engine.handler("nap")
        async def nap(payload: Any, ctx: Any) -> Any:
            slept = (ctx.checkpoint or {}).get("slept", 0)
            return Waiting(1000, {"slept": slept + 1}) if slept < 20 else {}

    async def start(engine: Engine) -> Any:
        return await engine.enqueue("nap")

    with pytest.raises(ValueError, match="writes"):
        crash_test(setup, start, most_writes=10)
