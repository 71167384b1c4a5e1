"""The modules and built-ins that scripts may use: the compiler checks them, the sandbox provides them.

This list is **not** a security boundary: `().__class__.__base__.__subclasses__()` reaches everything that the interpreter has
loaded. It keeps honest scripts portable; the limits on the process protect the machine.
"""

from __future__ import annotations

import builtins

SCRIPT_MODULES = (
    "base64", "binascii", "bisect", "calendar", "cmath", "collections", "collections.abc", "copy", "csv", "dataclasses",
    "datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "hmac", "html", "io", "itertools",
    "json", "math", "numbers", "operator", "random", "re", "secrets", "statistics", "string", "struct", "textwrap", "time",
    "typing", "unicodedata", "urllib.parse", "uuid", "zlib",
)  # fmt: skip
"""Modules that scripts may import, apart from `__future__`; all are loaded before the first script."""

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
_EXCEPTIONS = tuple(name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException))

SCRIPT_BUILTINS = _FUNCTIONS + _TYPES + _CONSTANTS + _EXCEPTIONS
"""Built-in functions, types, constants and exceptions of scripts."""
