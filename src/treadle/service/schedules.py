"""Calls about schedules, on an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from treadle.api import schedules as shapes
from treadle.api.options import ScheduleOptions
from treadle.api.schedules import Backfilled, Schedule, ScheduleMoves, SchedulePage, SchedulePreview, SchedulesApi
from treadle.kernel.schedules import service as kernel
from treadle.kernel.schedules.options import make_body
from treadle.model import schedules as model
from treadle.service.group import Group
from treadle.service.shaping import instant, shaped_move, shaped_target

_ANY_TARGET = {"task": "preview"}


class Schedules(Group, SchedulesApi):
    """See `SchedulesApi`. Options that are None were not given."""

    async def list(self, *, every: bool = False, limit: int = 100, before: str | None = None) -> SchedulePage:
        found = await self.engine.schedules.list_schedules(ended=every, limit=limit, before_id=before)
        return SchedulePage([_shaped(each) for each in found], found[-1].id if len(found) == limit else None)

    async def create(self, name: str, *, paused: bool = False, **options: Unpack[ScheduleOptions]) -> Schedule:
        return _shaped(await self.engine.schedules.create(name, paused=paused, actor=self.actor, **_given(options)))

    async def preview_new(self, *, count: int = 10, **options: Unpack[ScheduleOptions]) -> SchedulePreview:
        given = _given(options)
        if not {"task", "workflow", "function"} & given.keys():
            given |= _ANY_TARGET
        now = await self.engine.store.now()
        body = make_body(given, now)
        self.engine.schedules.check(body)
        return _preview(body, self.engine.schedules.preview_body(body, now, count))

    async def get(self, name: str) -> Schedule:
        return _shaped(await self.engine.schedules.get(name))

    async def moves(self, name: str) -> ScheduleMoves:
        return ScheduleMoves([shaped_move(move) for move in await self.engine.schedules.list_moves(name)])

    async def preview(self, name: str, *, count: int = 10) -> SchedulePreview:
        schedule = await self.engine.schedules.get(name)
        return _preview(schedule.body, await self.engine.schedules.preview(schedule.id, count))

    async def edit(self, name: str, *, clear: Sequence[str] = (), **options: Unpack[ScheduleOptions]) -> Schedule:
        changes = dict.fromkeys(clear) | _given(options)
        return _shaped(await self.engine.schedules.edit(name, actor=self.actor, **changes))  # type: ignore[arg-type]

    async def pause(self, name: str) -> Schedule:
        return _shaped(await self.engine.schedules.pause(name, actor=self.actor))

    async def resume(self, name: str) -> Schedule:
        return _shaped(await self.engine.schedules.resume(name, actor=self.actor))

    async def remove(self, name: str) -> Schedule:
        return _shaped(await self.engine.schedules.remove(name, actor=self.actor))

    async def run_now(self, name: str) -> shapes.Started:
        return _started(await self.engine.schedules.run_now(name, actor=self.actor))

    async def backfill(self, name: str, start: datetime, end: datetime, *, dry_run: bool = False) -> Backfilled:
        done = await self.engine.schedules.backfill(name, start, end, dry_run=dry_run, actor=self.actor)
        return Backfilled(
            dry_run=done.dry_run,
            ticks=[instant(tick) for tick in done.ticks],
            started=[_started(each) for each in done.started],
            already=[instant(tick) for tick in done.already],
        )


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _shaped(schedule: kernel.Schedule) -> Schedule:
    body = schedule.body
    catch_up = body.catch_up
    return Schedule(
        id=schedule.id,
        name=schedule.name,
        state=schedule.state,
        version=schedule.version,
        next_at=instant(schedule.next_at),
        when=_when(body.when),
        zone=body.when.zone,
        target=shaped_target(body.target),
        catch_up=shapes.CatchUp(catch_up.policy, catch_up.limit, catch_up.window_for, catch_up.grace_for),
        overlap=body.overlap,
        jitter_for=body.jitter_for,
        start_at=instant(body.start_at),
        end_at=instant(body.end_at),
        cursor=instant(body.cursor),
        waiting=instant(body.waiting),
        fired=body.fired,
        skipped=body.skipped,
        recent=[shapes.Firing(instant(each.tick), instant(each.at), each.kind, each.id, each.note) for each in body.recent],
        error=body.error,
        task_id=schedule.task_id,
        created_at=instant(schedule.created_at),
        updated_at=instant(schedule.updated_at),
    )


def _when(when: model.When) -> shapes.ScheduleTime:
    if when.cron is not None:
        return shapes.ScheduleTime(cron=when.cron, zone=when.zone)
    if when.every_for is not None:
        return shapes.ScheduleTime(every_for=when.every_for, anchor_at=instant(when.anchor_at))
    return shapes.ScheduleTime(at=instant(when.at))


def _preview(body: model.ScheduleBody, preview: kernel.Preview) -> SchedulePreview:
    return SchedulePreview(
        when=_when(body.when),
        zone=body.when.zone,
        ticks=[instant(tick) for tick in preview.ticks],
        due=shapes.DueTicks([instant(tick) for tick in preview.due.fire], preview.due.skipped),
        policy=preview.policy,
    )


def _started(started: model.Started) -> shapes.Started:
    return shapes.Started(started.kind, started.id, instant(started.tick))
