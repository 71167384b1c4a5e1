"""The base class of the tree."""

from __future__ import annotations

from typing import ClassVar


class TreadleError(Exception):
    """Base of all errors that Treadle raises on purpose; `code` is stable, the message may change."""

    code: ClassVar[str] = "error"
