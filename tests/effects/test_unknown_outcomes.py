"""`on_unknown`: effects whose outcome nobody knows, after a dead process and after an error that proves nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.engines import make_engine
from tests.functions.driver import LEASE_FOR, Died, Process, Scene, function_scene, until
from tests.limits import BOUND

from treadle import EffectUnknown, Engine, RetryPolicy
from treadle.model.errors import InvalidInput, RunFailed, TaskFailed
from treadle.model.names import APPROVAL

ERROR, DEATH = "an error that proves nothing", "the death of the process"


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with function_scene() as opened:
        yield opened


class Bank:
    """A function that pays by an effect of unknown outcome: the first call is made, and its answer is lost."""

    def __init__(self, scene: Scene, way: str, on_unknown: Any, *, catches: bool = False) -> None:
        self.scene, self.way = scene, way
        self.calls: list[str] = []

        @scene.engine.function("pay")
        async def pay(payload: dict[str, Any], ctx: Any) -> Any:
            async def charge() -> dict[str, int]:
                self.calls.append(ctx.dedupe_key)
                if len(self.calls) == 1 and way == ERROR:
                    raise ConnectionError("gone")
                return {"receipt": len(self.calls)}

            try:
                paid = await ctx.effect("charge", charge, {"amount": 5}, retry=RetryPolicy.of(2, first=1), on_unknown=on_unknown)
            except EffectUnknown as error:
                if not catches:
                    raise
                paid = str(error)
            await ctx.sleep(1)
            return paid

    async def until_unknown(self, process: Process) -> str:
        """Start it and let its outcome become unknown; the run's id."""
        started = await self.scene.engine.start_function("pay")
        if self.way == DEATH:
            dying = self.scene.process(dies_at=2)
            with pytest.raises(Died):
                await dying.turn()
            dying.die()
            self.scene.clock.advance(LEASE_FOR / 1000)
        await process.quiet()
        return started.id

    async def result(self, process: Process, run_id: str) -> Any:
        for _ in range(3):
            self.scene.clock.advance(2)
            await process.quiet()
        return await self.scene.engine.run_result(run_id)


@pytest.mark.parametrize("way", [ERROR, DEATH])
async def test_the_reaction_repeat_uses_the_same_dedupe_key(scene: Scene, way: str):
    bank = Bank(scene, way, "repeat")
    process = scene.process(warm=0)
    run_id = await bank.until_unknown(process)
    assert await bank.result(process, run_id) == {"receipt": 2}
    assert len(bank.calls) == 2
    assert len(set(bank.calls)) == 1


@pytest.mark.parametrize("catches", [True, False])
@pytest.mark.parametrize("way", [ERROR, DEATH])
async def test_the_reaction_fail_records_its_error_and_an_operators_retry_repeats(scene: Scene, way: str, catches: bool):
    bank = Bank(scene, way, "fail", catches=catches)
    process = scene.process(warm=0)
    run_id = await bank.until_unknown(process)
    if catches:
        assert "treadle effects list --run" in await bank.result(process, run_id)  # replayed once: the same error
        assert len(bank.calls) == 1
        return
    with pytest.raises(RunFailed, match="unknown whether the effect charge happened"):
        await bank.result(process, run_id)
    assert [each.run_id for each in (await scene.engine.kernel.effects.list(run_id=run_id)).effects] == [run_id]
    await scene.engine.runs.retry(run_id)
    await process.quiet()
    assert await bank.result(process, run_id) == {"receipt": 2}
    assert len(set(bank.calls)) == 1


@pytest.mark.parametrize("answer", ["repeat", "it happened", "no", "a typo"])
@pytest.mark.parametrize("way", [ERROR, DEATH])
async def test_the_reaction_ask_waits_for_a_person(scene: Scene, way: str, answer: str):
    bank = Bank(scene, way, "ask", catches=True)
    process = scene.process(warm=0)
    run_id = await bank.until_unknown(process)
    assert len(bank.calls) == 1
    assert "a decision on" in (why := (await scene.engine.why(run_id)).text)
    assert "next attempt" not in why
    (question,) = await process.claim(APPROVAL)
    context = (await scene.engine.kernel.value_store.unpack(question.payload))["context"]
    assert (context["action"], context["request"], context["dedupe_key"]) == ("charge", {"amount": 5}, bank.calls[0])
    if answer == "no":
        await process.fail(question, "Denied.")
    else:
        edits = {"it happened": {"response": {"receipt": 77}}, "a typo": {"respons": {"receipt": 77}}}.get(answer, {})
        await process.settle(question, {"by": "Ada", "reason": None, "context": context | edits})
    await process.quiet()
    result = await bank.result(process, run_id)
    if answer == "repeat":
        assert result == {"receipt": 2}
        assert len(set(bank.calls)) == 1
    else:
        assert len(bank.calls) == 1
        assert result == {"receipt": 77} if answer == "it happened" else "not repeated" in result
    assert (await scene.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("edits", [{"respons": 7}, {"response": 7, "note": 1}, {"request": 7}, {}])
async def test_an_invalid_edit_is_refused_without_a_repeated_call(edits: dict[str, Any]):
    calls: list[int] = []
    async with make_engine("memory://") as engine:

        @engine.function("pay")
        async def pay(payload: dict[str, Any], ctx: Any) -> Any:
            def charge() -> None:
                calls.append(1)
                raise ConnectionError("gone")

            return await ctx.effect("charge", charge, on_unknown="ask")

        started = await engine.start_function("pay")

        async def asked() -> bool:
            return bool((await engine.approvals.list(run_id=started.id)).approvals)

        async with engine.worker():
            await until(asked)
            (approval,) = (await engine.approvals.list(run_id=started.id)).approvals
            with pytest.raises(InvalidInput, match="must have exactly the key 'response'"):
                await engine.approvals.decide(approval.id, "approve", actor="Ada", edits=edits)
            assert ((await engine.approvals.list(run_id=started.id)).approvals) == [approval]
            await engine.approvals.decide(approval.id, "approve", actor="Ada", edits={"response": 8})
            assert await engine.run_result(started, timeout=BOUND) == 8
    assert calls == [1]


async def test_a_person_decides_on_an_unknown_effect():
    async with make_engine("memory://") as engine:

        @engine.function("pay")
        async def pay(payload: dict[str, Any], ctx: Any) -> Any:
            def charge() -> None:
                raise ConnectionError("gone")

            try:
                await ctx.effect("charge", charge, on_unknown="ask")
            except EffectUnknown as error:
                return str(error)

        started = await engine.start_function("pay")

        async def asked() -> bool:
            return bool((await engine.approvals.list(run_id=started.id)).approvals)

        async with engine.worker():
            await until(asked)
            (approval,) = (await engine.approvals.list(run_id=started.id)).approvals
            await engine.approvals.decide(approval.id, "deny", actor="Ada", reason="it is in the books")
            assert "it is in the books" in await engine.run_result(started, timeout=BOUND)


async def test_a_handler_that_must_not_repeat_fails_until_an_operator_retries_it():
    calls: list[int] = []
    async with make_engine("memory://") as engine:

        @engine.handler("pay", retry=RetryPolicy.of(3, first=0.01))
        async def pay(payload: Any, ctx: Any) -> Any:
            def charge() -> int:
                calls.append(1)
                if len(calls) == 1:
                    raise ConnectionError("gone")
                return len(calls)

            return {"receipt": await ctx.effect("charge", charge, on_unknown="fail")}

        async with engine.worker():
            task = await engine.enqueue("pay")
            with pytest.raises(TaskFailed, match="treadle effects list --task") as failed:
                await engine.result(task, timeout=BOUND)
            assert failed.value.error_code == "effect_unknown"
            assert calls == [1]
            await engine.kernel.queue.retry(task.id, actor="Ada")
            assert await engine.result(task, timeout=BOUND) == {"receipt": 2}


@pytest.mark.parametrize("given", ["wait", None, 3])
async def test_an_unknown_reaction_is_refused(given: Any):
    engine = Engine("memory://")
    errors: list[str] = []

    @engine.function("pay")
    async def pay(payload: dict[str, Any], ctx: Any) -> None:
        try:
            await ctx.effect("charge", lambda: None, on_unknown=given)
        except InvalidInput as error:
            errors.append(str(error))

    async with engine, engine.worker():
        await engine.run_result(await engine.start_function("pay"), timeout=BOUND)
    assert errors[0].startswith("on_unknown is one of ask, fail, repeat, not ")
