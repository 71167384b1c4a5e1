"""The base class of the tree."""

from __future__ import annotations


class TreadleError(Exception):
    """Base of all errors that Treadle raises on purpose; `code` is stable, the message may change."""

    code: str = "error"

    def __init_subclass__(cls, *, code: str | None = None, **options: object) -> None:
        """A class without a code of its own has that of its base."""
        super().__init_subclass__(**options)
        if code is not None:
            cls.code = code

    def __init__(self, message: str = "", *, code: str | None = None) -> None:
        """`code` is one of `errors.CODES`, for an error that has no class of its own."""
        super().__init__(message)
        if code is not None:
            self.code = code
