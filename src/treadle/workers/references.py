"""Typed references to registered code, which the decorators of an engine return."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, ParamSpec, Self, TypeVar, Unpack

from treadle.api.options import EnqueueOptions, FunctionOptions
from treadle.model.clock import Duration
from treadle.model.errors import InvalidInput
from treadle.model.text import suggestion
from treadle.model.values import Json
from treadle.workers.signatures import Signature

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class HandlerCallOptions(EnqueueOptions, total=False):
    """Options of a task: those of `Engine.enqueue`, and the key of the step for `ctx.call`."""

    idempotency_for: Duration
    key: str | None


class FunctionCallOptions(FunctionOptions, total=False):
    """Options of a run: those of `Engine.start`, and the key of the step for `ctx.start`."""

    actor: str | None
    key: str | None
    on_parent_close: Literal["cancel", "terminate", "abandon"] | None


class CodeReference(Generic[P, R_co]):
    """Registered code: its parameters (without `ctx`) and its result type. Calling it calls the code itself."""

    def __init__(self, name: str, fn: Callable[..., Any], signature: Signature) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.name = name
        """The name of its tasks or runs."""
        self.__treadle_code__ = fn
        self.signature = signature
        self.options: Mapping[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the code directly, without the engine, as tests do."""
        return self.__treadle_code__(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "__treadle_code__":  # while it is copied
            raise AttributeError(name)
        return getattr(self.__treadle_code__, name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def __reduce__(self) -> str:
        """Pickle it by the name of the code, which it has replaced in its module."""
        return str(self.__dict__["__qualname__"])

    def _with(self, options: Mapping[str, Any]) -> Self:
        changed = object.__new__(type(self))
        changed.__dict__.update(self.__dict__)
        changed.options = {**self.options, **options}
        return changed

    def options_for(self, call: str, allowed: frozenset[str]) -> dict[str, Any]:
        """Return the options, or raise `InvalidInput` for one that the call does not take."""
        for name in self.options:
            if name not in allowed:
                near = suggestion(name, allowed) or "."
                raise InvalidInput(f"{call} does not take the option {name}, which was set for {self.name}{near}")
        return dict(self.options)

    def payload(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Json]:
        """Return the payload for a call with those arguments; raises `InvalidPayload` if they do not match."""
        return self.signature.dump(args, kwargs)


class Handler(CodeReference[P, R_co]):
    """A registered handler or task: pass it to `engine.enqueue`, `engine.map` or `ctx.call`, with its arguments."""

    def with_options(self, **options: Unpack[HandlerCallOptions]) -> Self:
        """Return the same handler with options for its next calls: `engine.enqueue(pack.with_options(delay=60), order)`."""
        return self._with(options)


class Function(CodeReference[P, R_co]):
    """A registered durable function: pass it to `engine.start`, `engine.map` or `ctx.start`, with its arguments."""

    def with_options(self, **options: Unpack[FunctionCallOptions]) -> Self:
        """Return the same function with options for its next starts: `engine.start(flow.with_options(priority=-1), order)`."""
        return self._with(options)


ENQUEUE_OPTIONS = frozenset(HandlerCallOptions.__annotations__) - {"key"}
START_OPTIONS = frozenset(FunctionCallOptions.__annotations__) - {"key", "on_parent_close"}
CALL_OPTIONS = frozenset({"key", "task_list", "priority", "retry", "timeout", "deadline", "limit_key", "limit"})
CHILD_OPTIONS = frozenset({"key", "version", "task_list", "priority", "on_parent_close"})
"""The options that `enqueue`, `start`, `ctx.call` and `ctx.start` take."""
