"""Traces: everything that followed from one start, across runs, tasks, approvals and external jobs, as one timeline."""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.steps import TimeSpan
from treadle.api.wire import Instant


class TraceEntry(ApiRecord, frozen=True):
    """A run, a task, a step of a function, an approval or an external job; or a group of many runs or tasks of one name."""

    id: str
    """Of a group: pass it as `group` to list its members."""
    kind: str
    """`run`, `task`, `step`, `approval`, `external_job` or `group`."""
    name: str
    about: str
    """Its arguments or its question, in one line."""
    state: str
    depth: int
    """The number of entries above it: an entry follows from the nearest one before it with a smaller depth."""
    run_id: str | None
    """The run that it belongs to; of a run, itself."""
    created_at: Instant
    began_at: Instant | None
    """When its last attempt began; null: no worker has taken it yet, or it has no attempts."""
    ended_at: Instant | None
    attempt: int | None
    takeovers: int
    worker: str | None
    """The id of the server that has or last had it."""
    error: str | None
    count: int = 1
    """Of a group: the number of its members."""
    states: dict[str, int] = msgspec.field(default_factory=dict)
    """Of a group: its members by state."""
    spans: list[TimeSpan] = msgspec.field(default_factory=list)
    """Of a task: its time, divided into waiting, running, approval and outside as far as the log allows."""


class TraceOrigin(ApiRecord, frozen=True):
    """The schedule or watcher that started the trace, or the run that was repeated."""

    kind: str
    """`schedule`, `watcher` or `run`."""
    id: str | None
    """Null if it is gone."""
    name: str


class Trace(ApiRecord, frozen=True):
    """Everything that followed from one start, in order of start, each entry after the one it follows from."""

    id: str
    """The id of the first run or task."""
    trace_id: str | None
    name: str
    state: str
    """Of the first run or task."""
    created_by: str | None
    """The actor that enqueued the first task or started the first run: a token, `cli:ada`, `python`, `schedule:nightly`."""
    origin: TraceOrigin | None
    now: Instant
    began_at: Instant
    ended_at: Instant | None
    """Null while something is open."""
    total: int
    """Runs and tasks in the trace, also those in groups."""
    entries: list[TraceEntry]
    next_after: str | None
    """Pass it as `after` for the next page; null on the last page."""


class TracesApi(Protocol):
    """Everything that followed from one start."""

    @contract.get("/traces/{any_id}")
    async def get(
        self,
        any_id: Annotated[str, Doc("Id of any run, task, step, approval or external job in it, or a trace id")],
        *,
        group: Annotated[str | None, Doc("List the members of this group")] = None,
        limit: Annotated[int, Doc("Page size, up to 1000", 200)] = 200,
        after: Annotated[str | None, Doc("`next_after` of the previous page")] = None,
    ) -> Trace:
        """One timeline of everything that followed from the start to which an id belongs.

        More than 25 tasks, or child runs, of one name in a run are one entry with counts.
        """
