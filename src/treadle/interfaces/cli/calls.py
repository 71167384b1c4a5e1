"""Commands that are one call of the API: their flags are its parameters, their output is the view of the record it returns.

A command that does more is a function in `commands`; `SPECIAL` has the words in which a derived one differs from its declaration.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, Unpack, get_args, get_origin, get_type_hints

import click
import msgspec

from treadle.api.contract import Parameter, call_of, field_of
from treadle.api.facade import protocol_of
from treadle.api.tasks import WAIT_LIMIT
from treadle.api.view import fill, rows_of, view_of
from treadle.interfaces.cli.command import make_param, option
from treadle.interfaces.cli.flags import flag, flags, parse, positional, with_flags
from treadle.interfaces.cli.format import details, plain, table
from treadle.interfaces.cli.messages import WaitTimedOut, end_progress, print_progress
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.typed_inputs import check_inputs

if TYPE_CHECKING:
    from treadle.api.runs import RunOutputs
    from treadle.api.tasks import TaskResult


ACTOR = Annotated[str | None, option("--as", metavar="NAME", help="Name recorded in the log; default: cli:USER")]


class Special(NamedTuple):
    """How a command differs from the declaration of its call."""

    flags: Mapping[str, str] = MappingProxyType({})
    """Flags of parameters, where they are not the usual ones; `[NAME]` is an optional positional argument."""
    without: Sequence[str] = ()
    """Parameters that the command does not have."""
    defaults: Mapping[str, Any] = MappingProxyType({})
    text: str = ""
    """The message after it, instead of that of the view."""
    show: str = ""
    """`module:function` below `commands` that shows the result, instead of the view."""
    json: str = ""
    """`module:function` below `commands` that makes the JSON of the result."""
    claims_actor: bool = False
    """Whether callers may give the name that is recorded."""
    creates: bool = False
    """Whether it creates the first records of a store, so that it migrates the schema."""


SPECIAL = {
    "alerts.create": Special(
        creates=True, text="{name} is {state} now; `treadle alerts test {name}` sends a test message to {to}."
    ),
    "alerts.list": Special({"rule": "--rule"}, without=("firing",)),
    "alerts.silence": Special({"lasting": "--for"}, defaults={"lasting": "1h"}, show="triggers:show_silence"),
    "alerts.test": Special(show="triggers:show_test"),
    "dispatch.enqueue": Special(creates=True),
    "external_jobs.cancel": Special(text="The job {external_job_id} is canceled; a worker notifies its service."),
    "external_jobs.poll_now": Special(text="The job {external_job_id} is due now."),
    "flows.list": Special({"name": "[NAME]"}),
    "lists.desired": Special(
        {"task_list": "[LIST]", "name": "--handler", "least": "--min", "most": "--max"},
        defaults={"task_list": "default"},
        text="{desired}: {text}",
    ),
    **dict.fromkeys(
        ("lists.list", "lists.get", "lists.pause", "lists.resume", "lists.drain", "lists.set_policy"),
        Special(show="queue:show_lists"),
    ),
    "objectives.add": Special({"acceptance_criteria": "--accept"}, claims_actor=True, creates=True),
    **dict.fromkeys(("objectives.approve", "objectives.block", "objectives.unblock"), Special(claims_actor=True)),
    "objectives.board": Special(show="objectives:show_board"),
    "objectives.edit": Special({"acceptance_criteria": "--accept"}, claims_actor=True),
    "runs.cancel": Special(show="runs:show_canceled"),
    "runs.query": Special(show="functions:show_value"),
    "runs.usage": Special(show="runs:show_usage"),
    **dict.fromkeys(
        ("schedules.list", "schedules.pause", "schedules.resume", "schedules.remove"), Special(json="triggers:as_json")
    ),
    "schedules.edit": Special(without=("clear",), json="triggers:as_json"),
    "schedules.get": Special(show="triggers:show_schedule"),
    "tasks.list": Special(without=("run_id",)),
    "store.info": Special(show="store:show_info"),
    "tokens.revoke": Special({"token": "ID|NAME"}),
    "traces.get": Special(show="history:show_trace"),
    "watchers.edit": Special(without=("clear",)),
    "watchers.get": Special(show="triggers:show_watcher"),
    "watchers.look": Special(text="{name} is scanned as soon as a worker is free"),
}
_NONE = Special()


class CallCommand:
    """The body of a command that is one call."""

    def __init__(self, call_id: str) -> None:
        group, _, name = call_id.partition(".")
        function = getattr(protocol_of(group), name)
        self.call = call_of(group, function)
        self.special = SPECIAL.get(call_id, _NONE)
        options = get_type_hints(function).get("options")
        self._options: type | None = get_args(options)[0] if get_origin(options) is Unpack else None
        without = {"kind", *self.special.without}
        self._parameters = [parameter for parameter in (*self.call.path, *self.call.others) if parameter.name not in without]
        self.__doc__ = with_flags(self.call.doc, [parameter.name for parameter in self._parameters if not parameter.required])
        self._fields = [field_of(parameter.name, parameter.hint) for parameter in self._parameters]

    def params(self) -> list[click.Parameter]:
        """The arguments and options."""
        of_options = list(flags(self._options)) if self._options else []
        names = {param.name for param in of_options}
        params = [self._param(parameter) for parameter in self._parameters if parameter.name not in names]
        return [*params, *of_options, *([make_param("actor", ACTOR, None)] if self.special.claims_actor else [])]

    def _param(self, parameter: Parameter) -> click.Parameter:
        field, name = field_of(parameter.name, parameter.hint), self.special.flags.get(parameter.name, "")
        if name.startswith("--") or not (parameter.required or name):
            default = self.special.defaults.get(parameter.name, parameter.default)
            names = [parameter.name for parameter in self._parameters]
            param = flag(field, None if default == () else default, names, name)
            if field.kind == "choices" and field.choices:
                param.type = click.Choice(field.choices)
            return param
        return positional(field, required=not name.startswith("["), metavar=name.strip("[]"))

    async def __call__(self, session: CommandSession, actor: str | None = None, **typed: Any) -> None:
        """Make the call and show its result."""
        session.refuse_claims(actor)
        values = parse(self._fields, {**self.special.defaults, **{name: typed[name] for name in typed if typed[name] is not None}})
        async with session.api(migrate=self.special.creates, actor=actor) as api:
            call = getattr(getattr(api, self.call.group), self.call.name)
            if self.call.route.creates:
                await check_inputs(api, f"{self.call.group}.{self.call.name}", values)
            result = await call(**values)
            if not getattr(result, "complete", True):
                result = await self._search_on(session, call, result, values)
            if self.special.show:
                await _function(self.special.show)(session, api, result)
                return
            now = datetime.min if session.json else (await api.system.time()).now
        value = _function(self.special.json)(result) if self.special.json else result
        show(session, result, now, value, changes=self.call.route.method != "GET", text=self.special.text)

    async def _search_on(
        self, session: CommandSession, call: Callable[..., Awaitable[Any]], page: Any, values: Mapping[str, Any]
    ) -> Any:
        """Continue a search until its page is full or nothing is left, showing progress."""
        name, _ = rows_of(type(page))
        limit = values.get("limit") or next(parameter.default for parameter in self._parameters if parameter.name == "limit")
        while not page.complete:
            print_progress(session, f"{page.searched:,} {name} searched, {len(getattr(page, name))} found")
            part = await call(**{**values, "before": page.next_before, "limit": limit - len(getattr(page, name))})
            page = msgspec.structs.replace(_sum(page, part), next_before=part.next_before, complete=part.complete)
        end_progress(session)
        return page


def _function(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"treadle.interfaces.cli.commands.{module}"), name)


def show(session: CommandSession, result: Any, now: datetime, value: Any = None, *, changes: bool = False, text: str = "") -> None:
    """Print a record: a page as a table, one as its facts, or after a change in one sentence. `value` is its JSON."""
    view = view_of(type(result))
    value = value or result
    if view is None and not text:
        show_page(session, result, now, value)
    elif view is not None and view.facts and not (changes or text):
        session.show(value, lambda: details(view, result, now))
    else:
        sentence = text or (view.changed if view is not None else "")
        session.show(value, lambda: plain(sentence(result) if callable(sentence) else fill(sentence, result)))


def show_page(session: CommandSession, page: Any, now: datetime, value: Any = None) -> None:
    """Print a page of records as a table, with the command that shows the next page."""
    name, view = rows_of(type(page))
    rows = getattr(page, name)
    empty = view.empty
    if getattr(page, "searched", None) is not None:
        empty = f"No {name} match."
    ways = ("before", "after") if getattr(page, "more", True) else ()
    following = {way: getattr(page, f"next_{way}") for way in ways if hasattr(page, f"next_{way}")}
    session.show_page(value or page, rows, empty, lambda: table(view, rows, now), **following)


R = TypeVar("R")


async def until_end(
    session: CommandSession, call: Callable[..., Awaitable[R]], describe: Callable[[R], str], /, **arguments: Any
) -> R:
    """Repeat a call until nothing is left, showing progress; return the sum of its results.

    Numbers are added and lists joined, except `matched`, which the first call counts.
    """
    total = part = await call(**arguments)
    while following := {way: getattr(part, f"next_{way}") for way in ("before", "after") if getattr(part, f"next_{way}", None)}:
        print_progress(session, describe(total))
        part = await call(**arguments, **following)
        total = _sum(total, part)
    end_progress(session)
    return total


def _sum(total: Any, part: Any) -> Any:
    summed = [name for name in part.__struct_fields__ if type(getattr(part, name)) in (int, list) and name != "matched"]
    return msgspec.structs.replace(total, **{name: getattr(total, name) + getattr(part, name) for name in summed})


E = TypeVar("E", "TaskResult", "RunOutputs")


async def wait_for_end(ask: Callable[[float], Awaitable[E]], limit: float | None, kind: str, work_id: str) -> E:
    """Ask for the end of a task or run until it has come, waiting up to `limit` seconds in all."""
    remaining = math.inf if limit is None else limit
    while True:
        part = min(remaining, WAIT_LIMIT)
        ending = await ask(part)
        remaining -= part
        if ending.finished:
            return ending
        if remaining <= 0:
            raise WaitTimedOut(
                f"{kind} {work_id} has not ended after {limit:g} s and continues. `treadle why {work_id}` shows its state."
            )
