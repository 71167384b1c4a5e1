"""Flags generated from the options in `treadle.api.options` and from the parameters of calls.

The declaration supplies name, type, help and choices; this module adds the flag's look and parses the typed text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any

import click

from treadle.api.contract import OptionField, option_fields
from treadle.api.options import ScheduleOptions, SourceOptions, TargetOptions, TimeOptions, WatcherChanges, WatcherOptions
from treadle.interfaces.cli.command import argument, make_param, option
from treadle.interfaces.cli.values import PARAM, PAYLOAD, TAG, any_json, moment, payload, record, seconds, tags

_NAMES = {
    "task_list": "--list",
    "task_id": "--task",
    "run_id": "--run",
    "root_id": "--root",
    "status": "--state",
    "error_code": "--code",
    "changes": "--on",
    "hashing": "--hash/--no-hash",
    "lasts": "--for",
    "resolved": "--resolved/--no-resolved",
    "inputs": "--payload",
}
_METAVARS = {
    **dict.fromkeys(("task", "workflow", "function", "scope", "name", "rule"), "NAME"),
    **dict.fromkeys(("task_id", "run_id", "root_id", "any_id", "before", "after", "on"), "ID"),
    **dict.fromkeys(("approval_id", "job_id", "objective_id", "member_id"), "ID"),
    **dict.fromkeys(("reason", "search", "title", "acceptance_criteria", "prompt"), "TEXT"),
    **dict.fromkeys(("unique_key", "idempotency_key", "limit_key", "fairness_key", "tick_as", "change_as"), "KEY"),
    **dict.fromkeys(("directory", "file"), "PATH"),
    **dict.fromkeys(("task_list", "scan_on"), "LIST"),
    "flow": "FLOW",
    "cron": "LINE",
    "zone": "ZONE",
    "url": "URL",
    "pattern": "GLOB",
    "trace_id": "ID",
    "facet_name": "FACET",
    "state": "STATE",
    "where": "QUERY",
    "activity": "ACTIVITY",
    "blocked_by": "ID|TEXT",
    "key": "KEY",
    "no_handler": "wait|ignore",
    "to": "URL|VARIABLE",
    "code": "GLOB",
}
_KIND_METAVARS = {
    "duration": "DURATION",
    "instant": "TIME",
    **dict.fromkeys(("integer", "number"), "N"),
    **dict.fromkeys(("object", "json", "record"), "JSON"),
}
_TYPES: dict[str, Any] = {"integer": int, "number": float, "boolean": bool, "choices": list[str]}
_SECTIONS: dict[type, dict[type, str]] = {
    TimeOptions: {TimeOptions: "When"},
    ScheduleOptions: {TimeOptions: "When", TargetOptions: "What", ScheduleOptions: "How"},
    WatcherOptions: {SourceOptions: "Where", TargetOptions: "What", WatcherOptions: "How"},
    WatcherChanges: {TargetOptions: "What", WatcherChanges: "How"},
}
_PAIRS = "input_pairs"
_WITHOUT = ("kind",)
"""Options that commands do not have."""


def flags(options: type) -> Iterator[click.Parameter]:
    """Yield the flags of an options class."""
    fields = {field.name: field for field in option_fields(options)}
    for name, field in fields.items():
        if name in _WITHOUT:
            continue
        panel = "What" if name.endswith("_as") else _section(options, name)
        if name == "tags":
            yield make_param(name, Annotated[list[str] | None, replace(TAG, panel=panel)], None)
        elif field.kind == "object":
            whole = replace(PAYLOAD, help=f"{field.doc.text}: a JSON object, @file or -; -p overrides fields", panel=panel)
            yield make_param(name, Annotated[str | None, whole], None)
            yield make_param(_PAIRS, Annotated[list[str] | None, replace(PARAM, panel=panel)], None)
        else:
            yield flag(field, field.doc.default, fields, panel=panel)


def flag(field: OptionField, default: Any, others: Collection[str] = (), name: str = "", panel: str = "") -> click.Parameter:
    """The flag of an option or a parameter; its help names the `others` by their flags."""
    kind = _TYPES.get(field.kind, str)
    flag_name = name or _NAMES.get(field.name) or _flag(field)
    spec = option(flag_name, metavar=_metavar(field), help=_help(field, others), panel=panel)
    return make_param(field.name, Annotated[kind | None, spec], default)


def positional(field: OptionField, *, required: bool, metavar: str = "") -> click.Parameter:
    """The positional argument of a parameter."""
    word = metavar or _metavar(field) or field.name.upper()
    spec = argument(metavar=word if required else f"[{word}]", help=_help(field, ()))
    kind = _TYPES.get(field.kind, str)
    return make_param(field.name, Annotated[kind | None, spec], *(() if required else (None,)))


def parse(fields: Iterable[OptionField], typed: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the typed flags to the arguments of the API, without those not given. Times are in the zone of `--zone`."""
    values = {}
    for field in fields:
        value = typed.get(field.name)
        match field.kind:
            case "duration":
                value = seconds(value, _flag(field)) if isinstance(value, str) else value
            case "instant":
                value = moment(value, _flag(field), typed.get("zone") or "UTC", end=field.name == "until")
            case "object" if field.name == "tags":
                value = tags(value)
            case "object":
                value = payload(value, typed.get(_PAIRS) or ())
            case "json":
                value = any_json(value, field.name)
            case "record" if value is not None:
                value = record(value, field.name, field.hint)
        if value is not None:
            values[field.name] = value
    return values


def _flag(field: OptionField) -> str:
    if field.name == "every" and field.kind == "boolean":
        return "--all"
    return _NAMES.get(field.name, f"--{field.name.replace('_', '-')}").partition("/")[0]


def _metavar(field: OptionField) -> str | None:
    return "|".join(field.choices) or _METAVARS.get(field.name) or _KIND_METAVARS.get(field.kind)


def _section(options: type, name: str) -> str:
    return next((title for part, title in _SECTIONS.get(options, {}).items() if name in part.__annotations__), "")


def _help(field: OptionField, others: Collection[str]) -> str:
    """The documented text in terms of the command line; without the unit of a duration, as flags take `90`, `5m` or `2h`."""
    text = field.doc.text
    if text.startswith("`next_"):
        return f"Next page: only records {field.name} this one"
    if field.kind == "duration":
        text = re.sub(r",? in seconds( from now)?", "", text).replace("this many seconds", "this long")
    if field.kind in ("object", "json", "record"):
        text += " (JSON, @file, or - for stdin)"
    return with_flags(text, others).replace("null: ", "default: ")


def with_flags(text: str, names: Collection[str]) -> str:
    """The text with the flags of the named options and parameters in place of their names."""
    flags = {name: _NAMES.get(name, f"--{name.replace('_', '-')}").partition("/")[0] for name in names}
    return re.sub(r"`(\w+)`", lambda match: flags.get(match[1], match[0]), text)
