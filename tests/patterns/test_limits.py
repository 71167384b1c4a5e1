"""Rate-limited API and throttle: never more than the limit, across workers; and alarms that are dropped."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.patterns.programs import Deployment, drain_together, load

from treadle.testing import Environment, ManualClock


def most_within(times: list[int], span: int) -> int:
    """The largest number of times in any interval of that length, its end excluded."""
    return max(sum(at <= each < at + span for each in times) for at in times)


async def test_two_workers_together_stay_below_the_rate(tmp_path: Path):
    clock, started = ManualClock(), []
    programs = [load("rate_limited_api") for _ in range(2)]
    for number, program in enumerate(programs):

        async def request(city: str, number: int = number) -> tuple[int, int]:
            started.append((clock.now(), number))
            return 200, 1

        program.request = request
    first, second = (Deployment(program.engine, f"sqlite:///{tmp_path}/treadle.db", clock, concurrency=2) for program in programs)
    async with first, second:
        for _ in range(12):
            await first.engine.enqueue("weather.Ask", {"city": "Oslo"})
        for _ in range(13):
            await drain_together(first, second)
            clock.advance(timedelta(milliseconds=100))
    times = [at for at, _ in started]
    assert len(times) == 12
    assert most_within(times, 1000) == 10
    assert max(times) - min(times) <= 1200  # and it is used


async def test_a_requested_retry_after_is_honored():
    program, asked = load("rate_limited_api"), []

    async def request(city: str) -> tuple[int, int]:
        asked.append(env.clock.now())
        return (429, 30) if len(asked) == 1 else (200, 1)

    program.request = request
    async with Environment(program.engine) as env:
        task = await program.engine.enqueue("weather.Ask", {"city": "Oslo"})
        assert await env.result(task) == {"degrees": 1}
    assert asked[1] - asked[0] >= 30_000


async def test_at_most_six_messages_start_in_any_minute():
    program, times = load("throttle"), []
    program.print = lambda *_: times.append(env.clock.now())
    async with Environment(program.engine) as env:
        tasks = [await program.engine.enqueue("message.Send", {"text": "hello"}) for _ in range(9)]
        await env.result(tasks[-1])
    assert len(times) == 9
    assert most_within(times, 60_000) == 6


async def test_an_alarm_is_sent_once_in_ten_minutes():
    program = load("throttle")
    sent: list[Any] = []
    program.print = lambda *shown: sent.append(shown)
    async with Environment(program.engine) as env:
        assert [await program.raise_alarm("disk full") for _ in range(3)] == [True, False, False]
        assert await program.raise_alarm("no light")
        await env.advance(599)
        assert not await program.raise_alarm("disk full")
        await env.advance(2)
        assert await program.raise_alarm("disk full")
        await env.drain()
    assert [about for _, about in sent] == ["disk full", "no light", "disk full"]
