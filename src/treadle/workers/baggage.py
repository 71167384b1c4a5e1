"""The baggage of work: values of context variables that its caller has set, as its handlers and functions see them.

A task or a run stores the values when it is enqueued or started, and all work that follows from it has the same. Values of
variables that a process does not know are passed on unseen.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import Context, ContextVar, copy_context
from typing import Any

from treadle.kernel.store.value_store import ValueStore
from treadle.model.errors import InvalidInput
from treadle.model.values import Json, decode_object, encode, shown

_LIMIT = 4096
_UNSET = object()
_inherited: ContextVar[dict[str, Json]] = ContextVar("treadle_baggage", default={})  # noqa: B039 - never changed
"""The baggage of the work that this code runs for."""
_outside: ContextVar[Context | None] = ContextVar("treadle_outside", default=None)
"""The context in which that baggage was set."""


def context_without_baggage() -> Context:
    """Return a copy of this context as it was before the baggage of the work that this code runs for."""
    return (_outside.get() or copy_context()).copy()


class Baggage:
    """The context variables that an engine propagates, by name."""

    def __init__(self, variables: Iterable[ContextVar[Any]] = ()) -> None:
        self._variables: dict[str, ContextVar[Any]] = {}
        for variable in variables:
            if not isinstance(variable, ContextVar):
                raise InvalidInput(f"propagate takes context variables, not {shown(variable)}.")
            if self._variables.setdefault(variable.name, variable) is not variable:
                raise InvalidInput(f"propagate has two context variables with the name {variable.name!r}.")

    def __bool__(self) -> bool:
        return bool(self._variables)

    def pack(self, value_store: ValueStore) -> str | None:
        """Return the values that are set here, in stored form; None if there are none. Raises `InvalidPayload` if not JSON."""
        values = {name: variable.get(_UNSET) for name, variable in self._variables.items()}
        values = {**_inherited.get(), **{name: value for name, value in values.items() if value is not _UNSET}}
        return value_store.encode_text(encode(values, "value of the context variables", _LIMIT)) if values else None

    def unpack(self, stored: str, value_store: ValueStore) -> None:
        """Set the variables in this context to stored values."""
        values = decode_object(value_store.plain(stored))
        _outside.set(copy_context())
        _inherited.set(values)
        for name, variable in self._variables.items():
            if name in values:
                variable.set(values[name])


NO_BAGGAGE = Baggage()
