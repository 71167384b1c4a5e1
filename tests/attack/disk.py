"""The disk of the store becomes full while work is accepted and done; when there is space again, everything continues."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.attack.arena import Arena, Size, arena
from tests.attack.tally import Tally

SPACE = {"sqlite": "16m", "postgres": "160m"}
FULL_FOR = 3.0
"""Seconds for which nothing can be written."""


async def attack_disk(tally: Tally, size: Size, seed: int) -> None:
    """Only where this process may mount a file system."""
    with small_disk(SPACE[tally.store]) as place:
        if place is None:
            tally.counts["skipped: mounting a small file system needs root"] = 1
            return
        async with arena(tally, size, seed, place) as made:
            await _attack(made, place)


async def _attack(made: Arena, place: Path) -> None:
    await asyncio.gather(made.serve(), made.work("worker1"))
    made.found.killed.add(made.running["worker1"][1].pid)  # results that could not be stored in time are computed again
    half = made.size.tasks // 2
    await made.submit_some(0, half, effects=False)
    ballast = place / "ballast"
    written = fill(ballast)
    made.tally.counts["MiB of ballast"] = written // 2**20
    sender = asyncio.ensure_future(made.submit_some(half, half, effects=False))
    await asyncio.sleep(FULL_FOR)
    fill(ballast)
    await asyncio.sleep(FULL_FOR)
    ballast.unlink()
    if made.server is not None:
        await asyncio.to_thread(made.server.start)
    await sender
    for name, (_, process) in made.running.items():
        made.tally.check(process.exit_code is None, f"{name} ended with {process.exit_code}")
    await made.settle()


def fill(path: Path) -> int:
    """Write until there is no space left; return the size of the file."""
    with path.open("ab", buffering=0) as file:
        for block in (2**16, 2**12, 1):
            try:
                while True:
                    file.write(b"x" * block)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return path.stat().st_size


@contextmanager
def small_disk(space: str) -> Iterator[Path | None]:
    """A file system of that size; None where this process may not mount one."""
    place = Path(tempfile.mkdtemp(prefix="treadle-attack-disk-"))
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={space},mode=0755", "treadle-attack", str(place)],
            capture_output=True,
            check=False,
        ).returncode
    )
    try:
        yield place if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)
        place.rmdir()
