"""The arguments of a step in one line, for lists: `url = "https://a/7", row = 7`. Pure, bounded, and safe for any value."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import CodeType, MethodType
from typing import Any

from treadle.model.user_values import number_of, storable, type_name
from treadle.model.values import BlobRef

LIMIT = 120
"""Characters of the line."""
_VALUE, _MEMBERS, _ARGUMENTS = 48, 4, 12
_SECRET = re.compile(r"passw|secret|token|credential|api_?key|private_?key|authori[sz]ation|cookie", re.IGNORECASE)


def arguments_text(values: Mapping[str, object]) -> str:
    """Return `name = value, ...`, shortened; large values appear by their size, and values with names of secrets as `***`."""
    parts: list[str] = []
    length = 0
    for number, (name, value) in enumerate(values.items()):
        part = f"{_cut(name, _VALUE)} = {'***' if _SECRET.search(name) else _shown(value)}"
        length += len(part) + 2
        if number == _ARGUMENTS or (parts and length > LIMIT):
            return _cut(storable(", ".join([*parts, "…"])), LIMIT + 3)
        parts.append(_cut(part, LIMIT))
    return _cut(storable(", ".join(parts)), LIMIT + 3)


def call_text(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments of a call in one line, with the names of the function's parameters as far as they are known.

    Never raises: objects of user code that cannot be described are left out.
    """
    if not args and not kwargs:
        return ""
    try:
        code = getattr(fn, "__code__", None)
        names = code.co_varnames[: code.co_argcount] if isinstance(code, CodeType) else ()
        first = 1 if isinstance(fn, MethodType) else 0
        named = {names[at] if at < len(names) else f"#{at - first + 1}": value for at, value in enumerate(args, first)}
        return arguments_text(named | kwargs)
    except Exception:
        return ""


def _shown(value: object, depth: int = 0) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return json.dumps(_cut(value, _VALUE), ensure_ascii=False)
    if (number := number_of(value)) is not None:
        return _cut(repr(number), _VALUE) if not isinstance(number, int) or number.bit_length() < 128 else "a large number"
    if isinstance(value, BlobRef):
        return f"({'list' if value.is_list else 'value'} of {value.size // 1024} KiB)"
    if type(value) in (list, tuple):
        return _list(value, depth)  # type: ignore[arg-type]
    if type(value) is dict:
        return _dict(value, depth)
    return f"<{type_name(value)}>"


def _list(value: list[object] | tuple[object, ...], depth: int) -> str:
    if depth or len(value) > _MEMBERS:
        return f"[{len(value)} items]" if len(value) != 1 else "[1 item]"
    return f"[{', '.join(_shown(each, depth + 1) for each in value)}]"


def _dict(value: dict[object, object], depth: int) -> str:
    if depth:
        return "{…}" if value else "{}"
    parts = []
    for name, each in list(value.items())[:_MEMBERS]:
        key = name if isinstance(name, str) else type_name(name)
        parts.append(f"{_cut(key, 24)}: {'***' if _SECRET.search(key) else _shown(each, depth + 1)}")
    return f"{{{', '.join([*parts, '…'] if len(value) > _MEMBERS else parts)}}}"


def _cut(text: str, limit: int) -> str:
    plain = str.__str__(text)
    return plain if len(plain) <= limit else f"{plain[: limit - 1]}…"
