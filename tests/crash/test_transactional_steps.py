"""A process with transactional steps is killed at each point between their code, the user's commit and ours: one effect each."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.crash.scene import Scene
from tests.limits import BOUND
from tests.sizes import sampled

from treadle.stores.postgres.connection.address import parse_address

TRANSACTION = ("transaction.before_commit", "transaction.after_commit")
OWN = ("function.before_commit", "function.after_commit")
STEPS = 3


@pytest.fixture
def numbers(scene: Scene, tmp_path: Path) -> Iterator[Callable[[], list[int]]]:
    """Create the user's table; return what reads it."""
    if scene.url.startswith("sqlite:"):
        with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
            file.execute("create table orders (number int)")
            yield lambda: [number for (number,) in file.execute("select number from orders order by number")]
        return
    store = parse_address(scene.url)
    schema = f"{store.schema}_shop"
    with psycopg.connect(store.dsn, autocommit=True) as connection:
        execute: Any = connection.execute
        execute(f"create schema {schema}")
        execute(f"create table {schema}.orders (number int)")
        yield lambda: [number for (number,) in execute(f"select number from {schema}.orders order by number")]
        execute(f"drop schema {schema} cascade")


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("point", "number", "name"),
    sampled([*product((*TRANSACTION, *OWN), range(1, STEPS + 1), ["orders", "orders_sync"])]),
)
async def test_a_kill_at_any_point_around_a_step_has_one_effect(
    scene: Scene, numbers: Callable[[], list[int]], point: str, number: int, name: str
) -> None:
    started = await scene.engine.start_function(name, version=1)
    await scene.died(scene.start("worker", "--crash-at", f"{point}:{number}"))
    committed = numbers()
    await scene.start_worker()
    assert await scene.engine.run_result(started, timeout=BOUND) == ["order0", "order1", "order2"]
    assert numbers() == [0, 1, 2]
    if point in TRANSACTION:
        assert committed == [0, 1, 2][: number - (point == TRANSACTION[0])]
    assert (await scene.engine.kernel.verify()).problems == ()
