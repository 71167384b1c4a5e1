"""Failures of the model service and of the process: bounded retries, clear codes, one charge, and no keys in any output."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from tests.limits import BOUND
from tests.llm.scene import FLOW, GOOD, KEY, OUTPUTS, TARGET, desk, settings_for
from tests.llm.test_runs import failure_of, run_of

from treadle import Engine
from treadle.llm import LLMError, use_llm
from treadle.llm.ledger import Prices, TaskMeter
from treadle.model.errors import InvalidInput, MissingDependency
from treadle.model.names import HANDLER
from treadle.model.usage import Budget
from treadle.settings import Settings
from treadle.testing.llm import MessagesServer, raw, status, text, uses


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with MessagesServer() as made:
        yield made


async def test_a_service_that_stays_busy_fails_the_step_within_limits(server):
    server.script(*[status(429, "rate_limit_error", after=0.001)] * 3, *[status(529, after=0.001)] * 3)
    async with desk(server, max_sends=3) as engine:
        limited, overloaded = await failure_of(engine), await failure_of(engine)
        assert (limited[0], overloaded[0]) == ("llm_rate_limited", "llm_overloaded")
        assert "Failed after 3 sends" in limited[1]
        assert [row.cost_micros for row in await engine.kernel.store.usage.list_requests(limited[2].id)] == [0]


async def test_a_requested_delay_over_the_limit_is_not_awaited(server):
    server.script(status(429, "rate_limit_error", after=3600))
    async with desk(server) as engine:
        code, error, _ = await failure_of(engine)
    assert (code, "asks for a delay of 3600 s" in error, len(server.requests)) == ("llm_rate_limited", True, 1)


async def test_a_request_that_is_rejected_is_not_sent_again(server):
    server.script(status(401, "authentication_error", f"bad key {KEY}"))
    async with desk(server) as engine:
        code, error, _ = await failure_of(engine)
    assert (code, KEY in error, "bad key [hidden]" in error, len(server.requests)) == ("llm_rejected", False, True, 1)


async def test_a_response_that_times_out_is_requested_again(server):
    never = threading.Event()
    server.script(text("One two three", gate=never), *[uses((TARGET, GOOD))] * 2)  # which may take as long, too
    async with desk(server, llm_timeout=2) as engine:
        assert (await run_of(engine))[1] == OUTPUTS
    assert 2 <= len(server.requests) <= 3


async def test_a_service_that_never_answers_leaves_its_reservation_to_be_counted(server):
    server.script(text("One two three", gate=threading.Event()))
    async with desk(server, llm_timeout=0.3, max_sends=1) as engine:
        code, _, run = await failure_of(engine)
        (row,) = await engine.kernel.store.usage.list_requests(run.id)
    assert (code, row.state, row.cost_micros > 0) == ("llm_timeout", "reserved", True)


@pytest.mark.parametrize(
    "bad",
    [
        raw(b"<html>bad gateway</html>", "text/html"),
        raw(b"event: message_start\ndata: {oops\n\n"),
        raw(b'event: content_block_delta\ndata: {"type": "content_block_delta", "index": 4, "delta": {"type": "text_delta"}}\n\n'),
        raw(b""),
        text("One two three", cut_after=3),
    ],
)
async def test_a_malformed_response_is_requested_again_and_then_fails_the_step(server, bad):
    server.script(bad, uses((TARGET, GOOD)), bad, bad, bad)
    async with desk(server) as engine:
        engine.kernel.clock.sleep = _no_wait
        assert (await run_of(engine))[1] == OUTPUTS
        assert (await failure_of(engine))[0] == "llm_malformed"
    assert len(server.requests) == 5


async def _no_wait(_: float) -> None:
    await asyncio.sleep(0)


async def test_an_error_in_the_middle_of_the_stream_is_retried(server):
    error = b'event: error\ndata: {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}\n\n'
    server.script(raw(error), uses((TARGET, GOOD)))
    async with desk(server) as engine:
        assert (await run_of(engine))[1] == OUTPUTS


async def test_a_crash_between_reserving_and_settling_charges_once(server, tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'treadle.db'}"
    async with Engine(url, settings=settings_for(server)) as first:
        run = await first.start_run(FLOW, "desk.Sort", {"letter": "x"}, budget=1)
        (task_id,) = await first.kernel.store.tasks.claim_of_run(run.id, HANDLER, "lost", 1, 1)
        task = await first.kernel.store.tasks.find(task_id)
        meter = TaskMeter(first.kernel.store, first.kernel.ids.new_id, Prices(), task)
        await meter.reserve("claude-haiku-4-5", {"max_tokens": 4096})
        # ... and the process is gone.
    server.script(uses((TARGET, GOOD)))
    async with desk(server, url) as engine:
        assert await engine.run_result(run, timeout=BOUND) == OUTPUTS
        (row,) = await engine.kernel.store.usage.list_requests(run.id)
        assert (row.state, row.attempt, row.interrupted, row.cost_micros) == ("settled", 2, 1, 200)
        assert await engine.kernel.store.usage.find_budget(run.id) == Budget(1_000_000, 200)


async def test_keys_are_in_no_log_event_error_repr_or_store(server, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "treadle.db"
    events: list[Any] = []
    server.script(status(529, message=f"x {KEY}", after=0.001), text("My key is not shown"), uses((TARGET, GOOD)))
    server.script(status(400, "invalid_request_error", f"no {KEY}"))
    async with desk(server, f"sqlite:///{path}", emit=events.append) as engine:
        assert (await run_of(engine))[1] == OUTPUTS
        _, error, run = await failure_of(engine)
        said = [
            error,
            repr(engine.kernel.settings),
            repr(events),
            repr(await engine.kernel.runs.get_run(run.id)),
            repr(vars(engine)),
        ]
        said += [repr(task) for task in await engine.kernel.reads.list_tasks(kind="handler")]
    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())  # noqa: ASYNC240
    assert server.keys == [KEY] * 4
    assert all(KEY not in text for text in [*said, caplog.text])
    assert KEY.encode() not in stored


async def test_an_invalid_key_is_not_revealed_either(server, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    for odd in (f"{KEY}\n", f"{KEY}ü"):
        engine = Engine("memory://", settings=Settings(anthropic_api_key=odd, anthropic_base_url=server.url))
        use_llm(engine, max_sends=1)
        async with engine, engine.worker():
            code, error, _ = await failure_of(engine)
        assert (code, KEY in error) == ("llm_not_configured", False)
    assert KEY not in caplog.text


def test_a_missing_package_or_key_is_reported(monkeypatch: pytest.MonkeyPatch):
    from treadle.llm.config import make_client

    with pytest.raises(LLMError, match="ANTHROPIC_API_KEY") as raised:
        make_client(Settings(), 1)
    assert raised.value.error_code == "llm_not_configured"
    monkeypatch.setitem(__import__("sys").modules, "anthropic", None)
    with pytest.raises(MissingDependency, match=r"pip install 'treadle\[llm\]'"):
        make_client(Settings(anthropic_api_key="k"), 1)
    with pytest.raises(MissingDependency):
        use_llm(Engine("memory://", settings=Settings()))


async def test_a_custom_client_may_be_async_or_sync(server):
    for client in (
        anthropic.AsyncAnthropic(api_key="mine", base_url=server.url, max_retries=0),
        anthropic.Anthropic(api_key="mine", base_url=server.url, max_retries=0),
    ):
        server.script(status(529, after=0.001), uses((TARGET, GOOD)))
        engine = Engine("memory://", settings=Settings())
        use_llm(engine, client=client)
        async with engine, engine.worker():
            assert (await run_of(engine))[1] == OUTPUTS
    assert set(server.keys) == {"mine"}


async def test_invalid_options_are_refused():
    engine = Engine("memory://", settings=Settings(llm_prices="{"))
    with pytest.raises(InvalidInput, match="TREADLE_LLM_PRICES"):
        use_llm(engine)
    engine = Engine("memory://", settings=Settings())
    for options in ({"max_turns": 0}, {"max_retries": -1}, {"timeout": 0}, {"model": ""}):
        with pytest.raises(InvalidInput):
            use_llm(engine, **options)
    async with engine:
        for budget in (-1, float("nan"), "5", True):
            with pytest.raises(InvalidInput, match="dollars"):
                await engine.start_run(FLOW, "desk.Sort", {"letter": "x"}, budget=budget)


async def test_a_start_that_makes_no_run_leaves_no_budget_behind(server, tmp_path: Path):
    async with desk(server, f"sqlite:///{tmp_path / 'treadle.db'}") as engine:
        server.script(uses((TARGET, GOOD)))
        first = await engine.start_run(FLOW, "desk.Sort", {"letter": "x"}, budget=1, idempotency_key="once")
        again = await engine.start_run(FLOW, "desk.Sort", {"letter": "x"}, budget=2, idempotency_key="once")
        with pytest.raises(InvalidInput):
            await engine.start_run(FLOW, "desk.Sort", {"wrong": 1}, budget=3)
        await engine.run_result(first, timeout=BOUND)
        assert (again.id, again.created) == (first.id, False)
        assert (await engine.kernel.store.usage.find_budget(first.id)).limit_micros == 1_000_000
    with sqlite3.connect(tmp_path / "treadle.db") as connection:
        assert connection.execute("select count(*) from llm_budgets").fetchone() == (1,)
    connection.close()
