"""No value that user code supplies can keep its task from being settled, or make anything else unreadable (D70)."""

from __future__ import annotations

import asyncio
import enum
import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engines import make_engine, url_of
from tests.functions.driver import until
from tests.limits import BOUND
from tests.sizes import examples

from treadle import Engine
from treadle.model.approvals import ApprovalRequest
from treadle.model.errors import NonRetryable, TreadleError
from treadle.model.external import ExternalProductionFailure, ExternalProductionHandle, Production
from treadle.model.outcomes import AwaitingApproval, Failed, Paused, Problem, Released, Retry, Succeeded, Waiting
from treadle.model.tasks import Task
from treadle.model.values import decode

Make = Callable[[], Any]


class Hostile:
    """An object whose methods all raise."""

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("\x00\ud800")

    __str__ = __repr__ = __eq__ = __hash__ = __bool__ = __len__ = __iter__ = _refuse


class HostileError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class OddCode(TreadleError):
    code = 7  # type: ignore[assignment]


class Text(str):
    """Like the texts of template libraries."""

    def __str__(self) -> str:
        return self


class Number(float):
    """Like the scalars of numeric libraries."""


class Whole(int):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not comparable")

    __hash__ = int.__hash__


class Colour(enum.StrEnum):
    RED = "red"


class Items(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


class Masked:
    """An object whose class cannot be read, not even by `isinstance`."""

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    @__class__.setter
    def __class__(self, value: Any) -> None: ...


class Picky(Exception):
    """An exception that can be neither copied, pickled nor read."""

    def __init__(self, *, needed: object) -> None:
        super().__init__()

    def __reduce__(self) -> Any:
        raise SystemExit("no copies")

    @property
    def args(self) -> Any:
        raise RuntimeError("no args")

    @args.setter
    def args(self, value: Any) -> None: ...


class Blamed(RuntimeError):
    """An exception whose cause cannot be read."""

    @property
    def __cause__(self) -> Any:
        raise KeyError("no cause")

    @__cause__.setter
    def __cause__(self, value: Any) -> None: ...


@dataclass
class Point:
    x: Any = 1


def cyclic() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def chained(depth: int) -> BaseException:
    """An exception with many causes, the last of which is the first."""
    error = first = ValueError("first")
    for number in range(depth):
        following = ValueError(number)
        following.__cause__ = error
        error = following
    first.__context__ = error
    return error


def grouped(depth: int) -> BaseException:
    error: BaseException = ValueError("\x00\ud800")
    for _ in range(depth):
        error = BaseExceptionGroup("a\x00", [error])
    error.add_note("\x00")
    error.__notes__ = 7  # type: ignore[assignment]
    return error


def generator() -> Any:
    yield {"a": 1}


async def async_generator() -> Any:
    yield {"a": 1}


async def _coroutine() -> None: ...


def coroutine() -> Any:
    made = _coroutine()
    made.close()
    return made


ODD: list[Make] = [
    Hostile,
    HostileError,
    Masked,
    generator,
    async_generator,
    Point,
    Decimal,
    lambda: UUID(int=7),
    lambda: Point(Hostile()),
    lambda: {UUID(int=7): Decimal(1), datetime.max: datetime.min, Colour.RED: Point()},
    lambda: timedelta.max,
    lambda: chained(3),
    lambda: "x" * (1 << 21),
    lambda: {"a": {"b": [math.nan]}},
    cyclic,
    coroutine,
    object,
    lambda: nested(900),
    lambda: nested(150),
    lambda: nested(100_000),
    lambda: math.nan,
    lambda: -math.inf,
    lambda: 10**400,
    lambda: 10**5000,
    lambda: True,
    lambda: "\x00",
    lambda: "a\ud800",
    lambda: Text("marked up"),
    lambda: Text("\x00\udfff"),
    lambda: Number(0.5),
    lambda: Number("nan"),
    lambda: Whole(1),
    lambda: Colour.RED,
    lambda: b"bytes",
    lambda: bytearray(b"x"),
    lambda: {1, 2},
    lambda: {(1, 2): 3},
    lambda: {None: 1, 2.5: 3},
    lambda: {"\x00": "\ud800"},
    lambda: OrderedDict(a=1),
    lambda: Items(a=1),
    lambda: sys,
    lambda: type,
    lambda: iter([]),
    lambda: "x" * (1 << 20),
    lambda: "\x01" * 200_000,
    lambda: {"@blob": "x", "@external": 7, "@approvals": 3, "checkpoint": 1},
    lambda: Production({"n": 1}),
]


def _fixed(value: Any) -> Make:
    return lambda: value


def _inside(wrap: Callable[[Any], Any]) -> Callable[[Make], Make]:
    return lambda make: lambda: wrap(make())


plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=8) | st.binary(max_size=4)
makes: st.SearchStrategy[Make] = st.sampled_from(ODD) | plain.map(_fixed)
makes = makes | makes.map(_inside(lambda value: {"a": value})) | makes.map(_inside(lambda value: [value, (value,)]))

EXCEPTIONS: list[Callable[[Any], BaseException]] = [
    lambda value: ValueError(value),
    lambda value: KeyError(value),
    lambda value: NonRetryable(value),
    lambda value: NonRetryable("x", value if isinstance(value, str | int | float | list | dict) else 7),
    lambda value: OddCode(value),
    lambda value: HostileError(value),
    lambda value: SystemExit(value),
    lambda value: KeyboardInterrupt(value),
    lambda value: GeneratorExit(value),
    lambda value: StopIteration(value),
    lambda value: asyncio.CancelledError(value),
    lambda value: BaseExceptionGroup("several", [ValueError(value)]),
    lambda value: ExceptionGroup("\x00", [ExceptionGroup("inner", [HostileError(value), Blamed(value)])]),
    lambda value: Picky(needed=value),
    lambda value: Blamed(value),
    lambda value: chained(2000),
    lambda value: grouped(2000),
]

OUTCOMES: list[Callable[[Any], Any]] = [
    lambda value: value,
    lambda value: {"a": value},
    lambda value: Succeeded(value),
    lambda value: Failed(value),
    lambda value: Failed(Problem(value, value)),
    lambda value: Failed(Problem("x", "y", value, value)),
    lambda value: Retry(Problem("x", value), value),
    lambda value: Waiting(value),
    lambda value: Waiting(3_600_000, value),
    lambda value: Paused(value),
    lambda value: Released(value) if not isinstance(value, str) else Paused(value),
    lambda value: AwaitingApproval(value),
    lambda value: AwaitingApproval(ApprovalRequest(title=value)),
    lambda value: AwaitingApproval(ApprovalRequest(title="t", context={"v": value}), value),
    lambda value: AwaitingApproval(ApprovalRequest(title="t", deciders=value, notify=value)),
]

RETURNS: list[Callable[[Any], Any]] = [
    lambda value: value,
    lambda value: Production(value),
    lambda value: Production({"a": value}),
    lambda value: ExternalProductionHandle(value, 3600),
    lambda value: ExternalProductionHandle("job", value),
    lambda value: ExternalProductionHandle("job", 3600, value),
    lambda value: ExternalProductionHandle("job", 3600, None, value),
    lambda value: ExternalProductionFailure(value, None),
    lambda value: ExternalProductionFailure("failed", value),
]

FUNCTIONS = (
    "result",
    "step",
    "step_error",
    "step_name",
    "step_key",
    "step_arguments",
    "step_options",
    "continued",
    "continued_bare",
    "effect",
    "effect_error",
    "effect_request",
    "effect_action",
    "call",
    "call_bare",
    "call_options",
    "start",
    "signal",
    "sleep",
    "sleep_until",
    "wait_for",
    "patched",
    "gather",
    "approval",
    "approval_options",
    "log",
    "progress",
)
HANDLERS = ("log", "progress", "effect", "effect_error", "effect_request", "effect_action", "produced", "enqueue")
"""Values that handlers pass to their context, or to the engine."""


class Scene:
    """An engine with a worker, and user code at every point that supplies the value in `given`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.given: Callable[[], Any] = lambda: None
        engine.handler("async")(self._async)
        engine.handler("sync")(self._sync)
        for point in HANDLERS:
            engine.handler(point)(self._handler(point))
        engine.specialist("start", self)
        engine.specialist("poll", Polled(self))
        for point in FUNCTIONS:
            engine.function(f"fn.{point}")(self._function(point))

    async def _async(self) -> Any:
        return self.given()

    def _sync(self) -> Any:
        return self.given()

    def _handler(self, point: str) -> Callable[..., Any]:
        async def handler(payload: dict[str, Any], ctx: Any) -> Any:
            match point:
                case "log":
                    ctx.log(self.given())
                    ctx.log("text", self.given())
                    ctx.log("text", detail=self.given())
                case "progress":
                    ctx.progress(self.given())
                    ctx.progress(0.5, self.given())
                case "effect" | "effect_error":
                    await ctx.effect("act", self.given)
                case "effect_request":
                    await ctx.effect("act", dict, self.given())
                case "effect_action":
                    await ctx.effect(self.given(), dict, key=self.given())
                case "produced":
                    ctx.append_produced(self.given())
                case "enqueue":
                    await self.engine.enqueue("none", {"v": self.given()}, unique_key=self.given())

        return handler

    def start(self, payload: dict[str, Any], ctx: Any) -> Any:
        return self.given()

    def poll(self, external_job_id: str, ctx: Any) -> Any:
        return ExternalProductionFailure("not polled in time")

    def _function(self, point: str) -> Callable[..., Any]:
        async def supply() -> Any:
            return self.given()

        async def function(payload: dict[str, Any], ctx: Any) -> Any:
            match point:
                case "result":
                    return self.given()
                case "step" | "step_error":
                    return await ctx.step(supply)
                case "step_name":
                    return await ctx.step(dict, name=self.given())
                case "step_key":
                    return await ctx.step(dict, key=self.given())
                case "step_arguments":
                    return await ctx.step(lambda *_, **__: None, self.given(), v=self.given())
                case "step_options":
                    return await ctx.step(dict, timeout=self.given(), retry=self.given())
                case "continued_bare":
                    if not payload:
                        await ctx.continue_as_new(self.given())
                case "effect_request":
                    return await ctx.effect("act", dict, self.given())
                case "effect_action":
                    return await ctx.effect(self.given(), dict, key=self.given())
                case "call_bare":
                    await ctx.call("none", self.given())
                case "call_options":
                    await ctx.call("none", name=self.given(), key=self.given(), limit=self.given(), deadline=self.given())
                case "start":
                    await ctx.start("fn.none", self.given(), version=1, key=self.given())
                case "signal":
                    await self.engine.signal(ctx.run_id, "s", self.given(), idempotency_key="k")
                    return await ctx.wait_for("s")
                case "sleep":
                    await ctx.sleep(self.given())
                case "sleep_until":
                    await ctx.sleep_until(self.given())
                case "wait_for":
                    await ctx.wait_for("s", self.given())
                case "patched":
                    return ctx.patched(self.given())
                case "gather":
                    return await ctx.gather(self.given())
                case "approval_options":
                    value = self.given()
                    await ctx.approval(value, deciders=value, expires=value, key=value)
                case "continued":
                    if not payload:
                        await ctx.continue_as_new({"v": self.given()})
                case "effect" | "effect_error":
                    return await ctx.effect("act", supply)
                case "call":
                    await ctx.call("none", {"v": self.given()})
                case "approval":
                    await ctx.approval("May I?", context={"v": self.given()})
                case "log":
                    ctx.log(self.given(), detail=self.given())
                case "progress":
                    ctx.progress(self.given())
            return None

        return function

    async def check(self, name: str, given: Callable[[], Any]) -> None:
        """Execute the task or the function once: it is settled in its first claim, and everything can be read."""
        self.given = given
        engine = self.engine
        if name.startswith("fn."):
            run_id = str((await engine.start_function(name)).id)
            task = await self._settled(lambda: engine.kernel.functions.own_task(run_id))
            assert (await engine.why(run_id)).text
        else:
            task_id = (await engine.enqueue(name)).id
            task = await self._settled(lambda: engine.kernel.reads.get_task(task_id))
            if name == "poll" and not task.finished:
                await engine.kernel.external_jobs.poll_now(task_id, actor="test")
                task = await self._settled(lambda: engine.kernel.reads.get_task(task_id), 2)
            assert (await engine.why(task_id)).text
        assert task.takeovers == 0
        if task.state == "failed":
            error = decode(task.error)
            assert error["message"]
            assert task.error_code
            assert task.error_code != "takeovers_exhausted"
        await engine.kernel.reads.list_tasks(kind="handler", limit=5)
        await engine.kernel.external_jobs.list()
        if not task.finished:
            await engine.cancel(task.id) if task.run_id is None else await engine.runs.cancel(task.run_id)

    async def _settled(self, read: Callable[[], Any], claims: int = 1) -> Task:
        found: list[Task] = []

        async def settled() -> bool:
            task = await read()
            found[:] = [task]
            return bool(task.claim_version >= claims and (task.finished or task.owner_id is None))

        await until(settled)
        return found[0]


class Polled:
    """A specialist whose polls supply the value."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene

    def start(self, payload: dict[str, Any], ctx: Any) -> Any:
        return ExternalProductionHandle("job", 3600)

    def poll(self, external_job_id: str, ctx: Any) -> Any:
        return self._scene.given()


def _raise(error: BaseException) -> Any:
    raise error


CASES: st.SearchStrategy[tuple[str, Callable[[], Any]]] = st.one_of(
    st.tuples(
        st.sampled_from(["async", "sync"]),
        st.builds(lambda make, wrap: lambda: wrap(make()), makes, st.sampled_from(OUTCOMES)),
    ),
    st.tuples(
        st.sampled_from(["async", "sync", "effect_error", "start", "poll", "fn.result", "fn.step_error", "fn.effect_error"]),
        st.builds(lambda make, error: lambda: _raise(error(make())), makes, st.sampled_from(EXCEPTIONS)),
    ),
    st.tuples(
        st.sampled_from(["start", "poll"]), st.builds(lambda make, wrap: lambda: wrap(make()), makes, st.sampled_from(RETURNS))
    ),
    st.tuples(st.sampled_from([*HANDLERS, *(f"fn.{point}" for point in FUNCTIONS)]), makes),
)


@pytest.mark.parametrize(("kind", "few"), [("memory", 100), ("postgres", 15)])
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_any_value_of_user_code_leads_to_a_settled_task(
    kind: str, few: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()

        async def open_scene() -> Scene:
            engine = await stack.enter_async_context(make_engine(url_of(kind, request, tmp_path)))
            scene = Scene(engine)
            await stack.enter_async_context(engine.worker(grace=1))
            return scene

        async def close_scene(scene: Scene) -> None:
            report = await scene.engine.kernel.verify()
            await stack.aclose()
            assert report.problems == ()

        scene = runner.run(open_scene())

        @settings(max_examples=examples(few), database=None, derandomize=True)
        @given(CASES)
        def every_case(case: tuple[str, Callable[[], Any]]) -> None:
            runner.run(asyncio.wait_for(scene.check(*case), BOUND))

        try:
            every_case()
        finally:
            runner.run(close_scene(scene))
