"""The log: moves of entities, merged by seq with the ends of finished tasks, and the lines of handlers."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.kernel.store.queries import Tally, TaskEnd
from treadle.model.tasks import LogLine, Move
from treadle.stores.shared.port import Port, unique


class LogReads(Port):
    """The reads of the `LogStore` that both stores have in common."""

    async def list_moves(self, entity_id: str) -> list[Move]:
        return await self._database.fetch_as(Move, "list_moves", entity_id=entity_id)

    async def list_moves_of(self, entity_ids: Sequence[str]) -> list[Move]:
        return await self._database.fetch_as(Move, "list_moves_of", ids=unique(entity_ids))

    async def list_takeovers(self, run_id: str, limit: int) -> list[Move]:
        return await self._database.fetch_as(Move, "list_takeovers", run_id=run_id, limit=max(limit, 0))

    async def find_last_seq(self) -> int:
        ((seq,),) = await self._database.fetch("find_last_seq")
        return int(seq)

    async def tally(self, after_seq: int, until_seq: int) -> list[Tally]:
        return [Tally(*row) for row in await self._database.fetch("tally", after_seq=after_seq, until_seq=until_seq)]

    async def list_ends(self, limit: int) -> list[TaskEnd]:
        return [TaskEnd(*row) for row in await self._database.fetch("list_ends", limit=max(limit, 0))]

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        return await self._database.fetch_as(LogLine, "list_lines", task_id=task_id, limit=max(limit, 0))

    async def page_run_lines(
        self, run_id: str, limit: int, before: int | None = None, after: int | None = None
    ) -> list[tuple[int, LogLine]]:
        name = "list_run_lines_before" if after is None else "list_run_lines_after"
        rows = await self._database.fetch(name, run_id=run_id, limit=max(limit, 0), before=before, after=after)
        fields = LogLine.__struct_fields__
        lines = [(number, LogLine(**dict(zip(fields, line, strict=True)))) for number, *line in rows]
        return lines[::-1] if after is None else lines
