"""Effects of plain handlers, async and sync: made once where that can be known, and told where it cannot."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, Refusing, make_engine, url_of
from tests.limits import BOUND

from treadle import (
    ApprovalRequest,
    AwaitingApproval,
    Context,
    EffectFailed,
    EffectUnknown,
    Engine,
    ExternalProductionHandle,
    NonRetryable,
    RetryPolicy,
    Specialist,
    StepFailed,
    TaskFailed,
    Waiting,
)
from treadle.engine.codecs import Zlib
from treadle.kernel.effects.decide import Effect
from treadle.model.errors import ClaimLost
from treadle.settings import Settings

AT_ONCE = RetryPolicy.of(3, first=0)


@pytest.fixture(params=ALL)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, request, tmp_path)


@pytest.fixture
def engine(url: str) -> Engine:
    return make_engine(url)


class Declined(EffectFailed):
    """The service said no: nothing was done."""


class Service:
    """An external service: it does what it is asked each time, and remembers under which keys."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.errors: list[BaseException] = []

    def charge(self, ctx: Context) -> dict[str, Any]:
        self.calls.append((ctx.attempt_key, ctx.dedupe_key))
        if self.errors:
            raise self.errors.pop(0)
        return {"receipt": len(self.calls)}


async def transitions_of(engine: Engine, task_id: str) -> list[str]:
    return [transition.transition for transition in await engine.kernel.reads.list_transitions(task_id)]


async def outcomes(engine: Engine, task_id: str, action: str, request: Any, attempts: int) -> list[str]:
    task = await engine.kernel.reads.get_task(task_id)
    keys = Effect.of(task.id, task.step_id, task.root_id, action, request).keys(attempts)
    found = {row.idempotency_key: row.status for row in await engine.kernel.store.records.find_outcomes(keys)}
    return [found.get(key, "none") for key in reversed(keys)]


async def result_of(engine: Engine, name: str, payload: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
    async with engine, engine.worker():
        task = await engine.enqueue(name, payload)
        return task.id, await engine.result(task, timeout=BOUND)


@pytest.mark.postgres
async def test_an_effect_is_made_once_although_the_handler_is_tried_again(engine: Engine) -> None:
    service = Service()

    @engine.handler("pay", retry=AT_ONCE)
    async def pay(payload: Any, ctx: Context) -> dict[str, Any]:
        receipt = await ctx.effect("charge", lambda: service.charge(ctx), {"amount": 5})
        if ctx.attempt < 3:
            raise RuntimeError("afterwards")
        return {"receipt": receipt, "attempt": ctx.attempt}

    async with engine, engine.worker():
        task = await engine.enqueue("pay")
        assert await engine.result(task, timeout=BOUND) == {"receipt": {"receipt": 1}, "attempt": 3}
        assert await outcomes(engine, task.id, "charge", {"amount": 5}, 3) == ["succeeded", "none", "none"]
        assert await transitions_of(engine, task.id) == ["retry", "retry", "succeed"]
        key = Effect.of(task.id, None, task.id, "charge", {"amount": 5})
        assert service.calls == [(key.key(1), key.dedupe_key)]
        assert (await engine.kernel.verify()).holds


async def test_an_async_effect_is_awaited_and_sees_its_keys_everywhere(engine: Engine) -> None:
    seen: list[str] = []

    @engine.handler("pay")
    async def pay(payload: Any, ctx: Context) -> dict[str, Any]:
        async def charge() -> list[str]:
            await asyncio.sleep(0)
            seen.append(await asyncio.to_thread(lambda: ctx.attempt_key))
            return [ctx.dedupe_key]

        both = await asyncio.gather(ctx.effect("charge", charge, 1), ctx.effect("charge", charge, 2))
        return {"keys": [key for keys in both for key in keys]}

    _, result = await result_of(engine, "pay")
    assert len(set(seen)) == len(set(result["keys"])) == 2


async def test_a_sync_handler_makes_effects_in_its_thread(engine: Engine) -> None:
    service = Service()
    threads: list[str] = []

    @engine.handler("pay", retry=AT_ONCE)
    def pay(payload: Any, ctx: Context) -> dict[str, Any]:
        def charge() -> Any:
            threads.append(threading.current_thread().name)
            return service.charge(ctx)

        receipt = ctx.effect_blocking("charge", charge)
        if ctx.attempt == 1:
            raise RuntimeError("afterwards")
        return {"receipt": receipt}

    _, result = await result_of(engine, "pay")
    assert result == {"receipt": {"receipt": 1}}
    assert threads == [threads[0]]
    assert threads[0].startswith("treadle-handler")


async def test_a_definite_failure_is_retried_by_policy_under_a_new_key_without_doubt(engine: Engine) -> None:
    service = Service()
    service.errors = [Declined("declined")]

    @engine.handler("pay", retry=AT_ONCE)
    async def pay(payload: Any, ctx: Context) -> Any:
        return await ctx.effect("charge", lambda: service.charge(ctx))

    async with engine, engine.worker():
        task = await engine.enqueue("pay")
        assert await engine.result(task, timeout=BOUND) == {"receipt": 2}
        assert await outcomes(engine, task.id, "charge", None, 2) == ["failed", "succeeded"]
        assert await transitions_of(engine, task.id) == ["retry", "succeed"]
    (first, one), (second, other) = service.calls
    assert first != second
    assert one == other


@pytest.mark.parametrize(
    "error", [TimeoutError("slow"), ConnectionResetError("gone"), ValueError("unreadable answer"), EffectUnknown("who knows")]
)
async def test_an_inconclusive_error_leaves_the_effect_outcome_unknown(engine: Engine, error: Exception) -> None:
    service = Service()
    service.errors = [error]

    @engine.handler("pay", retry=AT_ONCE)
    async def pay(payload: Any, ctx: Context) -> Any:
        return await ctx.effect("charge", lambda: service.charge(ctx))

    async with engine, engine.worker():
        task = await engine.enqueue("pay")
        assert await engine.result(task, timeout=BOUND) == {"receipt": 2}
        assert await outcomes(engine, task.id, "charge", None, 2) == ["unknown", "succeeded"]
        transitions = await engine.kernel.reads.list_transitions(task.id)
        assert [transition.transition for transition in transitions] == ["tool_call.unknown", "retry", "succeed"]
        said = json.loads(transitions[0].data or "")
        assert (said["action"], said["found"], said["attempt"]) == ("charge", "unknown", 1)
        assert (said["idempotency_key"], said["dedupe_key"]) == service.calls[0]
        assert (await engine.kernel.verify()).holds
    assert len({dedupe for _, dedupe in service.calls}) == 1


async def test_an_unknown_effect_requested_again_in_the_attempt_is_the_same_effect(engine: Engine) -> None:
    service = Service()
    service.errors = [TimeoutError("slow")]

    @engine.handler("pay")
    async def pay(payload: Any, ctx: Context) -> Any:
        try:
            return await ctx.effect("charge", lambda: service.charge(ctx))
        except TimeoutError:
            return await ctx.effect("charge", lambda: service.charge(ctx))

    async with engine, engine.worker():
        task = await engine.enqueue("pay")
        assert await engine.result(task, timeout=BOUND) == {"receipt": 2}
        assert await transitions_of(engine, task.id) == ["tool_call.unknown", "succeed"]
    assert_repeated(service, 2)


def assert_repeated(service: Service, count: int) -> None:
    """The service was called that often for one effect: each time under a new idempotency key, and the same dedupe key."""
    assert len(service.calls) == len({key for key, _ in service.calls}) == count
    assert len({dedupe for _, dedupe in service.calls}) == 1


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize("between", ["wait", "approval", "error caught", "retry", "all of them"])
async def test_every_attempt_at_an_unknown_effect_has_a_new_idempotency_key(engine: Engine, between: str, blocking: bool) -> None:
    service = Service()
    ways = ["wait", "error caught", "retry", "wait", "approval", "error caught"] if between == "all of them" else [between] * 3
    service.errors = [TimeoutError("slow") for _ in ways]

    def after(error: TimeoutError, way: str) -> Any:
        if way == "retry":
            raise error
        return Waiting(1) if way == "wait" else AwaitingApproval(ApprovalRequest.of("Again?"))

    async def pay(payload: Any, ctx: Context) -> Any:
        while True:
            try:
                return await ctx.effect("charge", lambda: service.charge(ctx))
            except TimeoutError as error:
                if (way := ways.pop(0)) != "error caught":
                    return after(error, way)

    def pay_blocking(payload: Any, ctx: Context) -> Any:
        while True:
            try:
                return ctx.effect_blocking("charge", lambda: service.charge(ctx))
            except TimeoutError as error:
                if (way := ways.pop(0)) != "error caught":
                    return after(error, way)

    engine.handler("pay", retry=RetryPolicy.of(9, first=0))(pay_blocking if blocking else pay)
    calls, approvals = len(ways) + 1, ways.count("approval")
    async with engine, engine.worker():
        task = await engine.enqueue("pay")
        result = asyncio.ensure_future(engine.result(task, timeout=BOUND))
        for _ in range(approvals):
            async with asyncio.timeout(BOUND):
                while not (pending := (await engine.approvals.list()).approvals):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            await engine.approvals.decide(pending[0].id, "approve", actor="ada")
        assert await result == {"receipt": calls}
        assert (await transitions_of(engine, task.id)).count("tool_call.unknown") == calls - 1
        assert (await engine.kernel.verify()).holds
    assert_repeated(service, calls)


async def test_equal_effects_of_one_attempt_are_distinct(engine: Engine) -> None:
    service = Service()

    @engine.handler("pay", retry=AT_ONCE)
    async def pay(payload: Any, ctx: Context) -> dict[str, Any]:
        receipts = [(await ctx.effect("charge", lambda: service.charge(ctx), 1))["receipt"] for _ in range(3)]
        if ctx.attempt == 1:
            raise RuntimeError("afterwards")
        return {"receipts": receipts}

    _, result = await result_of(engine, "pay")
    assert result == {"receipts": [1, 2, 3]}
    assert len({dedupe for _, dedupe in service.calls}) == 3


async def test_reentering_an_attempt_after_a_wait_reuses_recorded_effects(engine: Engine) -> None:
    service = Service()

    @engine.handler("pay")
    async def pay(payload: Any, ctx: Context) -> Any:
        receipt = await ctx.effect("charge", lambda: service.charge(ctx))
        return {"receipt": receipt, "attempt": ctx.attempt} if ctx.checkpoint else Waiting(1, checkpoint={"once": True})

    _, result = await result_of(engine, "pay")
    assert result == {"receipt": {"receipt": 1}, "attempt": 1}


async def test_effect_keys_distinguish_effects_of_one_name(engine: Engine) -> None:
    service = Service()

    @engine.handler("pay", retry=AT_ONCE)
    async def pay(payload: Any, ctx: Context) -> dict[str, Any]:
        receipts = [await ctx.effect("charge", lambda: service.charge(ctx), key=key) for key in ("first", "second")]
        if ctx.attempt == 1:
            raise RuntimeError("afterwards")
        return {"receipts": receipts}

    _, result = await result_of(engine, "pay")
    assert result == {"receipts": [{"receipt": 1}, {"receipt": 2}]}


async def test_a_second_use_of_an_effect_key_is_an_error(engine: Engine) -> None:
    @engine.handler("pay")
    async def pay(payload: Any, ctx: Context) -> None:
        await ctx.effect("charge", dict, key="k")
        await ctx.effect("charge", dict, key="k")

    async with engine, engine.worker():
        with pytest.raises(TaskFailed, match="'k' of charge was already used in this attempt"):
            await engine.result(await engine.enqueue("pay"), timeout=BOUND)


async def test_a_large_response_is_returned_complete(url: str) -> None:
    engine = Engine(url, settings=Settings(), codec=Zlib())
    calls: list[int] = []

    @engine.handler("pay", retry=AT_ONCE)
    async def pay(payload: Any, ctx: Context) -> dict[str, Any]:
        def read() -> list[str]:
            calls.append(1)
            return ["x" * 100] * 500

        answer = await ctx.effect("read", read)
        if ctx.attempt == 1:
            raise RuntimeError("afterwards")
        return {"length": len(answer)}

    _, result = await result_of(engine, "pay")
    assert (result, calls) == ({"length": 500}, [1])


async def test_a_response_that_is_not_json_fails_the_task_without_repeating_the_effect(engine: Engine) -> None:
    calls: list[int] = []

    @engine.handler("pay", retry=AT_ONCE)
    async def pay(payload: Any, ctx: Context) -> None:
        await ctx.effect("charge", lambda: calls.append(1) or object())

    async with engine, engine.worker():
        task = await engine.enqueue("pay")
        with pytest.raises(TaskFailed) as raised:
            await engine.result(task, timeout=BOUND)
        assert raised.value.error_code == "invalid_effect_response"
        await engine.retry(task)
        with pytest.raises(TaskFailed, match="cannot be stored"):
            await engine.result(task, timeout=BOUND)
        assert await outcomes(engine, task.id, "charge", None, 1) == ["succeeded"]
    assert calls == [1]


async def test_an_operators_retry_makes_a_failed_effect_again(engine: Engine) -> None:
    service = Service()
    service.errors = [NonRetryable("stolen", "card_stolen")]

    @engine.handler("pay", retry=AT_ONCE)
    async def pay(payload: Any, ctx: Context) -> Any:
        return await ctx.effect("charge", lambda: service.charge(ctx))

    async with engine, engine.worker():
        task = await engine.enqueue("pay")
        with pytest.raises(TaskFailed) as raised:
            await engine.result(task, timeout=BOUND)
        assert raised.value.error_code == "card_stolen"
        await engine.retry(task)
        assert await engine.result(task, timeout=BOUND) == {"receipt": 2}
        assert await transitions_of(engine, task.id) == ["fail", "requeue", "succeed"]


async def test_a_failure_that_a_lost_worker_recorded_is_that_failure_for_the_next(engine: Engine) -> None:
    """The first worker dies between recording that the effect failed and settling: the next attempt fails, and is retried."""
    service = Service()
    service.errors = [Declined("declined")]
    raised: list[str] = []
    stuck = asyncio.Event()

    @engine.handler("pay", retry=AT_ONCE)
    async def pay(payload: Any, ctx: Context) -> Any:
        try:
            return await ctx.effect("charge", lambda: service.charge(ctx))
        except Declined:
            stuck.set()
            await asyncio.Event().wait()  # it never gets to settle
        except EffectFailed as error:
            raised.append(str(error))
            raise

    async with engine, engine.worker() as host:
        task = await engine.enqueue("pay")
        await asyncio.wait_for(stuck.wait(), BOUND)
        await engine.kernel.store.tasks.expire_leases_of([host.owner_id])
        engine.kernel.committer.notify((await engine.kernel.store.tasks.wake(10)).queue_ids)
        assert await engine.result(task, timeout=BOUND) == {"receipt": 2}
        assert await transitions_of(engine, task.id) == ["expire", "retry", "succeed"]
        assert await outcomes(engine, task.id, "charge", None, 3) == ["failed", "none", "succeeded"]
    assert raised == ["The effect failed: declined (Declined)"]


async def test_a_worker_that_lost_its_claim_makes_no_effect(engine: Engine) -> None:
    service = Service()
    started, go, over = threading.Event(), threading.Event(), threading.Event()
    ended: list[str] = []

    @engine.handler("pay")
    def pay(payload: Any, ctx: Context) -> None:
        started.set()
        go.wait(BOUND)
        try:
            ctx.effect_blocking("charge", lambda: service.charge(ctx))
        except Exception as error:
            ended.append(type(error).__name__)
            raise
        finally:
            over.set()

    async with engine, engine.worker():
        task = await engine.enqueue("pay")
        assert await asyncio.to_thread(started.wait, BOUND)
        await engine.cancel(task)
        go.set()
        assert await asyncio.to_thread(over.wait, BOUND)
    assert (ended, service.calls) == (["ClaimLost"], [])


def isolated(payload: Any, ctx: Context) -> None:
    ctx.effect_blocking("charge", dict)


async def test_effects_are_unavailable_in_an_isolated_handler(engine: Engine) -> None:
    engine.handler("isolated", isolation="process", retry=AT_ONCE)(isolated)
    async with engine, engine.worker():
        with pytest.raises(TaskFailed, match="not isolation='process'") as raised:
            await engine.result(await engine.enqueue("isolated"), timeout=BOUND)
        assert raised.value.error_code == "effect_unavailable"


async def test_an_invalid_effect_is_refused_immediately(engine: Engine) -> None:
    @engine.handler("sync", retry=AT_ONCE)
    def sync(payload: Any, ctx: Context) -> None:
        ctx.effect("charge", dict)

    @engine.handler("async", retry=AT_ONCE)
    async def a_sync(payload: Any, ctx: Context) -> None:
        ctx.effect_blocking("charge", dict)

    @engine.handler("coroutine")
    async def coroutine(payload: Any, ctx: Context) -> None:
        await ctx.effect("charge", asyncio.sleep(0))  # type: ignore[arg-type]

    @engine.handler("outside")
    async def outside(payload: Any, ctx: Context) -> dict[str, Any]:
        return {"key": ctx.attempt_key}

    async with engine, engine.worker():
        for name, said in (
            ("sync", "use ctx.effect_blocking(...) in sync handlers"),
            ("async", "await ctx.effect(...) in async handlers"),
            ("coroutine", "takes a function, not a coroutine"),
            ("outside", "No effect is in progress"),
        ):
            with pytest.raises(TaskFailed, match=re.escape(said)):
                await engine.result(await engine.enqueue(name), timeout=BOUND)


async def test_an_unreadable_store_does_not_count_as_a_handler_failure() -> None:
    service = Service()
    refusing = Refusing(find_outcomes=2)
    engine = Engine("memory://", settings=Settings(), store_of=refusing.store_of)

    @engine.handler("charge")
    async def charge(payload: Any, ctx: Context) -> Any:
        return await ctx.effect("charge", lambda: service.charge(ctx))

    async with engine:
        task = await engine.enqueue("charge", {})
        await engine.pause(task)
        await engine.resume(task)  # it has a past: what is known of its effects is looked for
        async with engine.worker():
            assert await engine.result(task, timeout=BOUND) == {"receipt": 1}
    assert refusing.refusals == []


async def test_a_function_repeats_an_unknown_effect_after_an_approval(engine: Engine) -> None:
    service = Service()
    service.errors = [TimeoutError("slow")]

    @engine.function("pay")
    async def pay(payload: Any, ctx: Any) -> Any:
        try:
            return await ctx.effect("charge", lambda: service.charge(ctx), {"amount": 5})
        except StepFailed:
            await ctx.approval("Again?")
            return await ctx.effect("charge", lambda: service.charge(ctx), {"amount": 5})

    async with engine, engine.worker():
        run = await engine.start_function("pay")
        async with asyncio.timeout(BOUND):
            while not (pending := (await engine.approvals.list()).approvals):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await engine.approvals.decide(pending[0].id, "approve", actor="ada")
        assert await engine.run_result(run, timeout=BOUND) == {"receipt": 2}
        assert [each.attempt for each in (await engine.kernel.effects.list(run_id=run.id)).effects] == [1]
    assert_repeated(service, 2)


class Stuck:
    """Handlers and a function whose effect does not return."""

    def __init__(self, engine: Engine) -> None:
        self.begun = asyncio.Event()
        self.loop = asyncio.get_running_loop()
        self.released, self.fails = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        engine.handler("async")(self.handle)
        engine.handler("sync")(self.handle_blocking)
        engine.function("function")(self.run)

    async def wait(self) -> None:
        self.begun.set()
        await asyncio.Event().wait()

    async def handle(self, payload: Any, ctx: Context) -> None:
        await ctx.effect("charge", self.wait, {"amount": 5})

    def handle_blocking(self, payload: Any, ctx: Context) -> None:
        """Fail while the effect is in progress in another thread, as a sync handler does whose time runs out."""

        def wait() -> None:
            self.loop.call_soon_threadsafe(self.begun.set)
            self.released.wait(BOUND)

        def make() -> None:
            with suppress(ClaimLost):
                ctx.effect_blocking("charge", wait, {"amount": 5})

        self.threads.append(threading.Thread(target=make))
        self.threads[0].start()
        self.fails.wait(BOUND)
        raise NonRetryable("its time ran out")

    async def free(self) -> None:
        """Let the effect return."""
        self.released.set()
        for thread in self.threads:
            await asyncio.to_thread(thread.join, BOUND)

    async def run(self, payload: Any, ctx: Any) -> None:
        await ctx.effect("charge", self.wait, {"amount": 5})


async def start_stuck(engine: Engine, stuck: Stuck, name: str) -> str:
    """Start the work and wait until its effect has begun; return the task."""
    if name == "function":
        run = await engine.start_function("function")
        (task,) = await engine.kernel.reads.list_tasks(kind="function")
        assert task.run_id == run.id
    else:
        task = await engine.enqueue(name)
    await asyncio.wait_for(stuck.begun.wait(), BOUND)
    return task.id


@pytest.mark.parametrize(
    ("name", "ends_by", "transitions"),
    [
        ("async", "cancel", ["tool_call.unknown", "cancel"]),
        ("async", "expiry", ["tool_call.unknown", "expire"]),
        ("async", "stop", ["tool_call.unknown", "release"]),
        ("sync", "failure", ["tool_call.unknown", "fail"]),
        ("function", "cancel", ["tool_call.unknown", "cancel"]),
        ("function", "expiry", ["tool_call.unknown", "expire"]),
        ("function", "stop", ["tool_call.unknown", "release"]),
    ],
)
async def test_an_effect_in_progress_is_logged_as_unknown_when_its_claim_ends(
    engine: Engine, name: str, ends_by: str, transitions: list[str]
) -> None:
    async with engine:
        stuck = Stuck(engine)
        try:
            async with engine.worker(grace=0) as host:
                task_id = await start_stuck(engine, stuck, name)
                assert (await engine.kernel.effects.list()).effects == []
                if ends_by == "cancel" and name == "function":
                    await engine.runs.cancel((await engine.kernel.reads.get_task(task_id)).run_id or "")
                elif ends_by == "cancel":
                    await engine.cancel(task_id)
                elif ends_by == "expiry":
                    await engine.kernel.store.tasks.expire_leases_of([host.owner_id])
                    await engine.kernel.store.tasks.wake(10)
                elif ends_by == "failure":
                    stuck.fails.set()
                    with pytest.raises(TaskFailed, match="time ran out"):
                        await engine.result(task_id, timeout=BOUND)
                if ends_by != "stop":
                    assert (await transitions_of(engine, task_id))[:2] == transitions
            assert (await transitions_of(engine, task_id))[:2] == transitions
        finally:
            await stuck.free()
        (found,) = [each for each in (await engine.kernel.effects.list(task_id=task_id)).effects if each.attempt == 1]
        assert (found.task_id, found.action) == (task_id, "charge")
        assert (await engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("forgotten", [0, 1])
async def test_a_handler_that_does_not_await_an_effect_fails(engine: Engine, forgotten: int) -> None:
    calls: list[str] = []

    @engine.handler("pay", retry=AT_ONCE)
    async def pay(payload: Any, ctx: Context) -> None:
        effects = [ctx.effect(action, lambda action=action: calls.append(action)) for action in ("charge", "mail")]  # type: ignore[misc]
        await effects[1 - forgotten]

    async with engine, engine.worker():
        with pytest.raises(TaskFailed, match=f"The effect {('charge', 'mail')[forgotten]} was not awaited") as raised:
            await engine.result(await engine.enqueue("pay"))
    assert raised.value.error_code == "never_awaited"
    assert calls == [("mail", "charge")[forgotten]]


async def test_a_specialist_that_does_not_await_an_effect_fails(engine: Engine) -> None:
    class Press(Specialist):
        async def start(self, payload: Any, ctx: Context) -> Any:
            ctx.effect("charge", lambda: None)
            return ExternalProductionHandle("job", 1.0)

    engine.specialist("press", Press())
    async with engine, engine.worker():
        with pytest.raises(TaskFailed, match="The effect charge was not awaited"):
            await engine.result(await engine.enqueue("press"))
