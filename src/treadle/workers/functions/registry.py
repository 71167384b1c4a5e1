"""The registry of durable functions, by name and version."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, TypedDict

import msgspec

from treadle.kernel.functions.decide import CLEANUP_FOR
from treadle.kernel.functions.steps import check_version, lane_name
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import HandlerExists, InvalidInput, InvalidPolicy
from treadle.model.names import check_name
from treadle.model.user_values import shown
from treadle.workers.code import unwrapped
from treadle.workers.functions.cleanup import may_clean_up
from treadle.workers.functions.determinism import warn_of_calls
from treadle.workers.handlers import Handler, make_handler
from treadle.workers.injection import is_async

MAX_STEPS = 10_000
"""Default maximum number of steps of a run; the cost of a replay grows with them."""


@dataclass(frozen=True, slots=True)
class Function:
    """The code of one version of a function."""

    name: str
    version: int
    handler: Handler
    max_steps: int = MAX_STEPS
    cleanup_for: int = 0
    """The limit of its cleanup in milliseconds after a cancellation; 0 if its code has none."""

    @property
    def code(self) -> CodeType | None:
        """The code object of the function, if it is a Python function."""
        return getattr(inspect.unwrap(self.handler.call), "__code__", None)

    @property
    def lane_name(self) -> str:
        """The name of the lane of its tasks."""
        return self.handler.name


class RegistrationOptions(TypedDict, total=False):
    """Options of a function, as `Engine.function` documents them."""

    version: int
    max_steps: int
    concurrency: int | None
    cleanup_timeout: Duration


def make_function(
    name: str,
    call: Callable[..., Any],
    *,
    version: int = 1,
    max_steps: int = MAX_STEPS,
    concurrency: int | None = None,
    cleanup_timeout: Duration = CLEANUP_FOR / 1000,
) -> Function:
    """Return a validated function for an `async def` of (payload), (payload, ctx) or no parameters."""
    check_name(name, "function name")
    check_version(version)
    call = unwrapped(call)
    if not is_async(call):
        raise InvalidInput(f"The function {name} must be an `async def`, as it awaits operations of `ctx`.")
    if type(max_steps) is not int or max_steps < 1:
        raise InvalidPolicy(f"max_steps must be 1 or more, not {shown(max_steps)}.")
    warn_of_calls(name, inspect.unwrap(call))
    made = make_handler(name, call, concurrency=concurrency, kind="function")
    handler = msgspec.structs.replace(made, name=lane_name(name, version))
    limit = milliseconds(cleanup_timeout, "cleanup_timeout")
    return Function(name, version, handler, max_steps, limit if may_clean_up(call) else 0)


class FunctionRegistry:
    """The functions of a process; a name may have several versions."""

    def __init__(self) -> None:
        self._functions: dict[str, Function] = {}
        self._newest: dict[str, int] = {}
        self._own: dict[str, Callable[[], Function]] = {}

    def add_own(self, name: str, version: int, make: Callable[[], Function]) -> None:
        """Add a function of the engine itself, which `names` omits; `make` is called when it is first looked up."""
        self._own[lane_name(name, version)] = make
        self._newest[name] = version

    def add(self, function: Function) -> None:
        """Add a function; a second one with the same version raises `HandlerExists`."""
        if function.lane_name in self._functions or function.lane_name in self._own:
            raise HandlerExists(f"There is already a function {function.lane_name}; give the new one another version.")
        self._functions[function.lane_name] = function
        self._newest[function.name] = max(function.version, self._newest.get(function.name, 0))

    def find(self, lane_name: str) -> Function | None:
        """Return the function for tasks of that lane: `NAME@VERSION`."""
        function = self._functions.get(lane_name)
        if function is None and (make := self._own.get(lane_name)) is not None:
            function = self._functions[lane_name] = make()
        return function

    def cleanup_for(self, lane_name: str) -> int | None:
        """Return the limit of the cleanup of a function that is registered here, in milliseconds."""
        function = self.find(lane_name)
        return None if function is None else function.cleanup_for

    def newest(self, name: str) -> int | None:
        """Return the newest version of the name that is registered here."""
        return self._newest.get(name)

    def names(self) -> list[str]:
        """Return `NAME@VERSION` of all functions except the engine's own, sorted."""
        return sorted(self._functions.keys() - self._own.keys())

    def __iter__(self) -> Iterator[Function]:
        return iter([self._functions[name] for name in self.names()])
