"""Changes of a project's files, found by comparing times and sizes: no dependency, and the same on every system."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

_WATCHED = (".py", ".afl", ".toml")
_SKIPPED = frozenset(["__pycache__", "node_modules", "venv", "build", "dist"])
_LOOK_EVERY = 0.3
_SETTLES_IN = 0.1  # seconds without a further change: an editor may write a file in several steps

Files = Mapping[str, tuple[int, int]]


def look(folders: Iterable[str]) -> Files:
    """Return the watched files below the folders, with their times of change and sizes; hidden folders are left out."""
    found: dict[str, tuple[int, int]] = {}
    for root in dict.fromkeys(folders):
        for folder, inner, names in os.walk(root):
            inner[:] = [each for each in inner if not each.startswith(".") and each not in _SKIPPED]
            if "pyvenv.cfg" in names:
                inner.clear()
                continue
            for name in names:
                if name.endswith(_WATCHED):
                    path = Path(folder, name)
                    try:
                        state = path.stat()
                    except OSError:
                        continue  # deleted meanwhile
                    found[str(path)] = (state.st_mtime_ns, state.st_size)
    return found


async def next_change(folders: Iterable[str], before: Files, stop: asyncio.Event) -> Files | None:
    """Wait for a change, and until the files stay the same; None if `stop` was set, or after a while without a change."""
    if await _pause(stop, _LOOK_EVERY):
        return None
    now = await asyncio.to_thread(look, folders)
    while now != before:
        if await _pause(stop, _SETTLES_IN):
            return None
        later = await asyncio.to_thread(look, folders)
        if later == now:
            return now
        now = later
    return None


def changed(before: Files, now: Files) -> list[str]:
    """Return the files that were written, created or deleted."""
    return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))


async def _pause(stop: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return False
    return True
