"""The built-ins and modules that a script can use.

This list is **not** a security boundary: `().__class__.__base__.__subclasses__()` reaches everything that the interpreter has
loaded. It keeps honest scripts portable; the limits on the process protect the machine.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Mapping, Sequence
from typing import Any

MODULES = (
    "base64", "binascii", "bisect", "calendar", "cmath", "collections", "collections.abc", "copy", "csv", "dataclasses",
    "datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "hmac", "html", "io", "itertools",
    "json", "math", "numbers", "operator", "random", "re", "secrets", "statistics", "string", "struct", "textwrap", "time",
    "typing", "unicodedata", "urllib.parse", "uuid", "zlib",
)  # fmt: skip
"""Modules that scripts may import; all are loaded before the first script, as a child cannot read files."""

INDIRECT_MODULES = (
    "__future__", "_strptime", "encodings.ascii", "encodings.cp1252", "encodings.idna", "encodings.latin_1",
    "encodings.punycode", "encodings.raw_unicode_escape", "encodings.unicode_escape", "encodings.utf_16",
    "encodings.utf_16_be", "encodings.utf_16_le", "encodings.utf_32", "encodings.utf_8_sig", "heapq", "locale",
)  # fmt: skip
"""Modules that the modules above import on first use, such as a codec or the date parser."""

_FUNCTIONS = (
    "abs", "all", "any", "ascii", "bin", "callable", "chr", "delattr", "dir", "divmod", "enumerate", "filter", "format",
    "getattr", "hasattr", "hash", "hex", "id", "isinstance", "issubclass", "iter", "len", "map", "max", "min", "next", "oct",
    "ord", "pow", "print", "range", "repr", "reversed", "round", "setattr", "sorted", "sum", "vars", "zip",
)  # fmt: skip
_TYPES = (
    "bool", "bytearray", "bytes", "classmethod", "complex", "dict", "float", "frozenset", "int", "list", "memoryview", "object",
    "property", "set", "slice", "staticmethod", "str", "super", "tuple", "type",
)  # fmt: skip
_CONSTANTS = ("Ellipsis", "False", "None", "NotImplemented", "True", "__build_class__", "__debug__")


def load() -> None:
    """Import all modules that a script may need."""
    for name in MODULES + INDIRECT_MODULES:
        importlib.import_module(name)


def script_builtins() -> dict[str, Any]:
    """Return the built-ins of a script: functions, types, all exceptions, and an import limited to the list above."""
    names = {name: getattr(builtins, name) for name in _FUNCTIONS + _TYPES + _CONSTANTS}
    names |= {name: value for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)}
    names["__import__"] = _import
    return names


def _import(
    name: str,
    globals_: Mapping[str, object] | None = None,
    locals_: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    # The interpreter's own imports (such as the date parser) also call this; they pass a list, an import statement a tuple.
    if level or (name not in MODULES and name != "__future__" and not isinstance(fromlist, list)):
        raise ImportError(f"Scripts cannot import {name!r}. They can import: {', '.join(MODULES)}.", name=name)
    return builtins.__import__(name, globals_, locals_, fromlist or (), 0)
