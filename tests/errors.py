"""Expectations about errors that have a code, and perhaps no class of their own."""

from __future__ import annotations

import pytest

from treadle.model import errors
from treadle.model.errors import TreadleError

CLASSES = errors.classes_by_code(errors)


def raises_code(code: str, match: str | None = None) -> pytest.RaisesExc[TreadleError]:
    """Expect an error with the code, of the class that carries it."""
    return pytest.raises(CLASSES[code], match=match, check=lambda error: error.code == code)
