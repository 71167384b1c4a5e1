"""Subscribers to ready tasks in this process, each called on the event loop of its subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Lock

Heard = Callable[[tuple[int, ...]], None]


class Subscribers:
    """A set of callbacks; calling them never blocks and never raises."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._entries: dict[object, tuple[Heard, asyncio.AbstractEventLoop]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, heard: Heard) -> object:
        """Add a callback on the running loop; returns its key."""
        key = object()
        with self._lock:
            self._entries[key] = (heard, asyncio.get_running_loop())
        return key

    def remove(self, key: object) -> None:
        """Remove a callback; idempotent."""
        with self._lock:
            self._entries.pop(key, None)

    def clear(self) -> None:
        """Remove all callbacks."""
        with self._lock:
            self._entries.clear()

    def call(self, lane_ids: tuple[int, ...]) -> None:
        """Schedule all callbacks, from any thread."""
        with self._lock:
            entries = list(self._entries.items())
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        for key, (_, loop) in entries:
            try:
                # the thread-safe call also wakes the loop, which takes a write and a read of its own
                (loop.call_soon if loop is running else loop.call_soon_threadsafe)(self._call, key, lane_ids)
            except RuntimeError:
                self.remove(key)  # its loop is closed

    def _call(self, key: object, lane_ids: tuple[int, ...]) -> None:
        if entry := self._entries.get(key):
            entry[0](lane_ids)
