"""Streams: entries that runs and tasks write for readers while they work, such as the tokens of a model."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.wire import Instant
from treadle.model.values import Json

Kind = Literal["entry", "abandoned", "truncated", "unreadable"]


@dataclass(frozen=True, slots=True)
class StreamEntry(ApiRecord):
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


@dataclass(frozen=True, slots=True)
class StreamPage(ApiRecord):
    """Entries in order of offset."""

    entries: list[StreamEntry]
    next_offset: int
    """Pass it as `offset` for the next page."""
    ended: bool
    """Whether the work has ended and there is nothing after these entries."""


@dataclass(frozen=True, slots=True)
class StreamSummary(ApiRecord):
    """A stream of a run or a task."""

    name: str
    next_offset: int
    """The offset of the next entry."""
    bytes: int
    """The size of its entries as JSON, without abandoned ones."""
    truncated: bool
    """Whether it is full, so that entries are dropped."""
    updated_at: Instant


Name = Annotated[str, Doc("The stream", "tokens")]
Offset = Annotated[int, Doc("The first offset to return")]


class StreamsApi(Protocol):
    """Streams of runs, and of tasks (a task of a run: its entries in the streams of the run)."""

    @contract.get("/runs/{run_id}/streams")
    async def list(self, run_id: Annotated[str, Doc("The run, or a task")]) -> list[StreamSummary]:
        """The streams of a run."""

    @contract.get("/runs/{run_id}/streams/{name}")
    async def read(
        self,
        run_id: Annotated[str, Doc("The run, or a task")],
        name: Name,
        *,
        offset: Offset = 0,
        limit: Annotated[int, Doc("Page size, up to 1000", 1000)] = 1000,
    ) -> StreamPage:
        """Entries of a stream, from an offset on. Use `/v1/runs/{run_id}/streams/{name}/follow` to follow new ones."""

    def follow(self, run_id: str, name: str, *, offset: int = 0) -> AsyncGenerator[StreamEntry, None]:
        """Yield the entries from an offset on, and new ones as they are written, until the work has ended."""
