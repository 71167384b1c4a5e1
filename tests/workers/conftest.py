"""The workshop of the tests in this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.workers.harness import Workshop

from treadle.kernel.store.ports import Store
from treadle.stores.sqlite import SqliteStore
from treadle.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock: ManualClock) -> AsyncIterator[Store]:
    """A store in memory whose time is the test's."""
    made: Store = SqliteStore(None, clock=clock)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def make_shop(store: Store, clock: ManualClock) -> AsyncIterator[Callable[..., Workshop]]:
    """Make a workshop whose worker has those options."""
    made: list[Workshop] = []

    def make(**options: Any) -> Workshop:
        made.append(Workshop(store, clock, **options))
        return made[-1]

    yield make
    for shop in made:
        await shop.close()


@pytest.fixture
async def shop(make_shop: Callable[..., Workshop]) -> Workshop:
    return make_shop()
