"""Errors with common words: found among the newest errors, or else by sorting all of them, with the same result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import product

import pytest

from treadle.kernel.store.database import ScanRange
from treadle.kernel.store.queries import NEWEST, Place
from treadle.kernel.store.units import Finish, PutRun, RunTransition, Unit
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.values import encode
from treadle.stores.postgres import PostgresStore, search
from treadle.testing import ManualClock
from treadle_conformance.run_steps import new_run
from treadle_conformance.task_steps import claim, new_task

MESSAGES = ("Timeout at host1", "disk FULL at host2", "timeout: ÜBER host3", 'a "timeout"\nof host4')


COUNTS = {"timeout": 18, "time* host3": 6, "Über": 6, "legacy": 6, "legacy full": 2, "nothing": 0}
"""How many errors have these words."""


async def fill(store: PostgresStore, clock: ManualClock) -> None:
    """Failed runs and tasks; the oldest have a word of their own."""
    for number in range(24):
        message = MESSAGES[number % len(MESSAGES)] + (" legacy" if number < 6 else "")
        error = encode({"code": "handler_error", "message": message})
        run, task = new_run(namespace=DEFAULT_NAMESPACE), new_task()
        start, fail = (
            RunTransition(run.id, "start", "pending", "running"),
            RunTransition(run.id, "fail", "running", "failed", error=error),
        )
        await store.commit([Unit(tasks=(task,), rows=(PutRun(run), start, fail))])
        (held,) = await claim(store)
        await store.commit([Unit(held.claim, Finish("fail", "failed", error=error, error_code="handler_error"))])
        if number % 3 == 0:
            clock.advance(1000)


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    clock = ManualClock()
    store = PostgresStore(postgres_url, clock=clock)
    await store.open()
    await fill(store, clock)
    yield store
    await store.close()


async def test_common_words_are_found_newest_first_however_many_errors_have_them(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entity, (text, count) in product(("run", "task"), COUNTS.items()):
        span, words = ScanRange(entity, DEFAULT_NAMESPACE), text.split()
        every = await store.search.list_with_words(span, words, 100)
        assert (len(every), every) == (count, sorted(every, reverse=True))
        for few, new in ((1, 3), (1, 8), (1, 100), (5, 6)):
            with monkeypatch.context() as patch:
                patch.setattr(search, "_SORT_LIMIT", few)
                patch.setattr(search, "_SCAN_ROWS", new)
                found: list[Place] = []
                while page := await store.search.list_with_words(span._replace(before=found[-1] if found else NEWEST), words, 4):
                    found += page
                assert found == every, (entity, words, few, new)
                late = [each for each in every if each.created_at > every[-1].created_at]
                if late:
                    assert await store.search.list_with_words(span._replace(after=late[-1].created_at), words, 100) == late
