"""A model tries a flow before there are handlers: answers stand for them, and nothing is stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_parity import run
from tests.mcp.test_tools import SHOP, at_work
from tests.mcp.transports import shop_engine

from treadle import Engine
from treadle.api.flows import SourceText
from treadle.engine.operations import Operations
from treadle.model.access import Access, Scope
from treadle.model.errors import InvalidInput, Refused
from treadle.model.values import Json

TRIP = """namespace trip {
    schema Seat { row: Long, window: Boolean? }
    event facet Book(city: String) => (seats: [Seat], note: String?)
    event facet Pay(total: Double) => (receipt: String)
    workflow Go(cities: [String]) => (rows: [Long], paid: String) andThen {
        ok = sys.approval(question = "Go?", context = #{"n": $.cities})
        trips = TripAll(cities = $.cities)
        pay = Pay(total = 1.5) catch { yield Pay(receipt = "none: " ++ $.error) }
        yield Go(rows = trips.rows, paid = pay.receipt)
    }
    facet TripAll(cities: [String]) => (rows: [Long]) andThen foreach city in $.cities {
        one = Book(city = $.city)
        yield TripAll(rows = [one.seats[0]["row"]])
    }
}
"""
DOUBLED = """namespace s {
    event facet Get() => (n: Long)
    facet Double(n: Long) => (m: Long) andThen script { result["m"] = params["n"] * 2 }
    workflow W() => (m: Long) andThen {
        got = Get()
        twice = Double(n = got.n)
        yield W(m = twice.m)
    }
}
"""


async def attempt(source: str, inputs: dict[str, Json], answers: dict[str, Json]) -> Any:
    async with Engine("memory://") as engine:
        service = Operations(engine, Access("ada", frozenset(Scope)))
        ended = await service.flows.dry_run([SourceText("a.afl", source)], None, inputs, answers=answers)
        counts = await service.runs.counts()
        assert (counts.total, (await service.flows.list()).flows) == (0, [])
        return ended


async def test_a_dry_run_names_each_missing_answer_and_returns_the_outputs_without_a_run() -> None:
    async with at_work(shop_engine(), Scope.PUBLISH) as call:
        asked = await call("afl_execute_workflow", source=SHOP, inputs={"count": 2}, answers={})
        assert (asked["success"], asked["status"], asked["run_id"]) == (True, "PAUSED", "")
        (step,) = asked["waiting"]
        assert step == {
            "step_id": None,
            "path": "Buy.priced",
            "facet": "shop.Price",
            "params": {"count": 2},
            "expects": {"total": "Double"},
            "needs": "an answer",
        }
        done = await call("afl_execute_workflow", source=SHOP, inputs={"count": 2}, answers={"Price": {"total": 7.5}})
        assert (done["status"], done["outputs"], done["waiting"]) == ("COMPLETED", {"total": 7.5}, [])
        assert [(each["path"], each["result"]) for each in done["calls"]] == [("Buy.priced", {"total": 7.5})]
        failed = await call("afl_execute_workflow", source=SHOP, inputs={"count": 2}, answers={"Price": {"@error": "sold out"}})
        assert (failed["success"], failed["status"]) == (False, "ERROR")
        assert "sold out" in failed["error"]
        assert (await call("run_list"))["runs"] == []


async def test_lists_are_used_in_order_errors_are_caught_and_an_approval_is_granted() -> None:
    ended = await attempt(
        TRIP,
        {"cities": ["a", "b"]},
        {
            "sys.approval": {},
            "Book": [{"seats": [{"row": 3, "window": True}]}, {"seats": [{"row": 4, "window": None}], "note": None}, {"seats": []}],
            "trip.Pay": {"@error": "broke", "@code": "no_money"},
        },
    )
    assert (ended.state, ended.outputs["paid"].startswith("none: "), ended.unused) == ("completed", True, ["trip.Book"])
    left = await attempt(TRIP, {"cities": ["a", "b"]}, {"sys.approval": {}, "Book": [{"seats": [{"row": 1, "window": None}]}]})
    asked = [(each.facet, each.params) for each in left.waiting]
    assert (left.state, ("trip.Book", {"city": "b"}) in asked, ("trip.Pay", {"total": 1.5}) in asked) == ("waiting", True, True)


async def test_scripts_run_in_a_dry_run() -> None:
    ended = await attempt(DOUBLED, {}, {"Get": {"n": 21}})
    assert (ended.state, ended.outputs) == ("completed", {"m": 42})


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"Pay": {"receipt": 3}}, "answers.Pay.receipt must be a String, not a number. It returns receipt: String."),
        ({"Pay": {}}, "answers.Pay.receipt is missing. It returns receipt: String."),
        ({"Pay": {"receipt": "r", "more": 1}}, "answers.Pay.more is not one of its returns. It returns receipt: String."),
        ({"Pay": {"recipt": "r"}}, "answers.Pay.recipt is not one of its returns; did you mean receipt?"),
        (
            {"Book": [{"seats": []}, {"seats": [{"row": "x", "window": None}]}]},
            "answers.Book[1].seats[0].row must be a Long, not a string",
        ),
        ({"Book": {"seats": [{}]}}, "answers.Book.seats[0].row is missing"),
        ({"Pay": 3}, "answers.Pay must be a result (an object), a list of results or"),
        ({"Pay": {"@error": 3}}, 'answers.Pay must have only "@error"'),
        ({"Pay": {"@error": "x", "receipt": "r"}}, 'answers.Pay must have only "@error"'),
        ({"Pya": {}}, "answers.Pya: the flow has no event facet 'Pya'; did you mean Pay?"),
        ({"sys.approval": {"bye": "x"}}, "answers.sys.approval.bye is not one of its returns; did you mean by?"),
    ],
)
async def test_an_answer_is_checked_against_the_declaration_of_its_facet(answers: dict[str, Json], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await attempt(TRIP, {"cities": []}, answers)
    assert said in str(refused.value)


async def test_a_dry_run_is_bounded() -> None:
    with pytest.raises(Refused, match="up to 1,000 calls"):
        await attempt(TRIP, {"cities": ["x"] * 1_100}, {"sys.approval": {}, "Book": {"seats": [{"row": 1, "window": None}]}})


async def test_a_waiting_run_returns_its_steps_with_their_parameters() -> None:
    async with at_work(shop_engine()) as call:
        run = await call("afl_execute_workflow", source=SHOP, inputs={"count": 2}, wait_for=0)
        (step,) = run["waiting"]
        assert (step["path"], step["facet"], step["params"], step["expects"]) == (
            "Buy.priced",
            "shop.Price",
            {"count": 2},
            {"total": "Double"},
        )
        assert "afl_continue_step" in step["needs"]
        for wrong, said in (
            ({}, "total is missing"),
            ({"total": "x"}, "total must be a Double, not a string"),
            ({"total": 1.0, "tax": 1}, "tax is not one of its returns"),
        ):
            refused = await call.refused("afl_continue_step", step_id=step["step_id"], result=wrong)
            assert refused["code"] == "invalid_input"
            assert f"{said}. It returns total: Double. Nothing was changed." in refused["error"]
        assert (await call("afl_continue_step", step_id=step["step_id"], result={"total": 2.5}))["changed"]
        assert (await call("run_outputs", run_id=run["run_id"]))["outputs"] == {"total": 2.5}


def test_the_command_line_tries_a_workflow_and_creates_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.afl").write_text(SHOP)
    asked = run("run", "shop.afl", "-p", "count=2", "--dry-run")
    assert (asked.code, asked.out) == (1, "")
    assert 'Buy.priced: shop.Price({"count":2}) returns total: Double' in asked.err
    done = run("run", "shop.afl", "-p", "count=2", "--answer", 'Price={"total": 7.5}', "--json")
    assert (done.code, json.loads(done.out)["outputs"]) == (0, {"total": 7.5})
    wrong = run("run", "shop.afl", "-p", "count=2", "--answer", 'Price={"totl": 7.5}')
    assert (wrong.code, "did you mean total?" in wrong.err) == (2, True)
    assert run("run", "shop.afl", "-p", "count=2", "--dry-run", "--handlers", "x").code == 2
    assert [each.name for each in tmp_path.iterdir()] == ["shop.afl"]
