"""Calls about task lists, on an engine."""

from __future__ import annotations

import builtins
from types import SimpleNamespace

from treadle.api.lists import (
    DesiredWorkers,
    KeyLimit,
    KeyLimits,
    LaneStatus,
    ListsApi,
    TaskLists,
    TaskListStatus,
)
from treadle.api.wire import record_of
from treadle.kernel.queue.lists import ShownLane, ShownList
from treadle.model.lists import MOST_WORKERS, TARGET_LATENCY, Limit
from treadle.service.group import Group

_EMPTY = SimpleNamespace(ready=0, running=0, waiting=0, held=0, oldest_due_at=None)


class Lists(Group, ListsApi):
    """See `ListsApi`."""

    async def list(self) -> TaskLists:
        found = await self.engine.kernel.lists.show()
        return TaskLists([_record(shown) for shown in found if self.access.may_use(shown.settings.task_list)])

    async def get(self, task_list: str) -> TaskListStatus:
        (shown,) = await self.engine.kernel.lists.show(task_list)
        return _record(shown)

    async def pause(self, task_list: str) -> TaskListStatus:
        await self.engine.kernel.lists.pause(task_list, actor=self.actor)
        return await self.get(task_list)

    async def resume(self, task_list: str) -> TaskListStatus:
        await self.engine.kernel.lists.resume(task_list, actor=self.actor)
        return await self.get(task_list)

    async def drain(self, task_list: str) -> TaskListStatus:
        await self.engine.kernel.lists.drain(task_list, actor=self.actor)
        return await self.get(task_list)

    async def set_policy(self, task_list: str, no_handler: str) -> TaskListStatus:
        await self.engine.kernel.lists.set_policy(task_list, no_handler, actor=self.actor)
        return await self.get(task_list)

    async def limit_rate(self, task_list: str, name: str, rate: float | None, *, burst: int | None = None) -> TaskListStatus:
        await self.engine.kernel.lists.limit_rate(task_list, name, rate, burst, actor=self.actor)
        return await self.get(task_list)

    async def limit_backlog(self, task_list: str, name: str, backlog_limit: int | None) -> TaskListStatus:
        await self.engine.kernel.lists.limit_backlog(task_list, name, backlog_limit, actor=self.actor)
        return await self.get(task_list)

    async def desired(
        self,
        task_list: str,
        *,
        name: str | None = None,
        target: float = TARGET_LATENCY,
        concurrency: int | None = None,
        least: int = 0,
        most: int = MOST_WORKERS,
    ) -> DesiredWorkers:
        await self.engine.kernel.lists.get(task_list)
        found = await self.engine.kernel.reads.desired_workers(
            task_list, name=name, target_latency=target, concurrency=concurrency, minimum=least, maximum=most
        )
        return record_of(DesiredWorkers, found, task_list=task_list, name=name)

    async def limits(self) -> KeyLimits:
        if self.access.task_lists:
            return KeyLimits([])
        lists, now = self.engine.kernel.lists, await self.engine.kernel.store.now()
        names: dict[str, list[str]] = {}
        for name, key in (await lists.handler_keys()).items():
            names.setdefault(key, []).append(name)
        return KeyLimits([_limit(each, names.get(each.key, []), now) for each in await lists.limits()])

    async def limit_key(self, key: str, max_running: int | None) -> KeyLimits:
        await self.engine.kernel.lists.limit_key(key, max_running, actor=self.actor)
        return await self.limits()

    async def limit_key_rate(self, key: str, rate: float | None, *, burst: int | None = None) -> KeyLimits:
        await self.engine.kernel.lists.limit_key_rate(key, rate, burst, actor=self.actor)
        return await self.limits()

    async def limit_handler(self, name: str, max_running: int | None) -> KeyLimits:
        await self.engine.kernel.lists.limit_handler(name, max_running, actor=self.actor)
        return await self.limits()


def _record(shown: ShownList) -> TaskListStatus:
    return record_of(TaskListStatus, shown.settings, lanes=[_lane(lane) for lane in shown.lanes])


def _limit(limit: Limit, handlers: builtins.list[str], now: int) -> KeyLimit:
    next_for = limit.next_start_for(now)
    return record_of(KeyLimit, limit, handlers=handlers, next_start_at=now + next_for if next_for else None)


def _lane(lane: ShownLane) -> LaneStatus:
    return record_of(LaneStatus, lane.depth or _EMPTY, lane.rule, lane.rule.lane)
