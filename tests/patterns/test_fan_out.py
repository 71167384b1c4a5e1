"""Fan-out and gather: all results, in the order of the items, and a failure is handled."""

from __future__ import annotations

from typing import Any

from tests.patterns.programs import load, source

from treadle.testing import Environment, run_workflow

CITIES = ["Oslo", "Atlantis", "Turin", "Lima"]


async def test_results_keep_input_order_and_include_failed_items():
    fan_out = load("fan_out")
    async with Environment(fan_out.engine) as env:
        run = await fan_out.engine.start(fan_out.report, {"cities": CITIES})
        result = await env.result(run)
        await env.assert_enqueued("weather.Ask", count=len(CITIES))
    assert [each["city"] for each in result["cities"]] == CITIES
    assert [each.get("degrees") for each in result["cities"]] == [12, None, 15, 12]
    assert result["cities"][1]["error"] == "no station in Atlantis"
    assert result["warmest"] == 15


def test_the_fan_out_in_afl_collects_failures():
    def ask(payload: Any) -> dict[str, int]:
        if payload["city"] == "Atlantis":
            raise LookupError("no station in Atlantis")
        return {"degrees": len(payload["city"])}

    for order in (0, -1):
        handlers = {"weather.Ask": ask}
        result = run_workflow(source("fan_out.afl"), "weather.Report", {"cities": CITIES}, handlers, order=lambda _, n=order: n)
        assert result["degrees"] == [4, 5, 4]
        assert [(each["index"], each["item"], each["error_type"]) for each in result["failed"]] == [(1, "Atlantis", "LookupError")]
