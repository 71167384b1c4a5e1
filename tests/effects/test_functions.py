"""Effects of functions: announced before they are made, recorded with their step, and in doubt where nobody knows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.functions.driver import LEASE_FOR, Died, Process, Scene, function_scene

from treadle.model.errors import EffectFailed, RunFailed, StepFailed


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with function_scene() as opened:
        yield opened


class Service:
    """An external service that remembers the keys it was called with, and breaks on demand."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.errors: list[BaseException] = []

    def register(self, scene: Scene, **options: Any) -> None:
        @scene.engine.function("pay")
        async def pay(payload: dict[str, Any], ctx: Any) -> Any:
            async def charge() -> Any:
                self.calls.append((ctx.attempt_key, ctx.dedupe_key))
                if self.errors:
                    raise self.errors.pop(0)
                return {"receipt": len(self.calls)}

            paid = await ctx.effect("charge", charge, {"amount": 5}, **options)
            await ctx.sleep(1)
            return paid


async def _outcomes(scene: Scene, service: Service) -> list[str]:
    rows = await scene.engine.kernel.store.records.find_outcomes([key for key, _ in service.calls])
    found = {row.idempotency_key: row.status for row in rows}
    return [found[key] for key, _ in service.calls]


async def _doubts(scene: Scene) -> int:
    transitions = [
        transition
        for task in await scene.engine.kernel.reads.list_tasks(kind="function")
        for transition in await scene.engine.kernel.reads.list_transitions(task.id)
    ]
    return sum(transition.transition == "tool_call.unknown" for transition in transitions)


async def test_an_effect_is_made_once_and_its_outcome_is_kept(scene: Scene):
    service = Service()
    service.register(scene)
    started = await scene.engine.start_function("pay")
    process = scene.process(warm=0)
    await process.quiet()
    scene.clock.advance(1)
    await process.quiet()
    assert await scene.engine.run_result(started) == {"receipt": 1}
    assert await _outcomes(scene, service) == ["succeeded"]
    assert await _doubts(scene) == 0
    assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize(
    ("commit", "after", "calls", "doubts"),
    [(1, False, 1, 0), (1, True, 1, 1), (2, False, 2, 1), (2, True, 1, 0), (3, False, 1, 0), (3, True, 1, 0)],
)
async def test_an_effect_interrupted_by_a_crash_repeats_only_if_its_outcome_is_unknown(
    scene: Scene, commit: int, after: bool, calls: int, doubts: int
):
    service = Service()
    service.register(scene)
    started = await scene.engine.start_function("pay")
    await _die(scene, commit, after=after)
    process = scene.process()
    await process.quiet()
    scene.clock.advance(1)
    await process.quiet()
    assert await scene.engine.run_result(started) == {"receipt": calls}
    assert len(service.calls) == calls
    assert await _doubts(scene) == doubts
    keys, stable = zip(*service.calls, strict=True)
    assert (len(set(keys)), len(set(stable))) == (calls, 1)
    assert (await _outcomes(scene, service))[-1] == "succeeded"
    assert (await scene.engine.kernel.verify()).problems == ()


async def _die(scene: Scene, commit: int, *, after: bool) -> None:
    process: Process = scene.process(dies_at=commit, after=after)
    with pytest.raises(Died):
        await process.turn()
    process.die()
    scene.clock.advance(LEASE_FOR / 1000)


async def test_a_definite_failure_is_an_outcome_and_is_retried_under_a_new_key(scene: Scene):
    service = Service()
    service.errors = [EffectFailed("card declined")]
    service.register(scene, retry=1)
    started = await scene.engine.start_function("pay")
    process = scene.process(warm=0)
    await process.quiet()
    for _ in range(2):
        scene.clock.advance(1)
        await process.quiet()
    assert await scene.engine.run_result(started) == {"receipt": 2}
    assert await _outcomes(scene, service) == ["failed", "succeeded"]
    assert await _doubts(scene) == 0


async def test_an_inconclusive_failure_leaves_the_outcome_unknown(scene: Scene):
    service = Service()
    service.errors = [ConnectionError("no answer"), TimeoutError("no answer")]
    service.register(scene, retry=1)
    started = await scene.engine.start_function("pay")
    process = scene.process()
    await process.quiet()
    scene.clock.advance(1)
    await process.quiet()
    with pytest.raises(RunFailed, match="no answer"):
        await scene.engine.run_result(started)
    assert await _outcomes(scene, service) == ["unknown", "unknown"]
    assert await _doubts(scene) == 2  # also of the last attempt, which nothing repeats
    await scene.engine.runs.retry(started.id)
    await process.quiet()
    scene.clock.advance(1)
    await process.quiet()
    assert await scene.engine.run_result(started) == {"receipt": 3}
    assert len({key for key, _ in service.calls}) == 3
    assert len({key for _, key in service.calls}) == 1
    assert await _doubts(scene) == 2


async def test_the_outcome_of_a_timed_out_effect_is_unknown(scene: Scene):
    made: list[str] = []

    @scene.engine.function("pay")
    async def pay(payload: dict[str, Any], ctx: Any) -> Any:
        async def charge() -> str:
            made.append(ctx.attempt_key)
            if len(made) == 1:
                await asyncio.Event().wait()
            return "paid"

        return await ctx.effect("charge", charge, timeout=0.01, retry=1)

    started = await scene.engine.start_function("pay")
    process = scene.process(warm=0)
    await process.quiet()
    scene.clock.advance(1)
    await process.quiet()
    assert await scene.engine.run_result(started) == "paid"
    rows = {row.idempotency_key: row.status for row in await scene.engine.kernel.store.records.find_outcomes(made)}
    assert [rows[key] for key in made] == ["unknown", "succeeded"]
    assert await _doubts(scene) == 1


async def test_an_unstorable_response_fails_the_step_without_repeating_the_effect(scene: Scene):
    made: list[int] = []

    @scene.engine.function("odd")
    async def odd(payload: dict[str, Any], ctx: Any) -> Any:
        def effect() -> Any:
            made.append(1)
            return object()

        try:
            await ctx.effect("odd", effect, retry=5)
        except StepFailed as error:
            return error.error_code
        return None

    started = await scene.engine.start_function("odd")
    await scene.process().quiet()
    assert await scene.engine.run_result(started) == "invalid_effect_response"
    assert made == [1]


async def test_concurrent_effects_and_steps_have_distinct_keys(scene: Scene):
    keys: list[str] = []

    @scene.engine.function("many")
    async def many(payload: dict[str, Any], ctx: Any) -> Any:
        async def note() -> str:
            await asyncio.sleep(0)
            keys.append(ctx.attempt_key)
            return ctx.dedupe_key

        return len(set(await ctx.gather(*(ctx.effect("note", note) for _ in range(10)))))

    started = await scene.engine.start_function("many")
    await _die(scene, 5, after=True)
    await scene.process().quiet()
    assert await scene.engine.run_result(started) == 10
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("keyed", [False, True], ids=["without a key", "with a key"])
@pytest.mark.parametrize("between", ["nothing", "sleep", "retry", "gather"])
@pytest.mark.parametrize("warm", [0, 10], ids=["replayed", "warm"])
async def test_an_unknown_effect_that_is_requested_again_is_the_same_effect(scene: Scene, between: str, keyed: bool, warm: int):
    service = Service()
    options: dict[str, Any] = {"key": "k"} if keyed else {}
    if between == "retry":
        options["retry"] = 1

    @scene.engine.function("pay")
    async def pay(payload: dict[str, Any], ctx: Any) -> Any:
        async def charge() -> Any:
            service.calls.append((ctx.attempt_key, ctx.dedupe_key))
            if len(service.calls) < 6:
                raise TimeoutError("no answer")
            return {"receipt": len(service.calls)}

        while True:
            try:
                if between == "gather":
                    return (await ctx.gather(ctx.effect("charge", charge, {"amount": 5}, **options)))[0]
                return await ctx.effect("charge", charge, {"amount": 5}, **options)
            except StepFailed:
                if between == "sleep":
                    await ctx.sleep(1)

    started = await scene.engine.start_function("pay")
    process = scene.process(warm=warm)
    for _ in range(8):
        await process.quiet()
        scene.clock.advance(1)
    assert await scene.engine.run_result(started) == {"receipt": 6}
    keys, stable = zip(*service.calls, strict=True)
    assert (len(keys), len(set(keys)), len(set(stable))) == (6, 6, 1)
    assert await _outcomes(scene, service) == ["unknown"] * 5 + ["succeeded"]
    assert await _doubts(scene) == 5
    assert {each.attempt for each in (await scene.engine.kernel.effects.list(run_id=started.id)).effects} == {1, 2, 3, 4, 5}
    assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("caught", [False, True])
async def test_an_operators_retry_repeats_the_same_unknown_effect(scene: Scene, caught: bool):
    service = Service()
    service.errors = [TimeoutError("no answer") for _ in range(3)]

    @scene.engine.function("pay")
    async def pay(payload: dict[str, Any], ctx: Any) -> Any:
        async def charge() -> Any:
            service.calls.append((ctx.attempt_key, ctx.dedupe_key))
            if service.errors:
                raise service.errors.pop(0)
            return {"receipt": len(service.calls)}

        try:
            return await ctx.effect("charge", charge)
        except StepFailed:
            if not caught:
                raise
            return await ctx.effect("charge", charge)

    started = await scene.engine.start_function("pay")
    process = scene.process(warm=0)
    for _ in range(2 if caught else 3):
        await process.quiet()
        with pytest.raises(RunFailed, match="no answer"):
            await scene.engine.run_result(started)
        await scene.engine.runs.retry(started.id)
    await process.quiet()
    assert await scene.engine.run_result(started) == {"receipt": 4}
    keys, stable = zip(*service.calls, strict=True)
    assert (len(set(keys)), len(set(stable))) == (4, 1)
    assert await _doubts(scene) == 3
    assert (await scene.engine.kernel.verify()).problems == ()


async def test_unknown_effects_are_repeated_once_and_resolved_ones_never(scene: Scene):
    calls: list[str] = []

    @scene.engine.function("pay")
    async def pay(payload: dict[str, Any], ctx: Any) -> Any:
        async def charge() -> Any:
            calls.append(ctx.dedupe_key)
            if len(calls) < 3:
                raise TimeoutError("no answer")
            if len(calls) == 4:
                raise EffectFailed("declined")

        async def attempt() -> None:
            try:
                await ctx.effect("charge", charge)
            except StepFailed:
                pass

        await ctx.gather(attempt(), attempt())
        for _ in range(4):
            await attempt()

    started = await scene.engine.start_function("pay")
    await scene.process(warm=0).quiet()
    await scene.engine.run_result(started)
    first, second, *later = calls
    assert first != second
    assert later[:2] == sorted(later[:2], key=[first, second].index)
    assert len(set(calls)) == 4  # after a success or a definite failure, an equal effect is another one
    assert await _doubts(scene) == 2


async def test_a_function_that_dies_while_it_repeats_an_unknown_effect_repeats_the_same(scene: Scene):
    service = Service()
    service.errors = [TimeoutError("no answer")]

    @scene.engine.function("pay")
    async def pay(payload: dict[str, Any], ctx: Any) -> Any:
        async def charge() -> Any:
            service.calls.append((ctx.attempt_key, ctx.dedupe_key))
            if service.errors:
                raise service.errors.pop(0)
            return {"receipt": len(service.calls)}

        try:
            return await ctx.effect("charge", charge)
        except StepFailed:
            return await ctx.effect("charge", charge)

    started = await scene.engine.start_function("pay")
    await _die(scene, 5, after=False)  # after the second call, before its outcome is recorded
    assert len(service.calls) == 2
    await scene.process().quiet()
    assert await scene.engine.run_result(started) == {"receipt": 3}
    assert len({key for key, _ in service.calls}) == 3
    assert len({key for _, key in service.calls}) == 1
    assert await _doubts(scene) == 2


async def test_an_effect_response_over_the_limit_is_reported(scene: Scene):
    @scene.engine.function("big")
    async def big(payload: dict[str, Any], ctx: Any) -> Any:
        try:
            await ctx.effect("read", lambda: "x" * 2_000_000)
        except StepFailed as error:
            return str(error)

    started = await scene.engine.start_function("big")
    await scene.process().quiet()
    said = await scene.engine.run_result(started)
    assert "2000002 bytes as JSON; the limit is 1048576" in said
