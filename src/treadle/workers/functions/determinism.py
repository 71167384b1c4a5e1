"""Warnings about code of durable functions that a replay would execute differently: clocks, randomness, sleeps and IO.

`find_calls` reads the source of a function when it is registered. While a function executes, `watch` reports files, sockets and
processes that its code opens outside a step, also through other functions. A line with the comment `# treadle: ignore` is exempt.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from linecache import getline
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.workers.functions.branches import Branch

IGNORE = "# treadle: ignore"

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
_MODULES = {"random": _RANDOM, "secrets": _STEP, "subprocess": _STEP, "requests": _STEP, "httpx": _STEP, "socket": _STEP}
"""Modules whose functions all belong into a step, or have a replacement."""
_SEEDED = "random.Random"
_EVENTS = {"open": "open", "socket.connect": "connect", "subprocess.Popen": "start a process", "time.sleep": "time.sleep"}
"""Audit events of the interpreter that function code must not cause, and their names in messages."""

executing: ContextVar[tuple[str, CodeType | None, Branch] | None] = ContextVar("executing", default=None)
"""The function whose code this context executes: its name, its code, and the branch."""


class DeterminismWarning(UserWarning):
    """The code of a durable function does something that a replay would do again, or differently."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A call in the code of a function."""

    line: int
    call: str
    instead: str


def warn_of_calls(name: str, call: Callable[..., Any]) -> None:
    """Issue a `DeterminismWarning` for each doubtful call in the function's own source."""
    file = getattr(getattr(inspect.unwrap(call), "__code__", None), "co_filename", "<function>")
    for found in find_calls(call):
        text = (
            f"The durable function {name} calls {found.call}, which a replay would repeat with another result; use {found.instead}"
        )
        warnings.warn_explicit(f"{text}.", DeterminismWarning, file, found.line)


def find_calls(call: Callable[..., Any]) -> list[Finding]:
    """Return the doubtful calls in the source of a function; none if it has no source."""
    function = inspect.unwrap(call)
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError, ValueError):
        return []
    names = {**vars(builtins), **getattr(function, "__globals__", {}), **_closure(function)}
    found = []
    for node in _own_calls(tree):
        called = _called(node.func, names)
        instead = None if called is None or called == _SEEDED else INSTEAD.get(called) or _MODULES.get(called.partition(".")[0])
        line = lines[node.lineno - 1] if node.lineno <= len(lines) else ""
        if called is not None and instead is not None and IGNORE not in line:
            found.append(Finding(first + node.lineno - 1, called.removeprefix("builtins."), instead))
    return sorted(found, key=lambda each: each.line)


def _closure(function: Any) -> dict[str, Any]:
    try:
        return dict(inspect.getclosurevars(function).nonlocals)
    except (TypeError, ValueError):
        return {}


def _own_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls that the function makes itself, not those of the code that it passes to `ctx.step` or `ctx.effect`."""
    steps = {
        each.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _is_step(node)
        for argument in node.args
        for each in ast.walk(argument)
        if isinstance(each, ast.Name)
    }
    waiting = [tree]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in steps:
            continue
        if isinstance(node, ast.Call):
            yield node
            if _is_step(node):
                waiting += [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.Lambda)]
                continue
        waiting += ast.iter_child_nodes(node)


def _is_step(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr in ("step", "effect")


def _called(node: ast.expr, names: dict[str, Any]) -> str | None:
    """The qualified name of a called function, as far as the module's names show it."""
    path: list[str] = []
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in names:
        return None
    value, shown = names[node.id], _qualified(names[node.id])
    for attribute in path:
        if not isinstance(value, ModuleType | type):
            return None
        inner = getattr(value, attribute, None)
        shown = _qualified(inner) if isinstance(inner, ModuleType | type) else f"{shown}.{attribute}"
        value = inner
    return shown


def _qualified(value: Any) -> str:
    if isinstance(value, ModuleType):
        return value.__name__
    owner = getattr(value, "__self__", None)  # such as `random.random`, a method of a hidden instance
    module = getattr(value, "__module__", None) or type(owner).__module__
    name = getattr(value, "__name__" if owner is not None and not isinstance(owner, ModuleType) else "__qualname__", "")
    return f"{'builtins' if module in ('io', '_io') and name == 'open' else module}.{name}"


# while a function executes


@cache
def watch() -> None:
    """Report IO in the code of functions from now on; Python offers no way to remove such a hook."""
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _EVENTS and (current := executing.get()) is not None and current[2].busy is None:
        name, code, _ = current
        if code is not None and (frame := _own_frame(sys._getframe(1), code)) is not None:
            place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            _warn_once(name, _EVENTS[event], place, frame.f_code.co_filename, frame.f_lineno)


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
def _warn_once(name: str, what: str, place: str, file: str, line: int) -> None:
    text = f"The durable function {name} does IO outside a step ({what}, at {place}), which a replay would repeat; use {_STEP}."
    warnings.warn_explicit(text, DeterminismWarning, file, line)


_OWN = str(Path(__file__).parents[2])
