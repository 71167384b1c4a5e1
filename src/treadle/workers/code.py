"""User code behind the references that replace it in its module."""

from __future__ import annotations

import sys
from typing import Any


def unwrapped(code: Any) -> Any:
    """Return the plain function of a reference; everything else as it is."""
    return getattr(code, "__treadle_code__", code)


def importable(fn: Any) -> Any:
    """Return the object that the function's module has under its name: the function, or the reference that replaced it."""
    found: Any = sys.modules.get(getattr(fn, "__module__", None) or "")
    for part in getattr(fn, "__qualname__", "").split("."):
        found = getattr(found, part, None)
    return found if found is not None and unwrapped(found) is fn else fn
