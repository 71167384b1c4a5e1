"""Reads of tasks, and of dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from treadle.kernel.store.queries import DeadLetter, DeadLetterFilter, DeadLetterGroup, LaneDepth
from treadle.kernel.store.units import Seen
from treadle.model.names import Lane
from treadle.model.tasks import Task
from treadle.stores.shared.port import Port, unique

_LAST_SEQ = 2**62


class TaskReads(Port):
    """The reads of the `TaskStore` that both stores have in common."""

    async def expire_leases_of(self, owner_ids: Sequence[str]) -> int:
        return await self._database.execute("expire_leases", owners=owner_ids)

    async def list_unpolled(self, lane_ids: Sequence[int], limit: int) -> list[str]:
        return await self._list_ids("list_unpolled", lane_ids=lane_ids, limit=max(limit, 0))

    async def list_failing(self, lane_ids: Sequence[int], limit: int) -> list[str]:
        return await self._list_ids("list_failing", lane_ids=lane_ids, limit=max(limit, 0))

    async def find(self, task_id: str) -> Task | None:
        return await self._find(Task, "find_tasks", ids=[task_id])

    async def find_many(self, task_ids: Sequence[str]) -> list[Task]:
        tasks = await self._database.fetch_as(Task, "find_tasks", ids=unique(task_ids))
        return sorted(tasks, key=lambda task: (task.created_at, task.id), reverse=True)

    async def find_unique(self, namespace: str, keys: Sequence[str]) -> dict[str, str]:
        return dict(await self._database.fetch("find_unique", namespace=namespace, keys=keys))

    async def find_finished(self, task_ids: Sequence[str]) -> list[Task]:
        return await self._database.fetch_as(Task, "find_finished", ids=unique(task_ids))

    async def list_depths(self) -> list[LaneDepth]:
        return [
            LaneDepth(lane_id, Lane(namespace, kind, task_list, name), *counts)
            for lane_id, namespace, kind, task_list, name, *counts in await self._database.fetch("list_depths")
        ]

    async def count_finished(self) -> dict[str, int]:
        return dict(await self._database.fetch("count_finished"))


class DeadLetters(Port):
    """The `DeadLetterStore` of both stores."""

    async def list_newest(self, which: DeadLetterFilter, limit: int) -> list[Task]:
        return await self._database.fetch_as(Task, "list_dead_letters", **_values(which), limit=max(limit, 0))

    async def walk(self, which: DeadLetterFilter, limit: int) -> list[DeadLetter]:
        return [
            DeadLetter(Seen(task_id, version, claim_version), seq, root_id, run_id)
            for task_id, version, claim_version, seq, root_id, run_id in await self._database.fetch(
                "walk_dead_letters", **_values(which), limit=max(limit, 0)
            )
        ]

    async def group(self, which: DeadLetterFilter, limit: int) -> list[DeadLetterGroup]:
        rows = await self._database.fetch("group_dead_letters", **_values(which), limit=max(limit, 0))
        return [DeadLetterGroup(*row) for row in rows]

    async def count(self, which: DeadLetterFilter) -> tuple[int, int, int]:
        name = "count_dead_letters_in" if which.by_lane_alone else "count_dead_letters"
        ((count, of_runs, last_seq),) = await self._database.fetch(name, **_values(which))
        return count, of_runs, last_seq


def _values(which: DeadLetterFilter) -> dict[str, Any]:
    until_seq = _LAST_SEQ if which.until_seq is None else which.until_seq
    return msgspec.structs.asdict(which) | {"after_seq": which.after_seq or 0, "until_seq": until_seq}
