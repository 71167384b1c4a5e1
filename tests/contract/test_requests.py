"""Requests with an idempotency key, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from treadle.kernel.access.requests import ANSWER_LIMIT, KEPT_FOR, STUCK_FOR, Begun, Requests, StoredAnswer
from treadle.kernel.core import Core
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import SystemClock, SystemIds
from treadle.kernel.store.retention import KEEP_RECORDS_FOR
from treadle.kernel.store.value_store import ValueStore
from treadle.kernel.store.verify import verify
from treadle.kernel.telemetry.events import log_event
from treadle.model.errors import IdempotencyKeyReused, InvalidInput, RequestInProgress

ANSWER = StoredAnswer(201, b'{"id": 1, "\xff": "any bytes"}')


@pytest.fixture
async def committer(store: Store) -> AsyncIterator[Committer]:
    made = Committer(store, SystemClock(), log_event)
    yield made
    await made.close()


@pytest.fixture
def requests(store: Store, committer: Committer) -> Requests:
    return Requests(Core(store, committer, ValueStore(store, None), SystemIds(), SystemClock()))


async def begin(
    requests: Requests, key: str = "k", request: bytes = b"body", *, actor: str = "ada", route: str = "r"
) -> Begun | StoredAnswer:
    return await requests.begin(actor, route, key, request)


async def begun(requests: Requests, **options: str) -> Begun:
    found = await begin(requests, **options)
    assert isinstance(found, Begun)
    return found


async def test_a_repeated_request_gets_the_stored_response(requests: Requests):
    await requests.finish(await begun(requests), ANSWER)
    assert await begin(requests) == await begin(requests) == ANSWER


async def test_concurrent_requests_with_one_key_have_one_executor(requests: Requests):
    found = await asyncio.gather(*(begin(requests) for _ in range(8)), return_exceptions=True)
    assert [type(each) for each in found].count(Begun) == 1
    assert [type(each) for each in found].count(RequestInProgress) == 7


async def test_the_same_key_with_another_request_is_refused(requests: Requests):
    first = await begun(requests)
    with pytest.raises(IdempotencyKeyReused):
        await begin(requests, request=b"another")
    await requests.finish(first, ANSWER)
    with pytest.raises(IdempotencyKeyReused):
        await begin(requests, request=b"another")


async def test_a_key_belongs_to_its_caller_and_its_route(requests: Requests):
    """`begun` asserts that the key of another caller or route does not return the stored answer."""
    await requests.finish(await begun(requests), ANSWER)
    await begun(requests, actor="grace")
    await begun(requests, route="other")
    await begun(requests, key="other")


async def test_a_forgotten_request_frees_its_key(requests: Requests):
    await requests.forget(await begun(requests))
    again = await begin(requests, request=b"another")
    assert isinstance(again, Begun)


async def test_a_stuck_request_is_executed_again_and_its_late_response_dropped(requests: Requests, clock):
    lost = await begun(requests)
    await clock.advance(STUCK_FOR - 1)
    with pytest.raises(RequestInProgress):
        await begin(requests)
    await clock.advance(1)
    again = await begun(requests)
    with pytest.raises(RequestInProgress):
        await begin(requests)
    await requests.finish(lost, StoredAnswer(201, b"late"))
    await requests.finish(again, ANSWER)
    assert await begin(requests) == ANSWER


async def test_after_a_week_the_key_is_a_new_one(requests: Requests, clock):
    await requests.finish(await begun(requests), ANSWER)
    await clock.advance(KEPT_FOR - 1)
    assert await begin(requests) == ANSWER
    await clock.advance(1)
    await requests.finish(await begun(requests), StoredAnswer(201, b"second"))
    assert await begin(requests) == StoredAnswer(201, b"second")


async def test_an_answer_that_is_too_large_frees_the_key(requests: Requests):
    """`begun` asserts that the key is not taken."""
    await requests.finish(await begun(requests), StoredAnswer(201, b"x" * (ANSWER_LIMIT + 1)))
    await begun(requests)


async def test_invalid_keys_are_rejected(requests: Requests):
    for key in ("", "x" * 513, "a\nb"):
        with pytest.raises(InvalidInput):
            await begin(requests, key=key)


async def test_requests_are_pruned_and_the_log_stays_consistent(requests: Requests, store: Store, clock):
    await requests.finish(await begun(requests), ANSWER)
    await begun(requests, key="left")
    assert (await verify(store)).holds
    await clock.advance(KEEP_RECORDS_FOR)
    await store.retention.prune_rest(100, 0, KEEP_RECORDS_FOR)
    assert (await verify(store)).checked == 0
