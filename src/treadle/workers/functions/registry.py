"""The registry of durable functions, by name and version, and the checks of their source code.

A registration warns of calls that a replay would execute differently: clocks, randomness, sleeps and IO. While a function executes,
`watch` reports files, sockets and processes that its code opens outside a step, also through other functions. A line with the
comment `# treadle: ignore` is exempt.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from linecache import getline
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, TypedDict

import msgspec

from treadle.kernel.functions.decide import CLEANUP_FOR
from treadle.kernel.functions.steps import check_version, queue_name
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import InvalidInput, InvalidPolicy, Refused
from treadle.model.names import check_name, run_key
from treadle.model.tasks import TaskLimit
from treadle.model.values import shown
from treadle.workers.context import RegisteredHandler, make_handler
from treadle.workers.limits import Limit, keys_of
from treadle.workers.signatures import is_async, unwrapped

MAX_STEPS = 10_000
"""Default maximum number of steps of a run; the cost of a replay grows with them."""


@dataclass(frozen=True, slots=True)
class RegisteredFunction:
    """The code of one version of a function."""

    name: str
    version: int
    handler: RegisteredHandler
    max_steps: int = MAX_STEPS
    cleanup_for: int = 0
    """The limit of its cleanup in milliseconds after a cancellation; 0 if its code has none."""

    @property
    def code(self) -> CodeType | None:
        """The code object of the function, if it is a Python function."""
        return getattr(inspect.unwrap(self.handler.call), "__code__", None)

    @property
    def queue_name(self) -> str:
        """The name of the queue of its tasks."""
        return self.handler.name


class RegistrationOptions(TypedDict, total=False):
    """Options of a function, as `Engine.function` documents them."""

    version: int
    max_steps: int
    concurrency: int | None
    cleanup_timeout: Duration
    limits: Sequence[Limit]


def make_function(
    name: str,
    call: Callable[..., Any],
    *,
    version: int = 1,
    max_steps: int = MAX_STEPS,
    concurrency: int | None = None,
    cleanup_timeout: Duration = CLEANUP_FOR / 1000,
    limits: Sequence[Limit] = (),
) -> RegisteredFunction:
    """Return a validated function for an `async def` or a `def` of (payload), (payload, ctx) or no parameters."""
    check_name(name, "function name")
    check_version(version)
    call = unwrapped(call)
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise InvalidInput(f"The function {name} is a generator; register a `def` or `async def` that returns its result.")
    if type(max_steps) is not int or max_steps < 1:
        raise InvalidPolicy(f"max_steps must be 1 or more, not {shown(max_steps)}.")
    warn_of_calls(name, inspect.unwrap(call))
    unversioned = make_handler(name, call, concurrency=concurrency, limits=limits, kind="function")
    if any(limit.rate is not None for limit in unversioned.limits):
        raise InvalidPolicy(f"The limits of the function {name} count its live runs, and take max=; a rate is for handlers.")
    handler = msgspec.structs.replace(unversioned, name=queue_name(name, version))
    if not is_async(call):
        from treadle.workers.functions.sync import as_coroutine

        handler = msgspec.structs.replace(handler, call=as_coroutine(name, handler.call), isolation="loop")
    limit = milliseconds(cleanup_timeout, "cleanup_timeout")
    return RegisteredFunction(name, version, handler, max_steps, limit if may_clean_up(call) else 0)


class FunctionRegistry:
    """The functions of a process; a name may have several versions."""

    def __init__(self) -> None:
        self._functions: dict[str, RegisteredFunction] = {}
        self._newest: dict[str, int] = {}
        self._own: dict[str, Callable[[], RegisteredFunction]] = {}

    def add_own(self, name: str, version: int, make: Callable[[], RegisteredFunction]) -> None:
        """Add a function of the engine itself, which `names` omits; `make` is called when it is first looked up."""
        self._own[queue_name(name, version)] = make
        self._newest[name] = version

    def add(self, function: RegisteredFunction) -> None:
        """Add a function; a second one with the same version raises `Refused` (`handler_exists`)."""
        if function.queue_name in self._functions or function.queue_name in self._own:
            raise Refused(
                f"There is already a function {function.queue_name}; give the new one another version.", code="handler_exists"
            )
        self._functions[function.queue_name] = function
        self._newest[function.name] = max(function.version, self._newest.get(function.name, 0))

    def find(self, queue_name: str) -> RegisteredFunction | None:
        """Return the function for tasks of that queue: `NAME@VERSION`."""
        function = self._functions.get(queue_name)
        if function is None and (make := self._own.get(queue_name)) is not None:
            function = self._functions[queue_name] = make()
        return function

    def cleanup_for(self, queue_name: str) -> int | None:
        """Return the limit of the cleanup of a function that is registered here, in milliseconds."""
        function = self.find(queue_name)
        return None if function is None else function.cleanup_for

    def limits_for(self, queue_name: str, payload: Mapping[str, Any]) -> dict[str, TaskLimit]:
        """Return the limit keys of a run by the limits of its function here, as those of a handler's task."""
        function = self._functions.get(queue_name)
        limits = () if function is None else function.handler.limits
        return {run_key(key): limit for key, limit in keys_of(limits, payload).items()}

    def newest(self, name: str) -> int | None:
        """Return the newest version of the name that is registered here."""
        return self._newest.get(name)

    def names(self) -> list[str]:
        """Return `NAME@VERSION` of all functions except the engine's own, sorted."""
        return sorted(self._functions.keys() - self._own.keys())

    def __iter__(self) -> Iterator[RegisteredFunction]:
        return iter([self._functions[name] for name in self.names()])


def _source_of(function: Callable[..., Any]) -> tuple[list[str], int, ast.Module] | None:
    """Return the lines of the function's source, the number of the first one, and its syntax tree; None without a source."""
    try:
        lines, first = inspect.getsourcelines(function)
        return lines, first, ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError, SystemError):  # the last one if code is parsed in a collection meanwhile
        return None


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_HANDLERS = (ast.Try, ast.TryStar, ast.With, ast.AsyncWith)


def may_clean_up(call: Callable[..., Any]) -> bool:
    """Return whether the function may execute code after `Canceled`: it has `try` or `with`, or passes its `ctx` on.

    Without its source the answer is yes, because a cleanup must never be skipped.
    """
    if inspect.unwrap(call) is not call or (source := _source_of(call)) is None:
        return True
    function = next((node for node in ast.walk(source[2]) if isinstance(node, _FUNCTIONS)), None)
    if function is None or any(isinstance(node, _HANDLERS) for node in ast.walk(function)):
        return True
    contexts = _contexts(function)
    if not contexts:
        return len(function.args.posonlyargs + function.args.args + function.args.kwonlyargs) > 1
    fields = {id(node.value) for node in ast.walk(function) if isinstance(node, ast.Attribute)}
    return any(isinstance(node, ast.Name) and node.id in contexts and id(node) not in fields for node in ast.walk(function))


def _contexts(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of the parameters that receive the context."""
    return {
        parameter.arg
        for parameter in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
        if parameter.arg == "ctx" or "Context" in ast.unparse(parameter.annotation or parameter)
    }


IGNORE = "# treadle: ignore"

AWAITED = frozenset(
    {
        "approval", "call", "continue_as_new", "effect", "external", "first", "gather", "hosted", "sleep", "sleep_until", "start",
        "step", "transaction", "update", "wait_for",
    }
)  # fmt: skip
"""The methods of a function's context that do nothing until they are awaited."""

_SLEEP, _NOW, _RANDOM = "await ctx.sleep(...)", "ctx.now()", "ctx.random()"
_STEP, _GATHER = "a step: `await ctx.step(...)`", "`await ctx.gather(...)`"

INSTEAD = {
    "asyncio.sleep": _SLEEP,
    "time.sleep": _SLEEP,
    "asyncio.gather": _GATHER,
    "asyncio.wait": _GATHER,
    "asyncio.create_task": _GATHER,
    "asyncio.ensure_future": _GATHER,
    "asyncio.to_thread": _STEP,
    "asyncio.wait_for": "the `timeout` of the operation",
    "asyncio.timeout": "the `timeout` of the operation",
    "threading.Thread": _GATHER,
    "time.time": _NOW,
    "time.time_ns": _NOW,
    "time.monotonic": _NOW,
    "time.perf_counter": _NOW,
    "datetime.datetime.now": _NOW,
    "datetime.datetime.utcnow": _NOW,
    "datetime.datetime.today": _NOW,
    "datetime.date.today": f"{_NOW}.date()",
    "uuid.uuid1": _STEP,
    "uuid.uuid4": _STEP,
    "os.urandom": _STEP,
    "os.system": _STEP,
    "os.popen": _STEP,
    "builtins.open": _STEP,
    "builtins.input": _STEP,
    "urllib.request.urlopen": _STEP,
}
"""By qualified name: the form that survives a replay."""
_MODULES = {
    "random": _RANDOM,
    "secrets": _STEP,
    "subprocess": _STEP,
    "requests": _STEP,
    "httpx": _STEP,
    "socket": _STEP,
    "concurrent": _GATHER,
}
"""Modules whose functions all belong into a step, or have a replacement."""
_SEEDED = "random.Random"
_EVENTS = {"open": "open", "socket.connect": "connect", "subprocess.Popen": "start a process", "time.sleep": "time.sleep"}
"""Audit events of the interpreter that function code must not cause, and their names in messages."""

CurrentCode = Callable[[], tuple[str, CodeType] | None]
"""Returns the name and the code of the function that executes in this context, outside its steps."""


class DeterminismWarning(UserWarning):
    """The code of a durable function does something that a replay would do again, or differently."""


@dataclass(frozen=True, slots=True)
class DeterminismFinding:
    """A call in the code of a function."""

    line: int
    call: str
    instead: str


def warn_of_calls(name: str, call: Callable[..., Any]) -> None:
    """Issue a `DeterminismWarning` for each suspicious call in the function's own source."""
    file = getattr(getattr(inspect.unwrap(call), "__code__", None), "co_filename", "<function>")
    for finding in find_calls(call):
        text = (
            f"The durable function {name} calls {finding.call}, which a replay would repeat with another result; "
            f"use {finding.instead if is_async(call) else finding.instead.replace('await ', '')}"
        )
        warnings.warn_explicit(f"{text}.", DeterminismWarning, file, finding.line)
    for line, operation in find_unawaited(call):
        text = f"The durable function {name} does not await {operation}(...), so it does not happen and fails the run"
        warnings.warn_explicit(f"{text}; write `await {operation}(...)`.", DeterminismWarning, file, line)


def find_unawaited(call: Callable[..., Any]) -> list[tuple[int, str]]:
    """Return line and name of each operation in the source of a function that is called and neither awaited nor used."""
    if (source := _source_of(inspect.unwrap(call))) is None:
        return []
    lines, first, tree = source
    contexts = {name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef) for name in _contexts(node)}
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    findings = []
    for node in ast.walk(tree):
        unread = isinstance(node, ast.Assign) and all(isinstance(at, ast.Name) and at.id not in read for at in node.targets)
        value = node.value if unread or isinstance(node, ast.Expr) else None  # type: ignore[attr-defined]
        match value:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if owner in contexts and name in AWAITED:
                if IGNORE not in lines[value.lineno - 1]:
                    findings.append((first + value.lineno - 1, f"{owner}.{name}"))
    return sorted(findings)


def find_calls(call: Callable[..., Any]) -> list[DeterminismFinding]:
    """Return the suspicious calls in the source of a function; none if it has no source."""
    function = inspect.unwrap(call)
    if (source := _source_of(function)) is None:
        return []
    lines, first, tree = source
    names = {**vars(builtins), **getattr(function, "__globals__", {}), **_closure(function)}
    findings = []
    for node in _own_calls(tree):
        called = _called(node.func, names)
        instead = None if called is None or called == _SEEDED else INSTEAD.get(called) or _MODULES.get(called.partition(".")[0])
        line = lines[node.lineno - 1] if node.lineno <= len(lines) else ""
        if called is not None and instead is not None and IGNORE not in line:
            findings.append(DeterminismFinding(first + node.lineno - 1, called.removeprefix("builtins."), instead))
    return sorted(findings, key=lambda finding: finding.line)


def _closure(function: Any) -> dict[str, Any]:
    try:
        return dict(inspect.getclosurevars(function).nonlocals)
    except (TypeError, ValueError):
        return {}


def _own_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls that the function makes itself, not those of the code that it passes to `ctx.step` or `ctx.effect`."""
    steps = {
        part.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _is_step(node)
        for argument in node.args
        for part in ast.walk(argument)
        if isinstance(part, ast.Name)
    }
    waiting = [tree]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, _FUNCTIONS) and node.name in steps:
            continue
        if isinstance(node, ast.Call):
            yield node
            if _is_step(node):
                waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.Lambda)]
                continue
        waiting += ast.iter_child_nodes(node)


def _is_step(node: ast.Call) -> bool:
    """Whether it is `ctx.step(...)`, `ctx.effect(...)` or `partial(ctx.step, ...)`."""
    return any(isinstance(code, ast.Attribute) and code.attr in ("step", "effect") for code in (node.func, *node.args[:1]))


def _called(node: ast.expr, names: dict[str, Any]) -> str | None:
    """The qualified name of a called function, as far as the module's names show it."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    value, qualified = names[node.id], _qualified(names[node.id])
    for attribute in path:
        if not isinstance(value, ModuleType | type):
            return None
        inner = getattr(value, attribute, None)
        qualified = _qualified(inner) if isinstance(inner, ModuleType | type) else f"{qualified}.{attribute}"
        value = inner
    return qualified


def _qualified(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    owner = getattr(value, "__self__", None)  # such as `random.random`, a method of a hidden instance
    module = getattr(value, "__module__", None) or type(owner).__module__
    name = getattr(value, "__name__" if owner is not None and not isinstance(owner, ModuleType) else "__qualname__", "")
    return f"{'builtins' if module in ('io', '_io') and name == 'open' else module}.{name}"


# while a function executes


@cache
def watch(current_code: CurrentCode) -> None:
    """Report IO in the code of functions from now on; Python offers no way to remove such a hook."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _EVENTS and (current := current_code()) is not None:
            name, code = current
            if (frame := _own_frame(sys._getframe(1), code)) is not None:
                place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                instead = _STEP if code.co_flags & inspect.CO_COROUTINE else _STEP.replace("await ", "")
                _warn_once(name, _EVENTS[event], place, frame.f_code.co_filename, frame.f_lineno, instead)

    sys.addaudithook(audit)


def _own_frame(frame: FrameType | None, code: CodeType) -> FrameType | None:
    """The line of the function that led here; None if the engine did, or an import."""
    while frame is not None:
        file = frame.f_code.co_filename
        if frame.f_code is code or frame.f_code.co_qualname.startswith(f"{code.co_qualname}.<locals>."):
            return None if IGNORE in getline(file, frame.f_lineno) else frame
        if "importlib" in file or file.startswith(_OWN):
            return None
        frame = frame.f_back
    return None


@cache
def _warn_once(name: str, what: str, place: str, file: str, line: int, instead: str) -> None:
    text = f"The durable function {name} does IO outside a step ({what}, at {place}), which a replay would repeat; use {instead}."
    warnings.warn_explicit(text, DeterminismWarning, file, line)


_OWN = str(Path(__file__).parents[2])
