"""Runs, flows and functions with `--server`: the same commands, on what a server has."""

from __future__ import annotations

import json

from tests.commands import Treadle

FLOW = """\
namespace tea {
    event facet Boil(litres: Double) => (degrees: Long)
    workflow Brew(litres: Double, cup: String = "mug") => (cup: String, degrees: Long) andThen {
        water = Boil(litres = $.litres)
        sys.log(degrees = water.degrees)
        yield Brew(cup = $.cup, degrees = water.degrees)
    }
}
"""
HANDS = """
from treadle import Engine

engine = Engine()


@engine.handler("tea.Boil")
async def boil(payload, ctx):
    ctx.log("hot")
    if payload["litres"] < 0:
        raise RuntimeError("the kettle is broken")
    return {"degrees": 100}


@engine.function("order")
async def order(payload, ctx):
    return [payload["n"], await ctx.wait_for("go")]
"""


def test_runs_flows_and_functions_are_used_through_a_server(treadle: Treadle):
    (treadle.folder / "tea.afl").write_text(FLOW)
    (treadle.folder / "bad.afl").write_text(FLOW.replace("Double", "Duoble"))
    (treadle.folder / "hands.py").write_text(HANDS)
    secret = treadle.json("token", "create", "ada", "--scope", "operate", "--scope", "publish")["secret"]
    with treadle.started("up", "--handlers", "hands", "--json") as up:
        treadle.environment |= {"TREADLE_SERVER": json.loads(up.first)["url"], "TREADLE_TOKEN": secret}

        # flows
        bad = treadle("flows", "publish", "tea", "bad.afl")
        assert bad.code == 2
        assert "did you mean `Double`?" in bad.err
        published = treadle.json("flows", "publish", "tea", "tea.afl")
        assert (published["version"], published["actor"]) == (1, "ada")
        assert "tea.Brew(litres: Double, cup: String = ...)" in treadle("flows", "show", "tea").out
        assert "water = tea.Boil" in treadle("graph", "tea").out

        # runs
        said = treadle("run", "tea.afl", "-i", "litres=1", "-i", "cup=07")
        assert (said.code, json.loads(said.out)) == (0, {"cup": "07", "degrees": 100})
        assert "Brew.water (tea.Boil): completed" in said.err
        refused = treadle("run", "tea.afl", "-i", "litres=1", "--handlers", "hands", "--json")
        assert (refused.code, refused.error["code"]) == (2, "not_over_http")
        done = treadle.json("submit", "tea", "-i", "litres=1", "-i", "cup=08", "--wait", "--idempotency-key", "k")
        assert (done["outputs"]["cup"], done["missing_handlers"]) == ("08", [])
        again = ("submit", "tea", "-i", "litres=1", "--idempotency-key", "k", "--json")
        assert treadle.json(*again[:-1], "-i", "cup=08")["created"] is False
        assert treadle(*again).error["code"] == "idempotency_key_reused"
        wrong = treadle("submit", "tea", "-i", "litres=much", "--json")
        assert (wrong.code, wrong.error["code"]) == (2, "invalid_inputs")
        failed = treadle("submit", "tea", "-i", "litres=-1", "--wait")
        assert failed.code == 1
        assert "the kettle is broken" in failed.err
        (run,) = treadle.json("runs", "list", "--state", "failed")["runs"]
        assert "the kettle is broken" in treadle("runs", "show", run["id"]).out
        assert [step["path"] for step in treadle.json("runs", "steps", run["id"])["steps"]] == ["Brew", "Brew.water"]
        looks = (treadle("runs", "logs", run["id"]).out for _ in range(500))  # lines are written a little later than results
        assert any("Brew.water: hot" in out for out in looks)
        assert treadle.json("runs", "usage", run["id"])["requests"] == []
        forked = treadle.json("runs", "fork", run["id"], "Brew.water", "-i", "litres=2")
        assert forked["parent_id"] == run["id"]
        would = treadle.json("runs", "bulk", "retry", "--workflow", "tea.Brew", "--dry-run")
        assert (would["matched"], would["done"]) == (1, [])
        assert treadle.json("runs", "bulk", "retry", "--search", run["id"])["done"] == [run["id"]]
        unsaid = treadle("runs", "bulk", "cancel", "--json")
        assert (unsaid.code, unsaid.error["code"]) == (2, "invalid_input")

        # functions
        (known,) = treadle.json("functions", "list")["functions"]
        assert (known["name"], known["servers"]) == ("order", 1)
        started = treadle.json("functions", "start", "order", "-p", "n=4")
        early = treadle("signal", started["id"], "stop")
        assert (early.code, early.out.strip()) == (0, f"Sent stop to {started['id']}")
        assert "Nothing waits for stop now" in early.err
        treadle.json("signal", started["id"], "go", "--payload", "5")
        shown = {}
        while shown.get("state") != "completed":
            shown = treadle.json("runs", "show", started["id"])
        assert shown["outputs"] == {"result": [4, 5]}
