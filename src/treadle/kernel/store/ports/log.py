"""The port for the log: moves of entities, and the lines that handlers write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from treadle.kernel.store.ports.clock import StoreClock
from treadle.kernel.store.queries import Event, History, Tally, TaskEnd
from treadle.model.tasks import LogLine, Move


class LogStore(StoreClock, Protocol):
    """Moves, numbered by seq, and log lines."""

    seqs_in_order: bool
    """Whether moves are committed in the order of their seqs."""

    async def list_moves(self, entity_id: str) -> list[Move]:
        """Return the entity's moves in order of version; the end of a finished task is the last of them."""

    async def list_moves_of(self, entity_ids: Sequence[str]) -> list[Move]:
        """Return the moves of these entities, as `list_moves` does for each, in order of entity and version."""

    async def list_takeovers(self, run_id: str, limit: int) -> list[Move]:
        """Return the last `limit` expiries of leases on tasks of the run, oldest first; the actor is the owner that lost one."""

    async def list_histories(self, after_id: str | None, limit: int) -> list[History]:
        """Return the histories of up to `limit` tasks, runs and records after `after_id`, in order of id.

        Each history is read at one instant.
        """

    async def list_events(self, after_seq: int, until_seq: int, limit: int) -> list[Event]:
        """Return up to `limit` moves with a seq above `after_seq` and up to `until_seq`, in order, read at one instant.

        If `seqs_in_order`, every move before a returned one is visible too. Otherwise one may appear up to 15 s later
        (D9). Gaps in the numbers are normal.
        """

    async def find_last_seq(self) -> int:
        """Return the last seq assigned to a move, committed or not."""

    async def tally(self, after_seq: int, until_seq: int) -> list[Tally]:
        """Count the moves of tasks by minute, among the moves with a seq above `after_seq` and up to `until_seq`.

        Reads all of these moves, so callers bound the range. Excludes moves of pruned tasks.
        """

    async def list_ends(self, limit: int) -> list[TaskEnd]:
        """The last `limit` ends of tasks, without pruned ones; reads no more rows than that."""

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        """Store log lines. They are not fenced and have no order relative to commits."""

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        """Return the task's last `limit` lines, oldest first."""

    async def list_run_lines(self, run_id: str, limit: int) -> list[LogLine]:
        """Return the last `limit` lines of a run (of its tasks and its flow), in the order of writing."""

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        """Return numbered lines of a run in the order of writing.

        These are the first `limit` lines after the number `after`, or else the last `limit` lines before the number
        `before` (by default, the last lines).
        """
