"""How many examples tests generate: few in `make test`; `make soak` sets `TREADLE_TEST_EXAMPLES` to a multiple of them."""

from __future__ import annotations

import os

_FACTOR = int(os.environ.get("TREADLE_TEST_EXAMPLES", "1"))  # noqa: TID251


def examples(few: int) -> int:
    """Return the number of examples for a test that generates that many in `make test`."""
    return few * _FACTOR
