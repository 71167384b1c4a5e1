"""The conformance suite of stores, as a pytest class to subclass.

    class TestMyStore(StoreContract):
        def make_harness(self, request, tmp_path):
            return MyHarness(tmp_path)

Needs pytest and pytest-asyncio with `asyncio_mode = "auto"`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any, Protocol

import pytest

from treadle.kernel.store.ports import Store

FEATURES = (
    *("queues", "claims", "wake", "lease_connections", "commits", "repeats", "operator_commits", "inserts", "preclaims"),
    *(
        "checkpoints",
        "idempotency_keys",
        "limits",
        "operator_limits",
        "several_keys",
        "key_rates",
        "fairness",
        "lists",
        "reads",
        "dead_letters",
        "signals",
        "runs",
        "new_runs",
        "steps",
        "activities",
        "search",
        "streams",
        "traces",
    ),
    *(
        "flows",
        "records",
        "messages",
        "outcomes",
        "histories",
        "events",
        "metrics",
        "servers",
        "handlers",
        "entries",
        "usage",
        "retention",
        "namespaces",
    ),
)
"""The modules of `treadle_conformance` that contain tests."""


class StoreClock(Protocol):
    """The clock of the store under test; it stands still until a test advances it."""

    def now(self) -> int:
        """Return the store's clock, in milliseconds."""

    async def advance(self, ms: int) -> None:
        """Move the store's clock by that many milliseconds, backwards if negative."""


class StoreHarness:
    """A new, empty database, and the stores that a test opens on it."""

    clock: StoreClock
    shared = True
    """Whether several stores can open the database; tests that need a second store are skipped otherwise."""

    def __init__(self) -> None:
        self._stores: list[Any] = []

    def make_store(self) -> Any:
        """Return a store on this database that is not open yet."""
        raise NotImplementedError

    async def open_store(self, *, migrate: bool = True) -> Store:
        """Open a store on this database; `close` closes it."""
        if self._stores and not self.shared:
            pytest.skip("needs a database that several stores can open")
        store: Store = self.make_store()
        self._stores.append(store)
        await store.open(migrate=migrate)
        return store

    async def close(self) -> None:
        """Close all stores that were opened."""
        for store in self._stores:
            await store.close()

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return all rows of a table, bypassing the store; tests that need it are skipped without it."""
        pytest.skip("needs a database whose tables a test can read")

    def execute(self, statement: str) -> None:
        """Execute an SQL statement, bypassing the store; tests that need it are skipped without it."""
        pytest.skip("needs a database on which a test can execute SQL")


class StoreContract:
    """Tests of every promise of `treadle.kernel.store.ports.Store`. Subclass it and implement `make_harness`."""

    def make_harness(self, request: pytest.FixtureRequest, tmp_path: Path) -> StoreHarness:
        """Return a harness with a new, empty database."""
        raise NotImplementedError

    @pytest.fixture
    async def database(self, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreHarness]:
        """An empty database."""
        made = self.make_harness(request, tmp_path)
        yield made
        await made.close()

    @pytest.fixture
    async def store(self, database: StoreHarness) -> Store:
        """An open store on the database."""
        return await database.open_store()

    @pytest.fixture
    def clock(self, database: StoreHarness) -> StoreClock:
        """The clock of the store."""
        return database.clock

    @pytest.fixture
    async def line(self, store: Store) -> AsyncIterator[Any]:
        """A lease connection of the store, in a thread of its own."""
        from treadle_conformance.task_steps import Line

        with ThreadPoolExecutor(1) as thread:
            made = Line(store.servers.lease_connection(), thread)
            yield made
            await made.close()


def _collect() -> None:
    """Add the tests of all features to the class; each has its own name."""
    for feature in FEATURES:
        module = import_module(f"treadle_conformance.{feature}")
        for name, test in vars(module).items():
            if name.startswith("test_") and isinstance(test, FunctionType) and test.__module__ == module.__name__:
                if hasattr(StoreContract, name):
                    raise RuntimeError(f"Two tests of the store contract are called {name}.")
                setattr(StoreContract, name, staticmethod(test))


_collect()
