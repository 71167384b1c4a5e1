"""Follow the directory: a process notices that a namespace it serves was moved to another store."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from treadle.engine import Engine
from treadle.model.errors import InvalidInput, NamespaceMoved
from treadle.settings import Settings, read_directory

_LOOK_EVERY = 2.0
"""Seconds between two looks at the time of the file's last change."""


async def wait_for_move(settings: Settings, stop: asyncio.Event) -> str | None:
    """Wait until the directory places the namespace on another store than the settings, and return its URL; None after `stop`.

    A store that the directory did not choose never changes. A file that cannot be read is read again at the next look.
    """
    read_at = None
    if not settings.directory or _find(settings) != settings.store:
        await stop.wait()
    while not stop.is_set():
        changed_at = _changed_at(settings)
        if changed_at is not None and changed_at != read_at:
            with suppress(InvalidInput):
                if (found := _find(settings)) not in (None, settings.store):
                    return found
                read_at = changed_at
        with suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_EVERY):
                await stop.wait()
    return None


async def leave_when_moved(engine: Engine, stop: asyncio.Event) -> None:
    """Set `stop` once the engine's namespace was moved, and raise `NamespaceMoved`; return after another `stop`."""
    settings = engine.kernel.settings
    moved = await wait_for_move(settings, stop) is not None
    stop.set()
    if moved:
        raise NamespaceMoved(engine.kernel.store.url, [(settings.namespace, "")])  # its URL may contain a password


def _changed_at(settings: Settings) -> int | None:
    try:
        return Path(settings.directory).stat().st_mtime_ns
    except OSError:
        return None


def _find(settings: Settings) -> str | None:
    return read_directory(settings.directory).find(settings.namespace)
