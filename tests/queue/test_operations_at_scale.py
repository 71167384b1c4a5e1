"""Operations at scale: retrying many dead letters while workers drain them, and a store that does not grow."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.engines import SHARED, make_engine, url_of

from treadle import Engine, NonRetryable, TaskSpec
from treadle.api.dead_letters import BATCH, DeadLettersChanged
from treadle.kernel.store.process import SystemClock
from treadle.kernel.store.queries import DeadLetterFilter
from treadle.model.names import UPKEEP
from treadle.settings import Settings

SOAK = pytest.mark.soak


def dead_letters(small: int, full: int) -> Any:
    return pytest.mark.parametrize("count", [small, pytest.param(full, marks=[SOAK, pytest.mark.timeout(1800)])])


@pytest.mark.postgres
@dead_letters(1_500, 100_000)
@pytest.mark.parametrize("kind", SHARED)
async def test_dead_letters_are_retried_in_bounded_batches_while_workers_drain_them(request, tmp_path, kind, count):
    url = url_of(kind, request, tmp_path)
    broken = True
    engine = make_engine(url)

    @engine.handler("work")
    async def work(payload: Any) -> dict[str, Any]:
        if broken or payload["n"] % 10 == 0:
            raise NonRetryable("no good", "spoiled")
        return {}

    async with engine, asyncio.timeout(1500):
        for start in range(0, count, 10_000):
            await engine.enqueue_many([TaskSpec(name="work", payload={"n": n}) for n in range(start, min(start + 10_000, count))])
        letters = await engine.kernel.dead_letters.filter(name="work")
        async with engine.worker(concurrency=200):
            await until(engine, letters, count)
            broken = False
            parts: list[DeadLettersChanged] = []
            while not parts or parts[-1].next_after is not None:
                parts.append(await engine.kernel.dead_letters.retry(name="work", after=parts[-1].next_after if parts else None))
            assert {part.matched for part in parts} == {count}
            assert (sum(part.done for part in parts), sum(part.passed_over for part in parts)) == (count, 0)
            await until(engine, letters, count // 10, completed=count - count // 10)
        report = await engine.kernel.verify()
    assert report.problems == ()
    assert max(part.done for part in parts) <= BATCH


async def until(engine: Engine, letters: DeadLetterFilter, failed: int, completed: int = 0) -> None:
    """Wait until so many have failed and completed, and nothing is under way."""
    while True:
        counts = (await engine.kernel.store.tasks.count_finished()).by_state
        if (await engine.kernel.store.dead_letters.count(letters))[0] == failed and counts.get("completed", 0) == completed:
            return
        await asyncio.sleep(0.05)


PASS = 20_000
"""Tasks that pass through between two looks at the store."""


@pytest.mark.parametrize(
    ("rounds", "size"), [(6, 500), pytest.param(50, PASS, marks=[SOAK, pytest.mark.timeout(3600)])], ids=["small", "a million"]
)
@pytest.mark.parametrize("kind", SHARED)
async def test_a_store_with_retention_does_not_grow(request, tmp_path, kind, rounds, size):
    url = url_of(kind, request, tmp_path)
    clock = SystemClock()
    engine = Engine(url, settings=Settings(keep_completed=0, keep_failed=0), clock=clock)

    @engine.handler("pass")
    async def through(payload: Any) -> dict[str, Any]:
        return {"text": payload["text"]}

    sizes, claims = [], []
    async with engine, asyncio.timeout(3500):
        async with engine.worker(concurrency=200):
            for _ in range(rounds):
                tasks = [TaskSpec(name="pass", payload={"text": "x" * 500}) for _ in range(size)]
                made = [
                    task for start in range(0, size, 10_000) for task in await engine.enqueue_many(tasks[start : start + 10_000])
                ]
                await asyncio.gather(*[engine.result(task) for task in made])
                report = await engine.kernel.retention.prune()
                assert (report.trees, (await engine.kernel.store.tasks.count_finished()).by_state) == (size, {})
                sizes.append((await engine.kernel.store.health.check()).bytes)
                began = clock.monotonic()
                await engine.result(await engine.enqueue("pass", {"text": ""}))
                claims.append(clock.monotonic() - began)
                await engine.kernel.retention.prune()
        assert (await engine.kernel.verify()).checked == len(UPKEEP)
    if kind == "sqlite":
        # After the first rounds the file has found its size; what is pruned is used again or given back.
        assert max(sizes[2:]) <= 1.5 * max(sizes[:2])
        assert Path(url.removeprefix("sqlite:///")).stat().st_size <= 2 * max(sizes[:2])  # noqa: ASYNC240
    if rounds > 6:
        early, late = sorted(claims[:10])[5], sorted(claims[-10:])[5]
        assert late <= 3 * early + 0.05
