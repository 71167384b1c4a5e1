"""Values from user code in a form that can be stored, regardless of the methods of their types (D70). Pure.

Objects may have methods that raise, text may contain characters that a store refuses, and numbers and texts may be instances of
subclasses that an encoder refuses. Everything here returns plain types and never raises.
"""

from __future__ import annotations

from typing import Any

from treadle.model.errors.base import TreadleError
from treadle.model.errors.results import NonRetryable

TEXT_LIMIT = 64 * 1024
"""Characters of a stored text, such as an error message."""
CODE_LIMIT = 200
"""Characters of an error code or a type name."""

_NAME: Any = type.__dict__["__name__"]


def type_name(value: object) -> str:
    """Return the name of the value's type, without consulting its metaclass."""
    return storable(_NAME.__get__(type(value)), CODE_LIMIT)


def storable(text: str, limit: int = TEXT_LIMIT) -> str:
    """Return the text as a plain `str` that both stores accept, cut to the limit."""
    plain = str.__str__(text)[:limit].replace("\x00", "\\0")
    return plain if plain.isascii() else plain.encode("utf-8", "replace").decode()


def text_of(value: object, limit: int = TEXT_LIMIT) -> str:
    """Return `str(value)` as storable text, or a placeholder if that raises."""
    try:
        return storable(str(value), limit)
    except BaseException as error:
        return f"<{type_name(value)} whose __str__ raised {type_name(error)}>"


def shown(value: object, limit: int = 200) -> str:
    """Return `repr(value)` for a message, or a placeholder if that raises."""
    try:
        return storable(repr(value), limit)
    except BaseException as error:
        return f"<{type_name(value)} whose __repr__ raised {type_name(error)}>"


def number_of(value: object) -> int | float | None:
    """Return the value as a plain number; None if it is not one. A bool is not a number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, float) else None


def code_of(code: object, default: str) -> str:
    """Return an error code as storable text, or the default for a value that is not text."""
    return storable(code, CODE_LIMIT) if isinstance(code, str) and len(code) else default


def error_text(error: BaseException) -> str:
    """Return the message of an exception, or the name of its type if it has none."""
    return text_of(error) or type_name(error)


def error_code(error: BaseException, default: str) -> str:
    """Return the code of an exception of Treadle's own types, or the default."""
    if not isinstance(error, TreadleError):
        return default
    fixed = isinstance(error, NonRetryable)
    try:
        code = error.error_code if isinstance(error, NonRetryable) else error.code
    except Exception:
        code = ""
    return code_of(code, NonRetryable.code if fixed else default)
