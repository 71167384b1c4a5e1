"""Parsers of typed values: durations, times, payloads, parameters. Invalid text raises `InvalidInput`."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from treadle.interfaces.cli.command import option
from treadle.model.clock import milliseconds, parse_duration
from treadle.model.errors import InvalidInput, InvalidPayload, InvalidPolicy
from treadle.model.values import Json

PARAM = option(
    "--param", "-p", metavar="KEY=VALUE", help="One field of the inputs, as JSON or text; repeatable", former=("--input", "-i")
)
PAYLOAD = option(
    "--payload", metavar="JSON", help="The inputs: a JSON object, @file or - for stdin; -p overrides fields", former=("--inputs",)
)
TAG = option("--tag", metavar="KEY=VALUE", help="A search attribute: text, a number, true, false or a time; repeatable")
Params = Annotated[list[str] | None, PARAM]
TagPairs = Annotated[list[str] | None, TAG]
Payload = Annotated[str | None, PAYLOAD]

_SHOWN = 60


def seconds(text: str | None, what: str) -> float | None:
    """Seconds from `90`, `1.5s`, `200ms`, `5m`, `2h` or `1d`; None from None."""
    return None if text is None else parse_duration(text, what)


def wait_limit(text: str | None) -> float | None:
    """The seconds of `--wait-for`; None from None."""
    limit = seconds(text, "--wait-for")
    return None if limit is None else milliseconds(limit, "--wait-for") / 1000


Deadline = Annotated[
    str | None, option("--deadline", metavar="DURATION|TIME", help="Cancel the run after this long (2h), or at this time")
]
FairnessKey = Annotated[
    str | None,
    option("--fairness-key", metavar="KEY", help="Fair queueing: tasks of different keys in a list are claimed alternately"),
]


def deadline_option(text: str | None) -> dict[str, Any]:
    """The option of a start for a duration such as `2h`, or for a time such as `2027-01-15T09:00`."""
    if text is None:
        return {}
    if "-" in text.strip()[1:] or ":" in text:
        return {"deadline_at": moment(text, "--deadline")}
    return {"deadline": seconds(text, "--deadline")}


def moment(text: str | None, what: str, zone: str = "UTC", *, end: bool = False) -> datetime | None:
    """Parse ISO 8601 text such as `2027-01-15T09:00`, in the time zone unless it has its own offset; None from None.

    A day without a time is its first instant, or, as the `end` of a range, the first instant after it.
    """
    if text is None:
        return None
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidPolicy(f"{what} must be a time like 2027-01-15T09:00 or 2027-01-15T09:00:00+01:00, not {text!r}.") from None
    if end and _is_day(text.strip()):
        instant += timedelta(days=1)
    if instant.tzinfo is not None:
        return instant
    from treadle.kernel.schedules.ticks import find_zone

    return instant.replace(tzinfo=find_zone(zone))


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def payload(text: str | None, parameters: Sequence[str] = ()) -> dict[str, Json] | None:
    """The payload from JSON, `@file` or `-` (stdin), overridden by `key=value` pairs; None if nothing is given."""
    return None if text is None and not parameters else workflow_inputs({}, text, parameters, "payload")


def edits(text: str | None) -> dict[str, Json] | None:
    """The edits of an approval's context, from JSON, `@file` or `-` (stdin); None if nothing is given."""
    return None if text is None else _object(text, "edits")


def any_json(text: str | None, what: str) -> Json:
    """Any JSON value from text, `@file` or `-` (stdin); None from None."""
    return None if text is None else _parse(_read(text, what), what)


def record(text: str, what: str, kind: type) -> Any:
    """A record of the API from JSON, `@file` or `-` (stdin)."""
    from msgspec import ValidationError

    from treadle.api.wire import from_builtins

    try:
        return from_builtins(any_json(text, what), kind)
    except ValidationError as error:
        raise InvalidPayload(f"This is not the JSON of the {what}: {error}.") from None


def workflow_inputs(texts: Mapping[str, bool], whole: str | None, pairs: Sequence[str], what: str = "inputs") -> dict[str, Json]:
    """A workflow's inputs from a JSON object (or `@file`, `-`), overridden by `key=value` pairs.

    A value is JSON or text; for the parameters `texts`, those of type String, it is always text, so that `zip=01234` needs
    no quotes; for a `String?` (true), only `null` without quotes is null.
    """
    inputs: dict[str, Json] = {} if whole is None else dict(_object(whole, what))
    for pair in pairs:
        key, value = _pair(pair)
        is_null = value == "null" and texts.get(key, False)
        inputs[key] = None if is_null else _text(value) if key in texts else _json_or_text(value)
    return inputs


def tags(pairs: Sequence[str] | None) -> dict[str, Json] | None:
    """The tags of `key=value` pairs; a value is JSON or text. None if there are none."""
    return {key: _json_or_text(text) for key, text in (_pair(pair, "--tag") for pair in pairs)} if pairs else None


def _object(text: str, what: str) -> dict[str, Json]:
    value = _parse(_read(text, what), what)
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}.get(type(value), "null")
        subject = f"{what[0].upper()}{what[1:]}" if what.endswith("s") else f"A {what}"
        raise InvalidPayload(f'{subject} must be a JSON object like {{"name": "Ada"}}, not {kind}.')
    return value


def _read(text: str, what: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidPayload(f"The {what} file {text[1:]} cannot be read: {reason}.") from None


def _parse(text: str, what: str) -> Json:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        excerpt = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        verb = "are" if what.endswith("s") else "is"
        raise InvalidPayload(
            f"The {what} {verb} not JSON: {error}; got {excerpt!r}. In a shell, put it in single quotes."
        ) from None


def _no_constant(word: str) -> Json:
    raise ValueError(f"{word} is not JSON")


def _pair(pair: str, flag: str = "-p") -> tuple[str, str]:
    key, equals, text = pair.partition("=")
    if not equals or not key:
        raise InvalidInput(f"{flag} takes key=value, not {pair!r}.")
    return key, text


def _json_or_text(text: str) -> Json:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return text


def _text(text: str) -> str:
    """The text, or the content of its quotes."""
    value = _json_or_text(text) if text.startswith('"') else text
    return value if isinstance(value, str) else text
