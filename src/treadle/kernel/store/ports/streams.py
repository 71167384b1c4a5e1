"""The port for streams, which units append to (`AppendStream`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.model.streams import Stream, StreamChunk


class StreamStore(StoreClock, Protocol):
    """Reads of streams; each uses an index. Offsets become visible in order: one that appears has all smaller ones before it."""

    async def list_streams(self, owner_ids: Sequence[str]) -> list[Stream]:
        """Return the streams of these runs and tasks, in order of owner and name (by code point)."""

    async def list_chunks(self, owner_id: str, name: str, offset: int, limit: int) -> list[StreamChunk]:
        """Return up to `limit` chunks in order of offset, from the one that contains `offset` or else the next one.

        The first one may end before `offset` if the chunk that contained it was removed: a writer's last abandoned
        generation is kept, and older ones are removed when the next one is abandoned.
        """

    async def count_entries(self, owner_id: str, name: str, writer: str) -> int:
        """Return how many entries the last session of the writer has appended."""
