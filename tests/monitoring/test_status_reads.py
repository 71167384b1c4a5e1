"""Callers who ask for the status together share a read that began after they asked."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from treadle.kernel.core import Core
from treadle.kernel.status import StatusReads, SystemStatus


class Reads(StatusReads):
    """Reads that end when the test lets them, and return their number."""

    def __init__(self) -> None:
        super().__init__(Core(*cast(Any, (None,) * 5)), *cast(Any, (None, None)))
        self.begun: list[asyncio.Future[None]] = []
        self._read = cast(Any, self._wait)

    async def _wait(self) -> int:
        number = len(self.begun)
        self.begun.append(asyncio.get_running_loop().create_future())
        await self.begun[number]
        return number

    def ask(self) -> asyncio.Task[SystemStatus]:
        return asyncio.create_task(self.read())


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_calls_during_a_read_share_the_next_read():
    reads = Reads()
    first = reads.ask()
    await settle()
    others = [reads.ask() for _ in range(5)]
    await settle()
    assert len(reads.begun) == 1
    reads.begun[0].set_result(None)
    await settle()
    assert len(reads.begun) == 2
    reads.begun[1].set_result(None)
    assert await first == 0
    assert await asyncio.gather(*others) == [1] * 5


async def test_sequential_calls_have_separate_reads():
    reads = Reads()
    for number in range(2):
        asked = reads.ask()
        await settle()
        reads.begun[number].set_result(None)
        assert await asked == number


@pytest.mark.parametrize("end", ["error", "cancel"])
async def test_a_read_that_fails_is_not_shared(end: str):
    reads = Reads()
    first = reads.ask()
    await settle()
    second, third = reads.ask(), reads.ask()
    await settle()
    reads.begun[0].set_result(None)
    await settle()
    if end == "error":
        reads.begun[1].set_exception(OSError("gone"))
    else:
        second.cancel()
    await settle()
    reads.begun[2].set_result(None)
    assert await first == 0
    assert isinstance((await asyncio.gather(second, return_exceptions=True))[0], OSError | asyncio.CancelledError)
    assert await third == 2
