"""Values of user code that used to keep a task from being settled, or were reported misleadingly (D70)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import make_engine, url_of
from tests.functions.driver import until
from tests.limits import BOUND
from tests.sizes import POSTGRES

from treadle import Engine, RetryPolicy
from treadle.model.errors import InvalidInput, NonRetryable, RunFailed, TaskFailed
from treadle.model.external import ExternalProductionFailure, ExternalProductionHandle, InvalidHandle, Production, check_handle
from treadle.model.tasks import progress_text
from treadle.model.values import PAYLOAD_LIMIT


@pytest.fixture(params=["memory", POSTGRES])
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with make_engine(url_of(request.param, request, tmp_path)) as opened:
        yield opened
        assert (await opened.kernel.verify()).problems == ()


class Render:
    """A specialist that returns the same production for every job."""

    def __init__(self, production: Any, *, polled: bool) -> None:
        self.production, self.polled = production, polled

    def start(self, payload: dict[str, Any], ctx: Any) -> Any:
        return ExternalProductionHandle("job", 0.001) if self.polled else self.production

    def poll(self, external_job_id: str, ctx: Any) -> Any:
        return self.production


@pytest.mark.postgres
async def test_one_production_object_completes_two_tasks(engine: Engine) -> None:
    engine.specialist("render", Render(Production({"n": 1}), polled=False))
    async with engine.worker():
        for _ in range(2):
            assert await engine.result(await engine.enqueue("render"), timeout=BOUND) == {"n": 1}


async def test_one_production_object_resolves_two_jobs_by_callback(engine: Engine) -> None:
    tokens: list[str] = []

    class Service:
        def start(self, payload: dict[str, Any], ctx: Any) -> ExternalProductionHandle:
            tokens.append(ctx.callback_token)
            return ExternalProductionHandle(f"job {len(tokens)}", 3600)

        def poll(self, external_job_id: str, ctx: Any) -> None: ...

    engine.specialist("render", Service())
    production = Production({"n": 1})
    async with engine.worker():
        for number in range(2):
            task = await engine.enqueue("render")
            await until(lambda number=number: _waits(engine, tokens, number))  # type: ignore[misc]
            await engine.kernel.external_jobs.resolve(tokens[number], production)
            assert await engine.result(task, timeout=BOUND) == {"n": 1}
            assert (await engine.kernel.external_jobs.get(task)).render_event_object_id is not None
    jobs = (await engine.kernel.external_jobs.list(every=True)).jobs
    assert len({job.render_event_object_id for job in jobs}) == 2


async def _waits(engine: Engine, tokens: list[str], number: int) -> bool:
    return len(tokens) > number and bool(await engine.kernel.reads.list_tasks(kind="handler", states=("awaiting_external",)))


async def test_a_production_of_a_poll_that_is_not_json_fails_the_job(engine: Engine) -> None:
    engine.specialist("render", Render({"n": {1, 2}}, polled=True))
    async with engine.worker():
        with pytest.raises(TaskFailed, match="not JSON"):
            await engine.result(await engine.enqueue("render"), timeout=BOUND)


@pytest.mark.parametrize("code", [7, "", "x" * 1000])
async def test_a_failure_of_a_poll_with_an_invalid_code_fails_the_job(engine: Engine, code: Any) -> None:
    engine.specialist("render", Render(ExternalProductionFailure("out of film", code), polled=True))
    async with engine.worker():
        with pytest.raises(TaskFailed, match="out of film"):
            await engine.result(await engine.enqueue("render"), timeout=BOUND)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, "x" * PAYLOAD_LIMIT], ids=["nan", "set", "large"])
async def test_a_payload_of_continue_as_new_that_cannot_be_stored_fails_the_run(engine: Engine, value: Any) -> None:
    @engine.function("loop")
    async def loop(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.continue_as_new({"v": value})

    async with engine.worker():
        run = await engine.start_function("loop")
        with pytest.raises(RunFailed, match="continue_as_new"):
            await engine.run_result(run.id, timeout=BOUND)


@pytest.mark.parametrize("code", [7, "a\x00b", "\ud800"])
async def test_an_error_code_that_cannot_be_stored_fails_the_task_in_its_claim(engine: Engine, code: Any) -> None:
    @engine.handler("work")
    async def work() -> None:
        raise NonRetryable("the reason", code)

    async with engine.worker():
        task = await engine.enqueue("work")
        with pytest.raises(TaskFailed, match="the reason"):
            await engine.result(task, timeout=BOUND)
    assert (await engine.kernel.reads.get_task(task.id)).claim_version == 1


@pytest.mark.parametrize("text", ["a\x00b", "\ud800"])
async def test_a_step_error_with_odd_characters_keeps_its_retries_and_its_type(engine: Engine, text: str) -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(1)
        raise LookupError(text)

    @engine.function("steps")
    async def steps(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.step(fail, retry=RetryPolicy(retries=2, first_for=1, cap_for=1))

    async with engine.worker():
        run = await engine.start_function("steps")
        with pytest.raises(RunFailed):
            await engine.run_result(run.id, timeout=BOUND)
    assert len(calls) == 3
    (step,) = await engine.kernel.functions.recorded(run.id)
    assert step.error is not None
    assert step.error["type"] == "LookupError"


async def test_a_function_may_return_as_much_as_a_step(engine: Engine) -> None:
    @engine.function("large")
    async def large(payload: dict[str, Any], ctx: Any) -> str:
        return "x" * (PAYLOAD_LIMIT - 2)

    async with engine.worker():
        run = await engine.start_function("large")
        assert len(await engine.run_result(run.id, timeout=BOUND)) == PAYLOAD_LIMIT - 2


async def test_a_response_that_is_too_large_is_reported_as_that(engine: Engine) -> None:
    @engine.function("effect")
    async def effect(payload: dict[str, Any], ctx: Any) -> None:
        await ctx.effect("act", lambda: "x" * PAYLOAD_LIMIT)

    async with engine.worker():
        run = await engine.start_function("effect")
        with pytest.raises(RunFailed, match="bytes as JSON; the limit is"):
            await engine.run_result(run.id, timeout=BOUND)


async def test_a_sync_handler_that_raises_stop_iteration_fails(engine: Engine) -> None:
    @engine.handler("first")
    def first() -> None:
        next(iter([]))

    async with engine.worker():
        task = await engine.enqueue("first")
        await until(lambda: _finished(engine, task.id))
    assert (await engine.kernel.reads.get_task(task.id)).state == "failed"


async def _finished(engine: Engine, task_id: str) -> bool:
    return (await engine.kernel.reads.get_task(task_id)).finished


@pytest.mark.parametrize(
    ("handle", "code"),
    [
        (ExternalProductionHandle("job", 10**400), "invalid_polling_interval"),
        (ExternalProductionHandle("job", 1, 7), "invalid_progress_hint"),  # type: ignore[arg-type]
        (ExternalProductionHandle("job", 1, None, True), "invalid_progress"),
        (ExternalProductionHandle("job", True), "invalid_polling_interval"),
    ],
)
def test_a_handle_is_rejected_with_the_code_of_its_invalid_part(handle: ExternalProductionHandle, code: str) -> None:
    with pytest.raises(InvalidHandle) as caught:
        check_handle(handle)
    assert caught.value.reason == code


def test_a_bool_is_not_progress() -> None:
    with pytest.raises(InvalidInput, match="fraction from 0 to 1"):
        progress_text(True, None)
