"""Calls about schedules, on an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from treadle.api import schedules as shapes
from treadle.api.options import ScheduleOptions
from treadle.api.schedules import Backfilled, Schedule, ScheduleMoves, SchedulePage, SchedulePreview, SchedulesApi
from treadle.api.wire import record_of
from treadle.kernel.schedules import service as kernel
from treadle.kernel.schedules.options import make_body
from treadle.model import schedules as model
from treadle.service.group import Group
from treadle.service.task_records import move_record

_ANY_TARGET = {"task": "preview"}


class Schedules(Group, SchedulesApi):
    """See `SchedulesApi`. Options that are None were not given."""

    async def list(self, *, every: bool = False, limit: int = 100, before: str | None = None) -> SchedulePage:
        found = await self.engine.schedules.list_schedules(ended=every, limit=limit, before_id=before)
        return SchedulePage([_record(each) for each in found], found[-1].id if len(found) == limit else None)

    async def create(self, name: str, *, paused: bool = False, **options: Unpack[ScheduleOptions]) -> Schedule:
        return _record(await self.engine.schedules.create(name, paused=paused, actor=self.actor, **_given(options)))

    async def preview_new(self, *, count: int = 10, **options: Unpack[ScheduleOptions]) -> SchedulePreview:
        given = _given(options)
        if not {"task", "workflow", "function"} & given.keys():
            given |= _ANY_TARGET
        now = await self.engine.kernel.store.now()
        body = make_body(given, now)
        self.engine.schedules.check(body)
        return _preview(body, self.engine.schedules.preview_body(body, now, count))

    async def get(self, name: str) -> Schedule:
        return _record(await self.engine.schedules.get(name))

    async def moves(self, name: str) -> ScheduleMoves:
        return ScheduleMoves([move_record(move) for move in await self.engine.schedules.list_moves(name)])

    async def preview(self, name: str, *, count: int = 10) -> SchedulePreview:
        schedule = await self.engine.schedules.get(name)
        return _preview(schedule.body, await self.engine.schedules.preview(schedule.id, count))

    async def edit(self, name: str, *, clear: Sequence[str] = (), **options: Unpack[ScheduleOptions]) -> Schedule:
        changes = dict.fromkeys(clear) | _given(options)
        return _record(await self.engine.schedules.edit(name, actor=self.actor, **changes))  # type: ignore[arg-type]

    async def pause(self, name: str) -> Schedule:
        return _record(await self.engine.schedules.pause(name, actor=self.actor))

    async def resume(self, name: str) -> Schedule:
        return _record(await self.engine.schedules.resume(name, actor=self.actor))

    async def remove(self, name: str) -> Schedule:
        return _record(await self.engine.schedules.remove(name, actor=self.actor))

    async def run_now(self, name: str) -> shapes.Started:
        return record_of(shapes.Started, await self.engine.schedules.run_now(name, actor=self.actor))

    async def backfill(self, name: str, start: datetime, end: datetime, *, dry_run: bool = False) -> Backfilled:
        return record_of(Backfilled, await self.engine.schedules.backfill(name, start, end, dry_run=dry_run, actor=self.actor))


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _record(schedule: kernel.Schedule) -> Schedule:
    body = schedule.body
    return record_of(Schedule, schedule, body, when=_when(body.when), zone=body.when.zone)


def _when(when: model.When) -> shapes.ScheduleTime:
    if when.cron is not None:
        return shapes.ScheduleTime(cron=when.cron, zone=when.zone)
    kept = {"zone": None, "at": None} if when.every_for is not None else {"zone": None, "anchor_at": None}
    return record_of(shapes.ScheduleTime, when, **kept)


def _preview(body: model.ScheduleBody, preview: kernel.Preview) -> SchedulePreview:
    return record_of(SchedulePreview, preview, when=_when(body.when), zone=body.when.zone)
