"""The built-ins and modules that a script can use; `treadle.model.scripts` lists them."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_INDIRECT_MODULES = (
    "__future__", "_strptime", "encodings.ascii", "encodings.cp1252", "encodings.idna", "encodings.latin_1",
    "encodings.punycode", "encodings.raw_unicode_escape", "encodings.unicode_escape", "encodings.utf_16",
    "encodings.utf_16_be", "encodings.utf_16_le", "encodings.utf_32", "encodings.utf_8_sig", "heapq", "locale",
)  # fmt: skip
"""Modules that the modules of scripts import on first use, such as a codec or the date parser."""

BUILTINS: dict[str, Any] = {}
"""The built-ins of a script, filled by `load`: those listed, and an import limited to the modules listed."""

_modules: list[str] = []


def load(modules: Iterable[str], names: Iterable[str]) -> None:
    """Import all modules that a script may need, as a child cannot read files, and collect its built-ins.

    This happens in the parent: collecting them touches a quarter of the memory pages that a small script touches.
    """
    _modules[:] = modules
    for name in (*_modules, *_INDIRECT_MODULES):
        importlib.import_module(name)
    BUILTINS.update((name, getattr(builtins, name)) for name in names if hasattr(builtins, name))
    BUILTINS["__import__"] = _import


def _import(
    name: str,
    globals_: Mapping[str, object] | None = None,
    locals_: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    # The interpreter's own imports (such as the date parser) also call this; they pass a list, an import statement a tuple.
    if level or (name not in _modules and name != "__future__" and not isinstance(fromlist, list)):
        raise ImportError(f"Scripts cannot import {name!r}. They can import: {', '.join(_modules)}.", name=name)
    return builtins.__import__(name, globals_, locals_, fromlist or (), 0)
