"""`ToolRegistry`: callables by facet name, with short names and a default, for `RunnerService` and `ClaudeAgentRunner`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from treadle.model.errors import InvalidInput
from treadle.model.names import check_name, short_name

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
        check_name(name)
        if name.startswith("afl:"):
            raise InvalidInput(f"{name!r}: names that start with afl: are reserved for the engine.")
        if not callable(handler):
            raise InvalidInput(f"The handler {name} must be a function, not {type(handler).__name__}.")
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
        found = self._tools.get(name) or self._tools.get(short_name(name))
        if found is not None or self._default is None:
            return found
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
        from treadle.agents.invoke import call_tool

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


def _takes_name(handler: Callable[..., Any]) -> bool:
    """Return whether a default handler needs two arguments: the name and the payload."""
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return False
    needed = [each for each in signature.parameters.values() if each.default is each.empty]
    return sum(each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD) for each in needed) == 2
