"""Flags for the options of tasks, schedules and watchers, generated from the fields in `treadle.api.options`.

The definition supplies name, type, help and choices; this module adds the flag's look and parses the typed text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import click

from treadle.api.contract import OptionField, option_fields
from treadle.api.options import ScheduleOptions, SourceOptions, TargetOptions, TimeOptions, WatcherChanges, WatcherOptions
from treadle.interfaces.cli.command import make_param, option
from treadle.interfaces.cli.input.values import PARAM, PAYLOAD, TAG, moment, payload, seconds, tags

_NAMES = {
    "task_list": "--list",
    "changes": "--on",
    "hashing": "--hash/--no-hash",
    "lasts": "--for",
    "resolved": "--resolved/--no-resolved",
    "inputs": "--payload",
}
_METAVARS = {
    **dict.fromkeys(("task", "workflow", "function", "scope"), "NAME"),
    **dict.fromkeys(("unique_key", "idempotency_key", "limit_key", "fairness_key", "tick_as", "change_as"), "KEY"),
    **dict.fromkeys(("directory", "file"), "PATH"),
    **dict.fromkeys(("task_list", "looked_by"), "LIST"),
    "flow": "FLOW",
    "cron": "LINE",
    "zone": "ZONE",
    "url": "URL",
    "pattern": "GLOB",
    "trace_id": "ID",
    "to": "URL|VARIABLE",
    "code": "GLOB",
}
_KIND_METAVARS = {"duration": "DURATION", "instant": "TIME", "integer": "N"}
_SECTIONS: dict[type, dict[type, str]] = {
    TimeOptions: {TimeOptions: "When"},
    ScheduleOptions: {TimeOptions: "When", TargetOptions: "What", ScheduleOptions: "How"},
    WatcherOptions: {SourceOptions: "Where", TargetOptions: "What", WatcherOptions: "How"},
    WatcherChanges: {TargetOptions: "What", WatcherChanges: "How"},
}
_PAIRS = "input_pairs"


def flags(options: type) -> Iterator[click.Parameter]:
    """Yield the flags of an options class."""
    fields = {each.name: each for each in option_fields(options)}
    for name, field in fields.items():
        panel = "What" if name.endswith("_as") else _section(options, name)
        kind: Any = {"integer": int, "boolean": bool, "choices": list[str]}.get(field.kind, str)
        metavar = "|".join(field.choices) or _METAVARS.get(name) or _KIND_METAVARS.get(field.kind)
        text = re.sub(r"`(\w+)`", lambda found: _flag(found[1]) if found[1] in fields else found[0], _help(field))
        if name == "tags":
            yield make_param(name, Annotated[list[str] | None, replace(TAG, panel=panel)], None)
        elif field.kind == "object":
            whole = replace(PAYLOAD, help=f"{text}: a JSON object, @file or -; -p overrides fields", panel=panel)
            yield make_param(name, Annotated[str | None, whole], None)
            yield make_param(_PAIRS, Annotated[list[str] | None, replace(PARAM, panel=panel)], None)
        else:
            spec = option(_NAMES.get(name) or _flag(name), metavar=metavar, help=text, panel=panel)
            yield make_param(name, Annotated[kind | None, spec], field.doc.default)


def parse(options: type, typed: dict[str, Any]) -> dict[str, Any]:
    """Convert the typed flags to the arguments of the API, without those not given. Times are in the zone of `--zone`."""
    values = {}
    for field in option_fields(options):
        value = typed.get(field.name)
        match field.kind:
            case "duration":
                value = seconds(value, _flag(field.name))
            case "instant":
                value = moment(value, _flag(field.name), typed.get("zone") or "UTC")
            case "object" if field.name == "tags":
                value = tags(value)
            case "object":
                value = payload(value, typed.get(_PAIRS) or ())
        if value is not None:
            values[field.name] = value
    return values


def _flag(name: str) -> str:
    return _NAMES.get(name, f"--{name.replace('_', '-')}").partition("/")[0]


def _section(options: type, name: str) -> str:
    return next((title for part, title in _SECTIONS.get(options, {}).items() if name in part.__annotations__), "")


def _help(field: OptionField) -> str:
    """The documented text without the unit of a duration, because flags take `90`, `5m` or `2h`."""
    text = field.doc.text
    if field.kind == "duration":
        text = re.sub(r",? in seconds( from now)?", "", text).replace("this many seconds", "this long")
    return text
