"""Streams: entries that runs and tasks write for readers while they work, such as the tokens of a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.values import Json

Kind = Literal["entry", "abandoned", "truncated", "unreadable"]


class StreamEntry(ApiRecord, frozen=True):
    """An entry of a stream, or a notice; both have an offset."""

    offset: int
    kind: Kind
    """`entry`; or a notice: `abandoned` (another attempt of the writer begins; `value` names the `generation` that it replaces, and
    its first offset as `since`), `truncated` (the stream was full: entries are missing here), `unreadable` (damaged entries)."""
    value: Json
    generation: int
    """The number of the writer's attempt, from 1; only attempts that replace another one count."""
    writer: str
    """The id of the task or the step that wrote it; for the code of a function, the id of its run."""
    at: Instant


class StreamPage(ApiRecord, frozen=True):
    """Entries in order of offset."""

    entries: list[StreamEntry]
    next_offset: int
    """Pass it as `offset` for the next page."""
    ended: bool
    """Whether the work has ended and there is nothing after these entries."""


class StreamSummary(ApiRecord, frozen=True):
    """A stream of a run or a task."""

    name: str
    next_offset: int
    """The offset of the next entry."""
    bytes: int
    """The size of its entries as JSON, without abandoned ones."""
    truncated: bool
    """Whether it is full, so that entries are dropped."""
    updated_at: Instant


class StreamList(ApiRecord, frozen=True):
    """The streams of a run or a task, by name."""

    streams: list[StreamSummary]


_FOLLOW_FOR = 30.0
"""Seconds that one request of a follower waits."""

Member = Annotated[str, Doc("The run, or a task")]


STREAM = View(
    StreamSummary,
    columns=(Column("stream", "name"), "next_offset", "bytes", Column("full", "truncated"), Column("last entry", "updated_at")),
    empty="No streams.",
)


class StreamsApi(Protocol):
    """Streams of runs, and of tasks (a task of a run: its entries in the streams of the run)."""

    @contract.get("/runs/{member_id}/streams", lists=True)
    async def list(self, member_id: Member) -> StreamList:
        """The streams of a run or a task."""

    @contract.get("/runs/{member_id}/streams/{name}", lists=True)
    async def read(
        self,
        member_id: Member,
        name: Annotated[str, Doc("The stream", "tokens")],
        *,
        offset: Annotated[int, Doc("The first offset to return", 0)] = 0,
        limit: Annotated[int, Doc("Page size, up to 1000", 1000)] = 1000,
        wait_for: Annotated[float, Doc("Seconds to wait for an entry or the end, up to 60", 30)] = 0.0,
    ) -> StreamPage:
        """Entries of a stream, from an offset on; optionally waits for the next one. A stream without entries may still come while
        the work lasts; after its end there is no such stream. To follow one over SSE, use
        `/v1/runs/{member_id}/streams/{name}/follow`."""

    async def follow(self, member_id: str, name: str, *, offset: int = 0) -> AsyncGenerator[StreamEntry, None]:
        """Yield the entries from an offset on, and new ones as they are written, until the work has ended."""
        while True:
            page = await self.read(member_id, name, offset=offset, wait_for=_FOLLOW_FOR)
            for entry in page.entries:
                yield entry
            offset = page.next_offset
            if page.ended:
                return
