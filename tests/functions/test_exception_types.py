"""The exception of a step or a child keeps its type where it is awaited, in the first execution and in every replay."""

from __future__ import annotations

import asyncio
import sys
import threading
from operator import attrgetter
from types import ModuleType
from typing import Any, ClassVar

import pytest
from tests.engines import ALL, make_engine, url_of
from tests.functions.driver import Scene
from tests.functions.test_functions import COLD, Backwards
from tests.limits import BOUND

from treadle import Engine, NonRetryable, RunFailed, StepFailed, TaskFailed
from treadle.settings import Settings
from treadle.testing import ManualClock


class PaymentError(Exception):
    pass


class CardDeclined(PaymentError):
    """Its `__init__` takes other arguments than `Exception` does, and its text needs its attributes."""

    def __init__(self, reason: str, *, retry_after: int) -> None:
        super().__init__(reason)
        self.code, self.retry_after, self.step = reason, retry_after, "a name that StepFailed has, too"

    def __str__(self) -> str:
        return f"declined: {self.code}, again after {self.retry_after}"


class Locked(Exception):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock, self.level = threading.Lock(), 3


class Slotted(ValueError):
    __slots__ = ("reason",)

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Registered(Exception):
    """A class that its subclasses are registered with."""

    names: ClassVar[list[str]] = []

    def __init_subclass__(cls, *, needed: str) -> None:
        cls.names.append(cls.__name__)


class Sealed(type):
    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        if any(type(base) is Sealed for base in bases):
            raise TypeError("no subclasses")
        return super().__new__(cls, name, bases, namespace)


class Final(LookupError, metaclass=Sealed):
    pass


class Constructed(Exception):
    def __new__(cls, one: int, two: int) -> Constructed:
        return super().__new__(cls)

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


class Abort(BaseException):
    pass


class BadAddress(NonRetryable):
    pass


class Hidden(OSError):
    """An exception with methods that raise."""

    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no arguments")

    def __str__(self) -> str:
        raise RuntimeError("no text")


def _local() -> Exception:
    class Local(Exception):
        pass

    return Local("local")


def _local_below() -> Exception:
    class Expired(CardDeclined):
        pass

    return Expired("expired", retry_after=1)


def _unloaded() -> Exception:
    """An exception of a module that is not loaded any more when the failure is reported."""
    module = ModuleType("billing_plugin")
    sys.modules["billing_plugin"] = module
    exec("class Plugged(ConnectionError):\n    pass", vars(module))
    error: Exception = module.Plugged("plugged")
    del sys.modules["billing_plugin"]
    return error


def _undecodable() -> Exception:
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


def _with_notes() -> Exception:
    error = ValueError("noted")
    error.add_note("a note")
    return error


def _caused() -> Exception:
    error = KeyError("key")
    error.__cause__ = CardDeclined("nested", retry_after=2)
    return error


def _group() -> BaseException:
    inner = ExceptionGroup("inner", [KeyError("missing"), _local()])
    return ExceptionGroup("outer", [CardDeclined("one", retry_after=1), inner])


Row = tuple[Any, tuple[type, ...], tuple[type, ...], dict[str, Any]]
ERRORS: dict[str, Row] = {
    "builtin": (lambda: ValueError("bad", 7), (ValueError,), (), {"args": ("bad", 7)}),
    "key": (_caused, (KeyError, LookupError), (CardDeclined,), {"args": ("key",)}),
    "os": (lambda: FileNotFoundError(2, "No such file"), (FileNotFoundError,), (), {"errno": 2, "strerror": "No such file"}),
    "unicode": (_undecodable, (UnicodeDecodeError,), (), {}),
    "notes": (_with_notes, (ValueError,), (), {"__notes__": ["a note"]}),
    "own __init__": (
        lambda: CardDeclined("stolen", retry_after=60),
        (CardDeclined, PaymentError),
        (ValueError,),
        {"code": "stolen", "retry_after": 60, "args": ("stolen",)},
    ),
    "not JSON": (Locked, (Locked,), (), {"level": 3, "args": ("locked",)}),
    "slots": (lambda: Slotted("slot"), (Slotted, ValueError), (), {}),
    "registry": (lambda: Registered("registered"), (Registered,), (), {"names": []}),
    "sealed": (lambda: Final("final"), (LookupError,), (Final,), {}),
    "own __new__": (lambda: Constructed(1, 2), (Constructed,), (), {"args": (1, 2)}),
    "group": (_group, (ExceptionGroup,), (), {}),
    "BaseException": (lambda: Abort("aborted"), (), (Abort,), {}),
    "exit": (lambda: SystemExit(3), (), (SystemExit,), {}),
    "StopIteration": (lambda: StopIteration(1), (), (StopIteration,), {}),
    "local": (_local, (), (), {"args": ("local",), "__class__.__name__": "Local"}),
    "local below": (_local_below, (CardDeclined,), (), {"retry_after": 1}),
    "unloaded": (_unloaded, (ConnectionError, OSError), (), {}),
    "of the engine": (lambda: NonRetryable("bad", "bad_address"), (), (NonRetryable,), {"error_code": "bad_address"}),
    "below the engine's": (lambda: BadAddress("bad"), (BadAddress, NonRetryable), (), {}),
    "timeout": (lambda: TimeoutError("slow"), (TimeoutError,), (), {}),
    "raising": (Hidden, (OSError,), (), {}),
}


def check(error: BaseException, report: type, row: Row) -> None:
    _, kinds, others, attributes = row
    assert isinstance(error, report), error
    assert all(isinstance(error, kind) for kind in kinds), type(error).__mro__
    assert not any(isinstance(error, kind) for kind in others), type(error).__mro__
    for name, value in attributes.items():
        assert attrgetter(name)(error) == value, name


def facts(error: BaseException) -> Any:
    """Everything that code can decide by."""
    own = {name: value for name, value in vars(error).items() if not name.startswith("_")}
    parts = tuple(facts(part) for part in error.exceptions) if isinstance(error, BaseExceptionGroup) else error.args
    return str(error), repr(error), type(error).__mro__, parts, own


@pytest.mark.parametrize("name", ERRORS)
async def test_the_exception_of_a_step_keeps_its_type_in_every_replay(name: str) -> None:
    seen: list[BaseException] = []
    clock = ManualClock()
    async with Engine("memory://", settings=Settings(), clock=clock, codec=Backwards()) as engine:
        scene = Scene(engine, clock)

        async def fail() -> None:
            raise ERRORS[name][0]()

        @engine.function("f")
        async def function(payload: dict[str, Any], ctx: Any) -> None:
            try:
                await ctx.step(fail)
            except StepFailed as error:
                seen.append(error)
            await ctx.wait_for("go")

        run = await engine.start("f")
        process = scene.process(warm=COLD)
        await process.quiet()
        await engine.signal(run, "go")
        await process.quiet()
        assert await scene.state(run.id) == "completed"
        scene.close()
        await asyncio.sleep(0)
    assert len(seen) == 2
    for error in seen:
        check(error, StepFailed, ERRORS[name])
        assert vars(error)["step"] == "fail"
        assert str(error).startswith("Step fail failed: ")
    assert facts(seen[0]) == facts(seen[1])
    assert Registered.names == []


ACROSS = {name: row for name, row in ERRORS.items() if name not in ("timeout", "of the engine")}


@pytest.mark.parametrize("name", ACROSS)
async def test_the_exception_of_a_child_keeps_its_type(name: str) -> None:
    """Through a task, a child run that fails by it, and the caller that waits for their result."""
    seen: dict[str, BaseException] = {}
    async with Engine("memory://", settings=Settings(), codec=Backwards()) as engine:

        @engine.handler("fails")
        def fails(payload: dict[str, Any]) -> None:
            raise ERRORS[name][0]()

        @engine.function("child")
        async def child(payload: dict[str, Any], ctx: Any) -> None:
            await ctx.call("fails")

        @engine.function("parent")
        async def parent(payload: dict[str, Any], ctx: Any) -> None:
            try:
                await (await ctx.start("child")).result()
            except RunFailed as error:
                seen["child"] = error
                raise

        async with engine.worker():
            task, run = await engine.enqueue("fails"), await engine.start("parent")
            for kind, waiting in (("task", engine.result(task, timeout=BOUND)), ("run", run.result(timeout=BOUND))):
                with pytest.raises((TaskFailed, RunFailed)) as raised:
                    await waiting
                seen[kind] = raised.value
    for kind, error in seen.items():
        check(error, TaskFailed if kind == "task" else RunFailed, ERRORS[name])


@pytest.mark.postgres
@pytest.mark.parametrize("store", ALL)
async def test_code_catches_the_exception_by_its_own_class(store: str, request: pytest.FixtureRequest, tmp_path: Any) -> None:
    async def charge() -> None:
        raise CardDeclined("stolen", retry_after=60)

    async with make_engine(url_of(store, request, tmp_path)) as engine:

        @engine.handler("charge")
        async def charge_task(payload: dict[str, Any]) -> None:
            await charge()

        @engine.function("buy")
        async def buy(payload: dict[str, Any], ctx: Any) -> Any:
            caught = []
            for work in (lambda: ctx.step(charge), lambda: ctx.effect("charge", charge), lambda: ctx.call("charge")):
                try:
                    await work()
                except CardDeclined as declined:
                    caught.append(declined.retry_after)
            try:
                await ctx.gather(ctx.step(charge, name="third"))
            except* PaymentError as group:
                caught.append(len(group.exceptions))
            return caught

        @engine.function("buy_sync")
        def buy_sync(payload: dict[str, Any], ctx: Any) -> Any:
            for work in (lambda: ctx.step(charge), lambda: ctx.call("charge")):
                try:
                    work()
                except CardDeclined as declined:
                    ctx.log(str(declined.retry_after))
                    last = declined.retry_after
            return last

        async with engine.worker():
            assert await (await engine.start("buy")).result(timeout=BOUND) == [60, 60, 60, 1]
            assert await (await engine.start("buy_sync")).result(timeout=BOUND) == 60


def test_a_group_keeps_its_exceptions() -> None:
    from treadle.workers.exceptions import revived, stored_form

    error = revived(StepFailed("f", "step_error", "outer"), {"exception": stored_form(_group())})
    assert isinstance(error, ExceptionGroup)
    declined, inner = error.exceptions
    assert isinstance(declined, CardDeclined)
    assert str(declined) == "declined: one, again after 1"
    assert [type(part).__name__ for part in inner.exceptions] == ["KeyError", "Local"]
    assert error.subgroup(KeyError) is not None


@pytest.mark.parametrize(
    "name",
    [
        "os.system",
        "builtins.int",
        "builtins.SystemExit",
        "treadle.model.errors.ClaimLost",
        "antigravity.Error",
        "json.decoder",
        "x",
    ],
)
def test_a_stored_name_imports_no_module_and_adds_no_class_but_a_loaded_exception(name: str) -> None:
    from treadle.workers.exceptions import revived

    report = TaskFailed("id", "code", "message")
    for stored in ({"exception": {"classes": [name]}}, {"exception": {"classes": []}}, {"type": name}, {}):
        error = revived(report, stored)
        assert str(error) == str(report)
        assert {kind for kind in type(error).__mro__ if kind.__module__ == "builtins"} == {Exception, BaseException, object}
        assert sum(kind.__module__.startswith("treadle.") for kind in type(error).__mro__[-6:]) <= 3
    assert "antigravity" not in sys.modules


async def test_the_timeout_of_failed_work_is_not_that_of_the_waiting_caller() -> None:
    async with Engine("memory://", settings=Settings()) as engine:

        @engine.handler("slow")
        async def slow(payload: dict[str, Any]) -> None:
            raise TimeoutError("the service is slow")

        @engine.function("f")
        async def function(payload: dict[str, Any], ctx: Any) -> None:
            await ctx.call("slow")

        async with engine.worker():
            task, run = await engine.enqueue("slow"), await engine.start("f")
            for waiting in (engine.result(task, timeout=BOUND), run.result(timeout=BOUND)):
                with pytest.raises((TaskFailed, RunFailed)) as raised:
                    await waiting
                assert type(raised.value) in (TaskFailed, RunFailed)
