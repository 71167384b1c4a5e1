"""Calls of an agent's function for a task: keys added to its payload, and its result as an outcome. Nothing here is durable."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Self

from treadle.agents.entities import without_kept
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.model.names import check_name, short_name
from treadle.model.outcomes import Outcome
from treadle.workers.call import outcome_of, outcome_of_error
from treadle.workers.context import Context

UpdateStep = Callable[[str, Mapping[str, Any]], None]

ADDED = (
    "_facet_name",
    "_handler_metadata",
    "_attempt",
    "_retry_count",
    "_task_id",
    "_step_id",
    "_workflow_id",
    "_step_log",
    "_update_step",
)
"""Keys that runners add to a payload; results never contain them."""

_LEVELS = ("success", "debug", "info", "warning", "error")


def payload_for(
    payload: dict[str, Any], context: Context, update: UpdateStep | None, metadata: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the function's argument: the task's payload with the runner's keys.

    Raises `NonRetryable` for a payload that already has such keys.
    """
    payload = without_kept(payload)
    for key in payload:
        if key.startswith("_"):
            raise NonRetryable(
                f"The payload key {key!r} starts with an underscore; such keys are added by runners. Rename the parameter.",
                "reserved_key",
            )
    task = context.task

    def step_log(message: str, level: str = "info", details: dict[str, Any] | None = None) -> None:
        context.log(message, level if level in _LEVELS else "info", **(details or {}))

    def update_step(partial: Mapping[str, Any]) -> None:
        if update is not None and task.step_id is not None:
            update(task.step_id, partial)

    added = {
        "_facet_name": task.name,
        "_attempt": task.attempt,
        "_retry_count": task.attempt - 1,
        "_task_id": task.id,
        "_step_id": task.step_id or "",
        "_workflow_id": task.run_id or "",
        "_handler_metadata": {} if metadata is None else metadata,
        "_step_log": step_log,
        "_update_step": update_step,
    }
    return {**payload, **added}


def call_tool(function: Callable[[dict[str, Any]], Any], payload: dict[str, Any], timeout_for: int | None = None) -> Any:
    """Call the function in this thread; a coroutine runs in its own event loop, and is canceled after the timeout."""
    returned = function(payload)
    if inspect.iscoroutine(returned):
        returned = asyncio.run(_within(returned, timeout_for))
    if isinstance(returned, dict):
        return {name: value for name, value in returned.items() if name not in ADDED}
    return returned


async def _within(coroutine: Coroutine[Any, Any, Any], timeout_for: int | None) -> Any:
    seconds = None if timeout_for is None else timeout_for / 1000
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await coroutine
    except TimeoutError:
        if not limit.expired():
            raise
        raise NonRetryable(f"The attempt took longer than {seconds:g} s and was stopped.", "timeout") from None


def attempt(call: Callable[..., Any], payload: dict[str, Any], context: Context) -> Outcome:
    """Run a handler in this thread; every end but Ctrl-C is an outcome."""
    with CtrlC() as ctrl_c:
        try:
            return outcome_of(call(payload, context))
        except BaseException as error:
            if ctrl_c.pressed:
                raise
            return outcome_of_error(error)


def is_interrupt(error: BaseException) -> bool:
    """Return whether the exception may be Ctrl-C, which only the main thread receives."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


class CtrlC:
    """Distinguishes Ctrl-C from a KeyboardInterrupt raised by user code, which is a failure like any other.

    Only the main thread receives Ctrl-C, and only if the program has not installed its own handler for SIGINT.
    """

    def __init__(self) -> None:
        self.pressed = False

    def __enter__(self) -> Self:
        self._press: Callable[[int, Any], None] | None = None
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._press = self._interrupt
            signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: object) -> None:
        if self._press is not None and signal.getsignal(signal.SIGINT) is self._press:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _interrupt(self, _: int, __: Any) -> None:
        self.pressed = True
        raise KeyboardInterrupt


Tool = Callable[[dict[str, Any]], Any]
"""Takes a payload and returns a dict; may be a coroutine function."""
Default = Tool | Callable[[str, dict[str, Any]], Any]
"""A default handler may also take the name before the payload."""


class ToolRegistry:
    """Handlers by qualified or short name; each name has one. `find` matches the exact name, then the short name, then the
    default."""

    def __init__(self, default: Default | None = None) -> None:
        self._tools: dict[str, Tool] = {}
        self._default = default

    def register(self, name: str, handler: Tool) -> None:
        """Add a handler, or replace the one of that name; raise `InvalidInput` for an object that cannot be called."""
        check_handler(name, handler)
        self._tools[name] = handler

    def register_default(self, handler: Default) -> None:
        """Set the handler for tasks that no other one matches; it takes the payload, or the name and the payload."""
        if not callable(handler):
            raise InvalidInput(f"The default handler must be a function, not {type(handler).__name__}.")
        self._default = handler

    set_default_handler = register_default

    @property
    def default(self) -> Default | None:
        """The default handler, if there is one."""
        return self._default

    def find(self, name: str) -> Tool | None:
        """Return the handler for tasks of that name."""
        tool = self._tools.get(name) or self._tools.get(short_name(name))
        if tool is not None or self._default is None:
            return tool
        default: Callable[..., Any] = self._default
        return partial(default, name) if _takes_name(default) else default

    def has_handler(self, name: str) -> bool:
        """Whether there is a handler for tasks of that name."""
        return self.find(name) is not None

    def can_dispatch(self, facet_name: str) -> bool:
        """Whether there is a handler for tasks of that name."""
        return self.find(facet_name) is not None

    def dispatch(self, facet_name: str, payload: dict[str, Any]) -> dict[str, Any] | None:
        """Call the handler in this thread; raise `InvalidInput` if there is none."""
        handler = self.find(facet_name)
        if handler is None:
            raise InvalidInput(f"There is no handler for {facet_name}.")
        returned: dict[str, Any] | None = call_tool(handler, payload)
        return returned

    def handle(self, name: str, payload: dict[str, Any]) -> dict[str, Any] | None:
        """Call the handler in this thread; return None if there is none."""
        return self.dispatch(name, payload) if self.can_dispatch(name) else None

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._tools)

    def __iter__(self) -> Iterator[tuple[str, Tool]]:
        return iter(self._tools.items())

    def __len__(self) -> int:
        return len(self._tools)


def check_handler(name: str, handler: object) -> None:
    """Reject a name that tasks of facets cannot have, and an object that cannot be called."""
    check_facet_name(name)
    if not callable(handler):
        raise InvalidInput(f"The handler of {name} must be a function, not {type(handler).__name__}.")


def check_facet_name(name: str) -> None:
    """Reject a name that facets cannot have."""
    check_name(name, "facet name")
    if name.startswith("afl:"):
        raise InvalidInput(f"{name!r}: names that start with afl: are reserved for the engine.")


def _takes_name(handler: Callable[..., Any]) -> bool:
    """Return whether a default handler needs two arguments: the name and the payload."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return False
    needed = [parameter for parameter in signature.parameters.values() if parameter.default is parameter.empty]
    return sum(parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD) for parameter in needed) == 2
