"""What `schedules` and `watchers` take alike: tables of options, each said once, and what people typed made into values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from treadle.cli.command import option
from treadle.cli.input.values import moment, payload, seconds

F = TypeVar("F", bound=Callable[..., Any])

Options = Mapping[str, Any]
"""Types with their `option`, by the name of the parameter."""

_WHAT = "What"
_WHOLE, _PAIRS = "whole", "pairs"

TARGET: Options = {
    "task": Annotated[str | None, option(metavar="NAME", help="Start a task of this handler", panel=_WHAT)],
    "workflow": Annotated[str | None, option(metavar="NAME", help="Start a run of this workflow of --flow", panel=_WHAT)],
    "function": Annotated[str | None, option(metavar="NAME", help="Start a run of this durable function", panel=_WHAT)],
    "flow": Annotated[str | None, option(metavar="FLOW", help="The published flow of the workflow", panel=_WHAT)],
    _WHOLE: Annotated[
        str | None,
        option("--payload", metavar="JSON", help="Payload or inputs: a JSON object, @file, -", panel=_WHAT),
    ],
    _PAIRS: Annotated[list[str] | None, option("--param", "-p", metavar="KEY=VALUE", help="One field of it", panel=_WHAT)],
    "task_list": Annotated[str | None, option("--list", metavar="LIST", help="The task list", panel=_WHAT)],
    "priority": Annotated[int | None, option(help="Smaller runs first", panel=_WHAT)],
    "retry": Annotated[int | None, option(metavar="N", help="Retries of the task", panel=_WHAT)],
    "timeout": Annotated[str | None, option(metavar="DURATION", help="Longest time for one attempt of the task", panel=_WHAT)],
}
"""What is started."""


def takes(*tables: Options) -> Callable[[F], F]:
    """The decorated command takes the options of these tables as well: they are its `**given`, None where they were not."""

    def mark(body: F) -> F:
        own = list(inspect.signature(body, eval_str=True).parameters.values())
        named = [each.replace(kind=each.KEYWORD_ONLY) for each in own if each.kind is not each.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for table in tables
            for name, hint in table.items()
        ]
        needed = [each for each in named if each.default is each.empty]
        body.__signature__ = inspect.Signature([*needed, *more, *(each for each in named if each not in needed)])  # type: ignore[attr-defined]
        return body

    return mark


def said(given: Options, *, durations: Iterable[str] = (), moments: Iterable[str] = ()) -> dict[str, Any]:
    """What was typed as the contract takes it; what was not typed is not in it. Times are in the zone that is given."""
    values = dict(given)
    for name in durations:
        values[name] = seconds(values.get(name), f"--{name.replace('_', '-')}")
    for name in moments:
        values[name] = moment(values.get(name), f"--{name}", values.get("zone") or "UTC")
    values["inputs"] = payload(values.pop(_WHOLE, None), values.pop(_PAIRS, None) or ())
    return {name: value for name, value in values.items() if value is not None}
