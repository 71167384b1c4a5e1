"""Prompt blocks done by workers through the real SDK, against a local server that speaks the Messages API."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.limits import BOUND
from tests.llm.scene import FLOW, GOOD, KEY, OUTPUTS, TARGET, Words, desk

from treadle.model.errors import RunFailed
from treadle.model.usage import Budget, total
from treadle.testing.llm import MessagesServer, status, text, uses

MANY = """workflow SortAll(letters: [String]) => (urgent: Boolean) andThen foreach letter in $.letters {
    s = Summarize(letter = $.letter)
    yield SortAll(urgent = s.urgent)
  }"""


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with MessagesServer() as made:
        yield made


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


async def run_of(engine: Any, letter: str = "Dear all", **options: Any) -> Any:
    run = await engine.start_run(FLOW, "desk.Sort", {"letter": letter}, **options)
    return run, await engine.run_result(run, timeout=BOUND)


async def failure_of(engine: Any, **options: Any) -> tuple[str, str, Any]:
    """Code and message of the failed step's task, and the run."""
    run = await engine.start_run(FLOW, "desk.Sort", {"letter": "x"}, **options)
    with pytest.raises(RunFailed):
        await engine.run_result(run, timeout=BOUND)
    (task,) = [task for task in await engine.kernel.reads.list_tasks(kind="handler", states=("failed",)) if task.run_id == run.id]
    return task.error_code, task.error, run


@pytest.mark.postgres
async def test_a_run_with_two_tools_and_three_turns(server, url):
    server.script(
        uses(("desk__Lookup", {"word": "grist"})),
        uses(("desk__Price", {"sku": "a"}), ("desk__Lookup", {"word": "mill"})),
        uses((TARGET, GOOD)),
    )
    calls: list[Any] = []

    async def lookup(payload: dict[str, Any]) -> dict[str, Any]:
        calls.append(payload)
        return {"meaning": f"about {payload['word']}"}

    def price(payload: dict[str, Any]) -> dict[str, Any]:
        calls.append(payload)
        raise LookupError("no such sku")

    async with desk(server, url, tools=Words(desk__Lookup=lookup, desk__Price=price)) as engine:
        run, outputs = await run_of(engine)
        assert outputs == OUTPUTS
        rows = await engine.kernel.store.usage.list_requests(run.id)
        assert (await engine.kernel.verify()).problems == ()
    assert calls == [{"word": "grist"}, {"sku": "a"}, {"word": "mill"}]
    first, second, third = server.requests
    assert first["model"] == "claude-haiku-4-5"
    assert first["system"] == 'You write in a dry tone. Keep {"json": 1}.'
    assert first["messages"] == [{"role": "user", "content": "Letter: Dear all"}]
    assert [tool["name"] for tool in first["tools"]] == [TARGET, "desk__Lookup", "desk__Price"]
    assert first["tools"][1]["input_schema"]["properties"] == {"word": {"type": "string", "description": "what to look up"}}
    (answer,) = second["messages"][-1]["content"]
    assert (answer["content"], "is_error" in answer) == ('{"meaning": "about grist"}', False)
    failed, fine = third["messages"][-1]["content"]
    assert (failed["content"], failed["is_error"]) == ("LookupError: no such sku", True)
    assert fine["tool_use_id"] == third["messages"][-2]["content"][1]["id"]
    assert [(row.request_no, row.state, row.input_tokens, row.output_tokens) for row in rows] == [
        (number, "settled", 100, 20) for number in (1, 2, 3)
    ]
    assert total(rows).cost_micros == 3 * (100 * 1 + 20 * 5)


async def test_a_run_that_meets_429_and_529_completes(server):
    server.script(status(429, "rate_limit_error", "slow down", after=0.01), status(529, after=0.01), uses((TARGET, GOOD)))
    async with desk(server) as engine:
        run, outputs = await run_of(engine)
        (row,) = await engine.kernel.store.usage.list_requests(run.id)
    assert (outputs, row.state, len(server.requests)) == (OUTPUTS, "settled", 3)


async def test_a_run_that_exhausts_its_budget_reports_it(server):
    server.script(text("Let me think.", output_tokens=900), uses((TARGET, GOOD)))
    async with desk(server, max_tokens=1000) as engine:
        code, error, run = await failure_of(engine, budget=0.008)
        assert code == "budget_exhausted"
        assert "may spend $0.008" in error
        (row,) = await engine.kernel.store.usage.list_requests(run.id)
        assert (row.state, row.cost_micros) == ("settled", 4600)
        failed = await engine.kernel.runs.get_run(run.id)
        assert "budget_exhausted" in (failed.error or "")
    assert len(server.requests) == 1


async def test_a_request_is_sent_only_if_the_budget_covers_its_maximum_cost(server):
    server.script(*[uses((TARGET, GOOD))] * 2)
    async with desk(server, max_tokens=1000) as engine:
        run, _ = await run_of(engine, budget=1)
        (row,) = await engine.kernel.store.usage.list_requests(run.id)
        most = row.reserved_micros
        assert most >= 1000 * 5 + len(server.requests[0]["messages"][0]["content"])
        exact, outputs = await run_of(engine, budget=most / 1e6)
        assert (outputs, await engine.kernel.store.usage.find_budget(exact.id)) == (OUTPUTS, Budget(most, 200))
        assert (await failure_of(engine, budget=(most - 200) / 1e6))[0] == "budget_exhausted"
    assert len(server.requests) == 2


async def test_an_overbilling_service_overruns_by_one_request_at_most(server):
    """More output than was asked for, and more input than there was: what was billed counts, and nothing follows it."""
    server.script(text("Let me think.", input_tokens=90_000, output_tokens=4000), uses((TARGET, GOOD)))
    async with desk(server, max_tokens=1000) as engine:
        code, error, run = await failure_of(engine, budget=0.02)
        (row,) = await engine.kernel.store.usage.list_requests(run.id)
        assert (code, row.cost_micros) == ("budget_exhausted", 90_000 + 4000 * 5)
        assert await engine.kernel.store.usage.find_budget(run.id) == Budget(20_000, 110_000)
        assert "may spend $0.02 and has spent or reserved $0.11" in error
    assert len(server.requests) == 1


async def test_the_budget_of_the_settings_holds_for_runs_without_their_own(server):
    async with desk(server, llm_budget=0.000001) as engine:
        assert (await failure_of(engine))[0] == "budget_exhausted"
    assert server.requests == []


async def test_prices_of_the_settings_win_and_a_budget_needs_a_price(server):
    free = '{"claude-haiku-4-5": [0, 0]}'
    async with desk(server, llm_prices=free) as engine:
        server.script(uses((TARGET, GOOD)))
        assert (await run_of(engine, budget=0))[1] == OUTPUTS
    unpriced = [(name, source.replace("claude-haiku-4-5", "some-model")) for name, source in FLOW]
    async with desk(server) as engine:
        run = await engine.start_run(unpriced, "desk.Sort", {"letter": "x"}, budget=1)
        with pytest.raises(RunFailed, match="the price of some-model is unknown"):
            await engine.run_result(run, timeout=BOUND)


async def test_an_answer_that_does_not_fit_is_repaired(server):
    server.script(uses((TARGET, {"summary": 3, "items": [{"sku": "a"}], "extra": 1})), uses((TARGET, GOOD)))
    async with desk(server) as engine:
        assert (await run_of(engine))[1] == OUTPUTS
    (told,) = server.requests[1]["messages"][-1]["content"]
    assert told["is_error"]
    for problem in (
        "extra is not declared",
        "summary must be a String, not the number 3",
        "items[0].count is missing",
        "urgent is missing",
    ):
        assert problem in told["content"]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (text("   "), "answer_empty"),
        (text(), "answer_empty"),
        (text("It is fine."), "answer_missing"),
        (text("It is", stop_reason="max_tokens"), "answer_cut_off"),
        (uses((TARGET, '{"summary": "It'), stop_reason="max_tokens"), "answer_cut_off"),
        (uses((TARGET, '{"summary": oops}')), "answer_not_json"),
        (uses((TARGET, "[1, 2]")), "answer_not_json"),
        (uses((TARGET, {**GOOD, "urgent": "no"})), "answer_mismatch"),
        (uses((TARGET, {**GOOD, "items": {}})), "answer_mismatch"),
        (uses((TARGET, {**GOOD, "summary": "a\0b"})), "answer_mismatch"),
        (uses((TARGET, {**GOOD, "summary": "\ud800"})), "answer_not_json"),
        (text("\ud800"), "answer_missing"),
        (uses((TARGET, "[" * 100_000)), "answer_not_json"),
    ],
)
async def test_a_bad_answer_is_sent_back_and_then_fails_the_step_with_its_code(server, bad, code):
    server.script(bad, bad, uses((TARGET, GOOD)), bad, bad, bad)
    async with desk(server) as engine:
        assert (await run_of(engine))[1] == OUTPUTS
        assert (await failure_of(engine))[0] == code
    assert len(server.requests) == 6


async def test_a_model_that_declines_or_never_answers_fails_the_step(server):
    server.script(text("", stop_reason="refusal"), text("", stop_reason="model_context_window_exceeded"))
    server.script(*[uses(("desk__Unknown", {}))] * 2)
    async with desk(server, max_turns=2) as engine:
        assert [(await failure_of(engine))[0] for _ in range(3)] == ["model_refused", "context_exceeded", "too_many_turns"]
    assert server.requests[-1]["messages"][-1]["content"][0]["is_error"]


async def test_text_of_the_model_is_visible_in_the_step_while_it_runs(server, url):
    gate = threading.Event()
    server.script(text("One two three four five six", gate=gate), uses((TARGET, GOOD)))
    async with desk(server, url, stream_every=0.0) as engine:
        run = await engine.start_run(FLOW, "desk.Sort", {"letter": "x"})
        async with asyncio.timeout(BOUND):
            while not (seen := (await engine.kernel.run_reads.get_step(run.id, "Sort.s")).returns):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert seen == {"_text": "One two t"}
        gate.set()
        assert await engine.run_result(run, timeout=BOUND) == OUTPUTS
        assert (await engine.kernel.run_reads.get_step(run.id, "Sort.s")).returns | GOOD == (
            await engine.kernel.run_reads.get_step(run.id, "Sort.s")
        ).returns


async def test_workers_claim_prompts_only_if_they_serve_models(server, url):
    server.script(uses((TARGET, GOOD)))
    if url == "memory://":
        pytest.skip("memory belongs to one engine")
    plain = make_engine(url)
    async with plain, plain.worker():
        run = await plain.start_run(FLOW, "desk.Sort", {"letter": "x"})
        assert (await plain.kernel.runs.status(run.id)).status == "PAUSED"
        async with desk(server, url) as engine:
            assert await engine.run_result(run, timeout=BOUND) == OUTPUTS
            assert "desk.Summarize" in engine.kernel.registry.fallback.names()
    assert server.keys == [KEY]


async def test_two_workers_on_one_run_never_spend_more_than_its_budget(server, url):
    if url == "memory://":
        pytest.skip("memory belongs to one engine")
    gate = threading.Event()
    server.script(*[uses((TARGET, GOOD), gate=gate)] * 6)
    many = FLOW[0][1].replace("workflow Sort", MANY + "\n  workflow Sort")
    async with desk(server, url) as one, desk(server, url) as two:
        run = await one.start_run([("desk.afl", many)], "desk.SortAll", {"letters": list("abcdef")}, budget=0.05)
        async with asyncio.timeout(BOUND):
            while len(await two.kernel.reads.list_tasks(kind="handler", states=("failed",))) < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        held = await one.kernel.store.usage.find_budget(run.id)
        gate.set()
        with pytest.raises(RunFailed, match="may spend"):
            await one.run_result(run, timeout=BOUND)
        budget, rows = await two.kernel.store.usage.find_budget(run.id), await two.kernel.store.usage.list_requests(run.id)
        failed = await two.kernel.reads.list_tasks(kind="handler", states=("failed",))
    assert {task.error_code for task in failed} == {"budget_exhausted"}
    assert (len(server.requests), len(rows), len(failed)) == (2, 2, 4)
    assert (40_000 < held.committed_micros <= 50_000, budget.committed_micros) == (True, total(rows).cost_micros)
