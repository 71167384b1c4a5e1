"""Prompt blocks from the command line: `--llm` lets a worker, a runner or `run` itself do them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.commands import Treadle
from tests.llm.scene import FLOW, GOOD, KEY, OUTPUTS, TARGET

from treadle.testing.llm import MessagesServer, uses


@pytest.fixture
def model(treadle: Treadle) -> MessagesServer:
    with MessagesServer() as server:
        treadle.environment.update(ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY=KEY)
        (Path(treadle.folder) / "desk.afl").write_text(FLOW[0][1])
        yield server


def test_run_does_prompt_blocks_itself(treadle: Treadle, model: MessagesServer) -> None:
    model.script(uses((TARGET, GOOD)))
    ended = treadle("run", "desk.afl", "--input", "letter=Dear all", "--llm", "--json")
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["outputs"] == OUTPUTS
    assert KEY not in ended.out + ended.err
    spent = treadle.json("runs", "usage", json.loads(ended.out)["id"])
    assert spent["total"]["requests"] == 1
    assert spent["requests"][0]["path"] == "Sort.s"
    assert spent["requests"][0]["state"] == "settled"
    shown = treadle("runs", "usage", json.loads(ended.out)["id"]).out
    assert "claude-haiku-4-5" in shown
    assert "requests" in shown


def test_the_cost_of_a_model_without_a_price_is_unknown(treadle: Treadle, model: MessagesServer) -> None:
    (Path(treadle.folder) / "desk.afl").write_text(FLOW[0][1].replace("claude-haiku-4-5", "house-model"))
    model.script(uses((TARGET, GOOD)))
    ended = treadle("run", "desk.afl", "--input", "letter=Dear all", "--llm", "--json")
    assert ended.code == 0, ended.err
    shown = treadle("runs", "usage", json.loads(ended.out)["id"]).out
    assert "house-model" in shown
    assert shown.count("unknown") == 2, "of the request and of the run"
    assert "$" not in shown


@pytest.mark.parametrize("command", [["worker", "--handlers", "jobs", "--llm"], ["runner", "--llm"], ["up", "--llm"]])
def test_a_worker_and_a_runner_take_prompt_blocks_from_the_queue(
    treadle: Treadle, model: MessagesServer, command: list[str]
) -> None:
    model.script(uses((TARGET, GOOD)))
    with treadle.started(*command, "--json") as worker:
        ended = treadle("submit", "desk.afl", "--input", "letter=Dear all", "--wait", "--json")
        assert ended.code == 0, ended.err
        assert json.loads(ended.out)["outputs"] == OUTPUTS
        worker.stop()
