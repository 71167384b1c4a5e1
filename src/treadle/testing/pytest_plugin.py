"""The pytest plugin, loaded by its entry point: engines in memory for tests of programs built on Treadle.

    # conftest.py
    @pytest.fixture
    def treadle_app():
        return shop.engine                     # the engine of your program; without this fixture, an empty one

    # test_shop.py
    def test_orders_are_shipped(treadle_env):  # async tests: `async with Environment(shop.engine) as env`
        run = treadle_env.engine.start("order", {"id": 7})
        treadle_env.approve(run)
        assert treadle_env.result(run) == {"state": "shipped"}

`treadle.testing.environment` describes the environment. Nothing of Treadle is imported until a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.testing.environment import BlockingEnvironment, Environment

HAS_ASYNC_FIXTURES = find_spec("pytest_asyncio") is not None


@pytest.fixture
def treadle_app() -> Engine | None:
    """The engine under test; override it in your conftest.py. None: a new engine without handlers."""
    return None


@pytest.fixture
def treadle_env(treadle_app: Engine | None) -> Iterator[BlockingEnvironment]:
    """The engine under test on an empty store in memory, with a clock that the test advances."""
    from treadle.testing.environment import BlockingEnvironment

    with BlockingEnvironment(treadle_app) as environment:
        yield environment


if HAS_ASYNC_FIXTURES:
    import pytest_asyncio

    @pytest_asyncio.fixture
    async def treadle_async_env(treadle_app: Engine | None) -> AsyncIterator[Environment]:
        """`treadle_env` for async tests with pytest-asyncio."""
        from treadle.testing.environment import Environment

        async with Environment(treadle_app) as environment:
            yield environment
