"""The public conformance suite, on SQLite in a file, SQLite in memory, and PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.databases import Postgres, SqliteFile, SqliteMemory

from treadle_conformance import StoreContract, StoreHarness


class TestSqliteFile(StoreContract):
    def make_harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> StoreHarness:
        return SqliteFile(request, tmp_path)


class TestSqliteMemory(StoreContract):
    def make_harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> StoreHarness:
        return SqliteMemory(request, tmp_path)


class TestPostgres(StoreContract):
    def make_harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> StoreHarness:
        return Postgres(request, tmp_path)
