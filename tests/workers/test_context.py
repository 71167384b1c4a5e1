"""The context that a handler receives."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.limits import BOUND
from tests.workers.harness import context

from treadle.model.errors import InvalidInput
from treadle.model.tasks import Claim, LogLine


def test_a_context_describes_the_attempt() -> None:
    ctx = context(attempt=2, claim_version=5, deadline_at=99, checkpoint='{"cursor":3}')
    assert (ctx.task_id, ctx.attempt, ctx.fencing_token, ctx.deadline_at) == (ctx.task.id, 2, 5, 99)
    assert ctx.checkpoint == {"cursor": 3}
    assert ctx.token == Claim(ctx.task.id, 5, "owner-1")
    assert context().checkpoint is None


def test_progress_is_kept_for_the_lease_renewer() -> None:
    ctx = context()
    assert not ctx.progressed
    ctx.progress()
    assert ctx.progressed
    assert json.loads(ctx.progress_text or "") == {}
    ctx.progress(1, "x" * 10_000)
    said = json.loads(ctx.progress_text or "")
    assert said["fraction"] == 1
    assert len(said["message"]) == 4096


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf")])
def test_progress_beyond_its_bounds_is_refused(fraction: float) -> None:
    ctx = context()
    with pytest.raises(InvalidInput, match="0 to 1"):
        ctx.progress(fraction)
    assert not ctx.progressed


def test_a_line_carries_its_task_its_time_and_its_details() -> None:
    lines: list[LogLine] = []
    ctx = context(lines, run_id="0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a78")
    ctx.log("read 3 pages", pages=3)
    ctx.log("slow", level="warning")
    assert [(line.task_id, line.at, line.level, line.message, line.details) for line in lines] == [
        (ctx.task.id, 1000, "info", "read 3 pages", '{"pages":3}'),
        (ctx.task.id, 1000, "warning", "slow", None),
    ]
    assert lines[0].run_id == ctx.task.run_id


@pytest.mark.parametrize("message", ["a\x00b", "half \ud800 pair", "x" * 10_000, 42, "grüß \N{ROCKET}"])
def test_any_message_becomes_text_that_any_store_takes(message: Any) -> None:
    lines: list[LogLine] = []
    context(lines).log(message)
    text = lines[0].message
    assert len(text) <= 4097
    assert "\x00" not in text
    assert text.encode()


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(InvalidInput, match="debug, info, success, warning, error"):
        context().log("x", level="fatal")


def test_details_that_are_not_json_are_refused() -> None:
    with pytest.raises(InvalidInput):
        context().log("x", thing=object())


def test_the_flag_is_unset_until_it_is_raised() -> None:
    ctx = context()
    assert not ctx.cancelled
    assert not ctx.wait_cancelled(0)
    ctx.cancel()
    assert ctx.cancelled
    assert ctx.wait_cancelled(0)


def test_the_cancel_flag_wakes_its_waiter_in_either_order() -> None:
    for _ in range(200):
        ctx = context()
        both = threading.Barrier(2)
        woken: list[bool] = []

        def wait(ctx: Any = ctx, both: threading.Barrier = both, woken: list[bool] = woken) -> None:
            both.wait()
            woken.append(ctx.wait_cancelled(BOUND))

        waiter = threading.Thread(target=wait)
        waiter.start()
        both.wait()
        ctx.cancel()
        waiter.join()
        assert woken == [True]
