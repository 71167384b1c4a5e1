"""Long-running agent: its state survives kills, its history stays short, and its budget holds."""

from __future__ import annotations

from typing import Any

import pytest
from tests.patterns.programs import load
from tests.sizes import left_out

from treadle import Engine
from treadle.testing import Environment, crash_test

GOAL = {"messages": [{"role": "user", "content": "Find out."}], "budget": 10_000}


@pytest.mark.parametrize(("searches", "turns"), [(1, 1), left_out((3, 2))])
def test_a_worker_killed_at_any_write_changes_neither_the_result_nor_the_searches(searches: int, turns: int):
    program = load("long_running_agent")
    program.TURNS_PER_RUN, program.KEPT = turns, 2

    async def ask_model(messages: list[Any]) -> dict[str, Any]:
        last = messages[-1]["content"]
        done = last["done"] if isinstance(last, dict) else 0
        if done == searches:
            return {"answer": "it", "tokens": 7}
        return {"tool": "agent.Search", "arguments": {"done": done}, "tokens": 10}

    program.ask_model = ask_model

    def setup(engine: Engine, effects: list[Any]) -> None:
        engine.function("agent")(program.agent)

        @engine.handler("agent.Search")
        async def search(payload: Any, ctx: Any) -> dict[str, int]:
            if [payload["done"], ctx.task_id] not in effects:
                effects.append([payload["done"], ctx.task_id])
            return {"done": payload["done"] + 1}

    report = crash_test(setup, lambda engine: engine.start_function("agent", GOAL))
    assert report.outcome == f'{{"state":"done","answer":"it","tokens":{10 * searches + 7},"turns":{searches + 1}}}'
    assert {case.outcome for case in report.cases} == {report.outcome}
    for case in report.cases:
        assert [number for number, _ in case.effects] == list(range(searches)), case.crash


async def test_it_continues_as_new_runs_under_one_id_with_the_goal_and_the_newest_messages():
    program, seen = load("long_running_agent"), []
    program.TURNS_PER_RUN, program.KEPT = 2, 2

    async def ask_model(messages: list[Any]) -> dict[str, Any]:
        seen.append(len(messages))
        return (
            {"answer": "it", "tokens": 7} if len(seen) == 6 else {"tool": "agent.Search", "arguments": {"query": "q"}, "tokens": 10}
        )

    program.ask_model = ask_model
    async with Environment(program.engine) as env:
        run = await program.engine.start(program.agent, GOAL)
        assert await env.result(run) == {"state": "done", "answer": "it", "tokens": 57, "turns": 6}
        assert await run.query("progress") == {"turn": 5, "tokens": 50}
        assert len(await program.engine.kernel.functions.recorded(run.id)) < 10
    assert seen == [1, 3, 3, 5, 3, 5]


async def test_it_stops_when_its_budget_is_spent_and_a_failed_tool_does_not_stop_it():
    program = load("long_running_agent")
    program.TURNS_PER_RUN = 2

    async def ask_model(messages: list[Any]) -> dict[str, Any]:
        return {"tool": "agent.Missing", "arguments": {}, "tokens": 100}

    @program.engine.handler("agent.Missing")
    async def missing(payload: Any) -> None:
        raise LookupError("no such page")

    program.ask_model = ask_model
    async with Environment(program.engine) as env:
        run = await program.engine.start(program.agent, {**GOAL, "budget": 450})
        assert await env.result(run) == {"state": "budget spent", "tokens": 500, "turns": 5}
