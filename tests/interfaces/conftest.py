"""A folder with handlers in it, and the command that runs there."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interfaces.commands import HANDLERS, Treadle


@pytest.fixture
def treadle(tmp_path: Path) -> Treadle:
    """The command `treadle` on a SQLite file that is not there yet, beside a module `jobs` with handlers."""
    (tmp_path / "jobs.py").write_text(HANDLERS)
    return Treadle(tmp_path)
