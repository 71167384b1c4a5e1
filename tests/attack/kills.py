"""Processes are killed or stopped while they work: workers, the server, and all of them."""

from __future__ import annotations

import asyncio
import signal

from tests.attack.arena import Arena

PAUSE = 0.5
"""Seconds between two faults, on average."""


async def kills(arena: Arena) -> None:
    """SIGKILL of workers and the server under load."""
    await _attack(arena, signal.SIGKILL, "kills")


async def restarts(arena: Arena) -> None:
    """SIGTERM of workers and the server under load: nothing is executed again."""
    await _attack(arena, signal.SIGTERM, "restarts")


async def _attack(arena: Arena, number: signal.Signals, what: str) -> None:
    await asyncio.gather(arena.serve(), arena.work("worker1"), arena.work("worker2"))
    senders = [asyncio.ensure_future(arena.submit_some(first, arena.size.tasks // 4)) for first in _firsts(arena)]
    for turn in range(arena.size.faults):
        await asyncio.sleep(arena.rng.uniform(0, 2 * PAUSE))  # the fault hits work at a random moment
        names = [*arena.running] if turn % 6 == 5 else [arena.rng.choice([*arena.running])]
        await asyncio.gather(*(arena.restart(name, number) for name in names))
        arena.tally.counts[f"{what} of workers"] += sum(name != "serve" for name in names)
        arena.tally.counts[f"{what} of the server"] += "serve" in names
    await asyncio.gather(*senders)
    await arena.settle()


def _firsts(arena: Arena) -> range:
    return range(0, arena.size.tasks, max(arena.size.tasks // 4, 1))
