"""Every duration of the Python interface: a value that is none is refused with a code and a short message, at the call."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engines import make_engine

from treadle import ApprovalRequest, Engine, RetryPolicy
from treadle.model.errors import TreadleError

VALUES = [10**400, 10**5000, -(10**400), float("nan"), float("inf"), -1.0, "soon", object(), []]


class Service:
    def start(self, payload: Any, ctx: Any) -> None: ...

    def poll(self, job: str, ctx: Any) -> None: ...


async def _work(engine: Engine, **options: Any) -> None:
    async with engine.worker(**options):
        pass


def _options(call: Callable[..., Any], *names: str, **more: Any) -> list[Callable[[Any], Any]]:
    return [lambda value, name=name: call(**(more | {name: value})) for name in names]


def _calls(engine: Engine, folder: str) -> list[Callable[[Any], Any]]:
    lazily = Engine("memory://")
    schedule = {"name": "s", "task": "t", "every": 60, "catch_up": "window", "catch_up_window": 60}
    return [
        *_options(engine.enqueue, "delay", "idempotency_for", "timeout", "progress_every", "deadline", name="t"),
        *_options(engine.enqueue, "priority", "limit", name="t", limit_key="k"),
        *_options(engine.schedules.create, "every", "catch_up_window", "grace", "jitter", "timeout", **schedule),
        *_options(engine.watchers.create, "every", "settle", "fetch_timeout", "timeout", name="w", task="t", path=folder),
        *_options(lambda **options: _work(engine, **options), "lease", "grace", "poll_interval"),
        *_options(lambda **options: lazily.handler("h", **options)(lambda: None), "timeout", "progress_every"),
        *_options(lambda **options: lazily.specialist("s", Service(), **options), "timeout", "deadline"),
        *_options(lambda **options: lazily.goals.gate("g", **options)(lambda bundle: None), "timeout"),
        *_options(RetryPolicy.of, "first", "longest", "factor", "jitter", retries=1),
        *_options(RetryPolicy, "retries", "first_for", "cap_for", "factor", "jitter"),
        *_options(lambda **o: ApprovalRequest.of("t", **o), "expires", "remind_after", "remind_every", "escalate_after"),
        *_options(engine.kernel.tokens.create, "expires", name="t", scopes=("read",)),
        *_options(engine.kernel.reads.desired_workers, "target_latency", "concurrency", "minimum"),
        *_options(
            lambda **options: engine.start_run([("a", "workflow W() => (x: Long) andThen { yield W(x = 1) }")], **options), "budget"
        ),
    ]


async def test_a_value_that_is_not_a_duration_is_refused_with_a_code(tmp_path: Path) -> None:
    async with make_engine("memory://") as engine:
        task, run = await engine.enqueue("t"), await engine.start_function("f", version=1)
        calls = _calls(engine, str(tmp_path))
        calls += _options(lambda **options: engine.result(task, **options), "timeout")
        calls += _options(lambda **options: engine.run_result(run, **options), "timeout")
        for call in calls:
            for value in VALUES:
                refused = await _refusal(call, value)
                assert refused is not None, (inspect.getclosurevars(call).nonlocals, value)
                assert refused.code
                assert len(str(refused)) < 500


async def _refusal(call: Callable[[Any], Any], value: Any) -> TreadleError | None:
    try:
        done = call(value)
        if inspect.isawaitable(done):
            await done
    except TreadleError as error:
        return error
    return None
