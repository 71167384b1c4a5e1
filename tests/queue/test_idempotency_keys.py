"""An idempotency key stands for one request: the same one returns its task or run, a different one is rejected."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines import ALL, url_of

from treadle import Engine, TaskSpec
from treadle.model.errors import IdempotencyKeyReused

BIG = "x" * 20_000
FIRST: dict[str, Any] = {"name": "a.B", "payload": {"n": 1, "m": [True, None], "big": BIG}}
DIFFERENT = [
    {"payload": {"n": 2, "m": [True, None], "big": BIG}},
    {"payload": {"n": 1, "m": [1, None], "big": BIG}},
    {"payload": {"n": 1, "m": [True, None], "big": BIG + "y"}},
    {"payload": {"n": 1, "m": [True, None]}},
    {"payload": None},
    {"name": "a.C"},
    {"task_list": "other"},
]
SAME: list[dict[str, Any]] = [
    {},
    {"payload": {"big": BIG, "m": [True, None], "n": 1}},
    {"priority": 3},
    {"delay": 60},
]


@pytest.fixture(params=ALL)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    async with Engine(url_of(request.param, request, tmp_path)) as made:
        yield made


def spec(**changes: Any) -> TaskSpec:
    return TaskSpec(idempotency_key="k", **(FIRST | changes))


@pytest.mark.postgres
@pytest.mark.parametrize("ended", [False, True], ids=["live", "ended"])
async def test_a_task_key_is_rejected_for_a_different_request_only(engine: Engine, ended: bool) -> None:
    (first,) = await engine.enqueue_many([spec()])
    if ended:
        await engine.kernel.queue.cancel(first.id)
    for change in SAME:
        assert await engine.enqueue_many([spec(**change)]) == [(first.id, False)]
    for change in DIFFERENT:
        with pytest.raises(IdempotencyKeyReused, match=first.id):
            await engine.enqueue_many([spec(**change)])


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_a_batch_with_a_reused_key_stores_no_task(engine: Engine, at: int) -> None:
    (first,) = await engine.enqueue_many([spec()])
    batch = [TaskSpec(name="a.B", payload={"n": n, "big": BIG}, idempotency_key=f"new{n}") for n in range(2)]
    batch.insert(at, spec(payload={"n": 2}))
    with pytest.raises(IdempotencyKeyReused, match=first.id):
        await engine.enqueue_many(batch)
    assert [task.id for task in await engine.kernel.reads.list_tasks(kind="handler")] == [first.id]
    batch[at] = spec()  # the keys of the refused batch are free, and a repeat is not a reuse
    made = await engine.enqueue_many(batch)
    assert [each.created for each in made] == [number != at for number in range(3)]
    assert made[at].id == first.id
    assert [each.id for each in await engine.enqueue_many(batch)] == [each.id for each in made]


@pytest.mark.parametrize("engine", ["memory"], indirect=True)
async def test_a_thousand_tasks_are_stored_together_and_more_in_order(engine: Engine) -> None:
    (first,) = await engine.enqueue_many([spec()])
    new = [TaskSpec(name="a.B", idempotency_key=f"new{n}") for n in range(1500)]
    with pytest.raises(IdempotencyKeyReused, match=first.id):
        await engine.enqueue_many([*new[:999], spec(payload={"n": 2})])
    assert len(await engine.kernel.reads.list_tasks(kind="handler", limit=1000)) == 1
    with pytest.raises(IdempotencyKeyReused, match=first.id):
        await engine.enqueue_many([*new, spec(payload={"n": 2})])
    made = await engine.enqueue_many(new)  # with keys, the call can be repeated
    assert [each.created for each in made] == [False] * 1000 + [True] * 500
    assert [each.id for each in await engine.enqueue_many(new)] == [each.id for each in made]


async def test_a_key_that_a_batch_uses_twice_is_rejected_for_different_requests_only(engine: Engine) -> None:
    other = TaskSpec(name="a.B")
    for change in DIFFERENT:
        with pytest.raises(IdempotencyKeyReused):
            await engine.enqueue_many([other, spec(), spec(**change)])
    assert await engine.kernel.reads.list_tasks(kind="handler") == []
    one, two, three = await engine.enqueue_many([spec(), other, spec()])
    assert (one.created, two.created, three) == (True, True, (one.id, False))
    assert len(await engine.kernel.reads.list_tasks(kind="handler")) == 2


async def test_concurrent_batches_with_shared_keys_store_each_key_once(engine: Engine) -> None:
    def batch(which: str) -> list[TaskSpec]:
        return [TaskSpec(name=which, idempotency_key=which), TaskSpec(name="shared", payload={"of": which}, idempotency_key="k")]

    found = await asyncio.gather(*(engine.enqueue_many(batch(f"w{n % 4}")) for n in range(12)), return_exceptions=True)
    done = [each for each in found if isinstance(each, list)]
    assert len(done) == 3
    assert all(isinstance(each, list | IdempotencyKeyReused) for each in found)
    assert {task.id for task in await engine.kernel.reads.list_tasks(kind="handler")} == {each.id for each in done[0]}
    assert all([each.id for each in batch] == [each.id for each in done[0]] for batch in done)


async def test_requests_that_cannot_be_compared_count_as_repeated(engine: Engine) -> None:
    (edited,) = await engine.enqueue_many([spec()])
    await engine.kernel.queue.cancel(edited.id)
    await engine.kernel.queue.retry(edited.id, payload={"n": 5})
    assert await engine.enqueue_many([spec()]) == [(edited.id, False)]
    live = await engine.enqueue("a.B", {"n": 1}, unique_key="u")
    for _ in range(2):
        again = await engine.enqueue("a.B", {"n": 2}, unique_key="u", idempotency_key="other")
        assert (again.id, again.created) == (live.id, False)


async def test_a_function_key_is_rejected_for_a_different_request_only(engine: Engine) -> None:
    for name in ("f", "g"):

        async def body(payload: dict[str, Any], ctx: Any) -> None:
            """Never run here."""

        engine.function(name)(body)
    first = await engine.start_function("f", {"n": 1, "m": 2}, idempotency_key="k")
    again = await engine.start_function("f", {"m": 2, "n": 1}, idempotency_key="k")
    assert (again.id, again.created) == (first.id, False)
    for name, payload, more in (("f", {"n": 2}, {}), ("g", {"n": 1, "m": 2}, {}), ("f", {"n": 1, "m": 2}, {"task_list": "other"})):
        with pytest.raises(IdempotencyKeyReused, match=first.id):
            await engine.start_function(name, payload, idempotency_key="k", **more)


FLOW = [("a.afl", "namespace a {\n  workflow W(n: Int) => (out: Int) andThen {\n    yield W(out = $.n)\n  }\n}\n")]


async def test_a_run_key_is_rejected_for_a_different_request_only(engine: Engine) -> None:
    first = await engine.start_run(FLOW, "a.W", {"n": 1}, idempotency_key="k")
    again = await engine.start_run(FLOW, "a.W", {"n": 1}, idempotency_key="k")
    assert (again.id, again.created) == (first.id, False)
    for inputs, more in (({"n": 2}, {}), ({"n": 1}, {"task_list": "other"})):
        with pytest.raises(IdempotencyKeyReused, match=first.id):
            await engine.start_run(FLOW, "a.W", inputs, idempotency_key="k", **more)
