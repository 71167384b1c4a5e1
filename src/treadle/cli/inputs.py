"""What people type, made into values: durations, payloads, parameters. Everything else raises `InvalidInput`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from treadle.model.errors import InvalidInput, InvalidPayload, InvalidPolicy
from treadle.model.values import Json

_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(-?\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SHOWN = 60


def seconds(text: str | None, what: str) -> float | None:
    """Seconds from `90`, `1.5s`, `200ms`, `5m`, `2h` or `1d`; None from None."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidPolicy(f"{what} must be a duration like 90, 1.5s, 200ms, 5m, 2h or 1d, not {text!r}.")
    return float(match[1]) * _UNITS[match[2] or ""]


def payload(text: str | None, parameters: Sequence[str] = ()) -> dict[str, Json] | None:
    """The payload from JSON, `@file`, `-` (stdin) or `key=value` pairs; None if nothing is given."""
    if text is not None and parameters:
        raise InvalidInput("Give either --payload or -p, not both.")
    if parameters:
        return dict(_parameter(given) for given in parameters)
    if text is None:
        return None
    value = _parse(_read(text))
    if not isinstance(value, dict):
        raise InvalidPayload(f'A payload is a JSON object like {{"name": "Ada"}}, not a {type(value).__name__}.')
    return value


def _read(text: str) -> str:
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidPayload(f"The payload file {text[1:]} cannot be read: {reason}.") from None


def _parse(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise InvalidPayload(f"The payload is not JSON: {error}; got {shown!r}. In a shell, put it in single quotes.") from None


def _parameter(given: str) -> tuple[str, Json]:
    key, equals, text = given.partition("=")
    if not equals or not key:
        raise InvalidInput(f"-p takes key=value, not {given!r}.")
    try:
        return key, json.loads(text)
    except ValueError:
        return key, text
