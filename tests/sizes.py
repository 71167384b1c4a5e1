"""The cases and examples that `make test` leaves to `make test-all`, marked where a test lists its cases."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest

_FACTOR = int(os.environ.get("TREADLE_TEST_EXAMPLES", "1"))  # noqa: TID251

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres_all)
"""PostgreSQL as one of the stores of a test above them: in `make test` only if the test has the mark `postgres`."""

MEMORY = pytest.param("memory", marks=pytest.mark.all_cases)
"""SQLite in memory, which is SQLite's code without threads, for a test that runs on a file too."""


def examples(few: int) -> int:
    """Return the number of examples for a test that generates `few` in `make test`."""
    return few * _FACTOR


def sampled(cases: Sequence[Any], count: int = 3) -> list[Any]:
    """Return the cases as parameters: the first, the last and others evenly between them run in `make test`."""
    last = len(cases) - 1
    chosen = {round(number * last / (count - 1)) for number in range(count)}
    return [case if number in chosen else left_out(case) for number, case in enumerate(cases)]


def left_out(case: Any) -> Any:
    """Return the case as a parameter that only `make test-all` runs."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.all_cases)
