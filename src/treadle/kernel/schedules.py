"""Schedules: create, edit, pause, resume, remove, run now, backfill, preview. Every change by people goes through here.

A schedule is a record and, while it is active, one task of kind `schedule` whose `wake_at` is its next tick. Whatever changes
the record replaces that task in the same unit, so that an edit takes effect at once and no old tick can fire any more. What a
tick does is in `kernel.firing`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Unpack

import msgspec

from treadle.kernel import catchup
from treadle.kernel.calendar import Calendar, make_calendar, ticks_after
from treadle.kernel.catchup import Plan, jitter_of, plan
from treadle.kernel.committer import Committer
from treadle.kernel.crashpoints import reach
from treadle.kernel.entities import ChangeRecord, PutRecord, RecordFilter
from treadle.kernel.ports import Finish, Row, Seen, Store, Unit, Verdict
from treadle.kernel.queue import PATIENCE
from treadle.kernel.schedule_options import ScheduleOptions, check_options, edit_body, make_body
from treadle.kernel.starting import Occasion, Prepared, Starters
from treadle.model.clock import as_text, instant
from treadle.model.errors import IllegalMove, InvalidInput, InvalidSchedule, ScheduleExists, ScheduleNotFound, StoreUnavailable
from treadle.model.ids import Ids, parse_id, uuid7
from treadle.model.names import DEFAULT_NAMESPACE, ENGINE_LIST, SCHEDULE, Lane, check_name
from treadle.model.records import Record
from treadle.model.schedules import ALLOW, Firing, ScheduleBody, Started
from treadle.model.states import SCHEDULE as MACHINE
from treadle.model.states import TaskState
from treadle.model.tasks import NewTask, Task
from treadle.model.values import encode

ACTIVE, PAUSED = "active", "paused"
RECENT = 20
"""What became of so many ticks is kept in the record."""
BACKFILL_LIMIT = 1000
"""Ticks that one backfill takes at most."""

_BACKFILL_BATCH = 50
_TRIES = 10
_PAGE = 1000
_PREVIEW_LIMIT = 1000
_decoder = msgspec.json.Decoder(ScheduleBody)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as people see it."""

    id: str
    name: str
    state: str
    version: int
    body: ScheduleBody
    created_at: int
    updated_at: int
    task_id: str | None
    next_at: int | None
    """The tick that comes next; None when none comes by itself."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """What a backfill did, or would do: the ticks of the range, and those of them for which something had been started."""

    ticks: tuple[int, ...]
    started: tuple[Started, ...]
    already: tuple[int, ...]
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Preview:
    """What a schedule will do: what was missed and is made up for now, and the ticks to come."""

    ticks: tuple[int, ...]
    due: Plan
    policy: str


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a start-up finds of one schedule or watcher, and what will be done about it."""

    entity: str
    id: str
    name: str
    due_at: int | None
    missed: int
    fires: tuple[int, ...]
    text: str


class Schedules:
    """The schedules of one namespace."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        ids: Ids,
        starters: Starters,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        patience: float = PATIENCE,
    ) -> None:
        self._store = store
        self._committer = committer
        self._ids = ids
        self._starters = starters
        self._namespace = namespace
        self._patience = patience

    # what people do

    async def create(
        self, name: str, *, paused: bool = False, actor: str = "python", **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Start a task, a workflow or a function by time; see `ScheduleOptions` for when, what and how.

        `InvalidSchedule` says what is wrong with it, `ScheduleExists` that the name is taken.
        """
        check_name(name, "schedule name")
        now = await self._store.now()
        body = make_body(options, now)
        self.check(body)
        return await self._put(name, body, now, paused=paused, actor=actor)

    def check(self, body: ScheduleBody) -> Calendar:
        """Raise what is wrong with a schedule; its calendar if nothing is."""
        calendar = make_calendar(body.when)
        if body.end_at is not None and body.start_at is not None and body.end_at < body.start_at:
            raise InvalidSchedule(f"The schedule would end ({as_text(body.end_at)}) before it starts ({as_text(body.start_at)}).")
        first = calendar.next_after(body.cursor)
        if first is None or (body.end_at is not None and first > body.end_at):
            raise InvalidSchedule("The schedule would never fire: it has no tick before its end, or its time has passed already.")
        self._starters.check(body.target)
        encode(body.target.inputs, "inputs")
        return calendar

    async def _put(self, name: str, body: ScheduleBody, now: int, *, paused: bool, actor: str) -> Schedule:
        record = Record(
            id=self._ids.new_id(), namespace=self._namespace, entity=SCHEDULE, name=name, state=ACTIVE, body=save_body(body)
        )
        tasks: tuple[NewTask, ...] = ()
        rows: tuple[Row, ...] = (PutRecord(record),)
        if paused:
            rows = (*rows, ChangeRecord(record.id, 0, record.body, "pause", ACTIVE, PAUSED, actor=actor))
        else:
            tasks = (self.next_task(record.id, body, now),)
            record = msgspec.structs.replace(record, task_id=tasks[0].id)
            rows = (PutRecord(record),)
        reach("operate.before_commit")
        answer = await self._committer.submit(Unit(tasks=tasks, rows=rows), self._patience)
        reach("operate.after_commit")
        if name in answer.existing:
            raise ScheduleExists(f"There is a schedule {name} already; edit it, or remove it first.")
        return await self.get(record.id)

    async def edit(self, name: str, *, actor: str = "python", **changes: Unpack[ScheduleOptions]) -> Schedule:
        """Change anything that `create` takes; what is not given stays. Takes effect at once.

        A new time (cron, zone, every, at, start, end) counts from now on: ticks of the old one that were missed are gone.
        """
        check_options(changes)

        def edited(body: ScheduleBody, now: int) -> ScheduleBody:
            new = edit_body(body, changes, now)
            self.check(new)
            return new

        return await self._operate(name, "edit", actor, edited)

    async def pause(self, name: str, *, actor: str = "python") -> Schedule:
        """From now on no tick fires; what was started goes on. Pausing a paused one is a no-op."""
        return await self._operate(name, "pause", actor, lambda body, _: body, unless=PAUSED)

    async def resume(self, name: str, *, actor: str = "python") -> Schedule:
        """Let a paused schedule go on; what it missed is made up for as its catch-up policy says."""
        return await self._operate(name, "resume", actor, lambda body, _: body, unless=ACTIVE)

    async def remove(self, name: str, *, actor: str = "python") -> Schedule:
        """End the schedule; what was started goes on, and its name is free."""
        return await self._operate(name, "remove", actor, lambda body, _: body)

    async def run_now(self, name: str, *, actor: str = "python") -> Started:
        """Start what the schedule starts, once, now, beside its ticks and whatever the overlap policy says."""
        schedule = await self.get(name)
        tick = await self._store.now()
        (started,) = await self._start(schedule.id, [(tick, self._ids.new_id())], actor, "run now")
        return started

    async def backfill(
        self, name: str, start: datetime, end: datetime, *, dry_run: bool = False, actor: str = "python"
    ) -> Backfill:
        """Start what the schedule starts for each of its ticks from `start` to `end` for which that was not done.

        Neither catch-up nor overlap policies apply, and the schedule's own ticks go on as before. Done twice, it starts nothing
        the second time, unless what was started has been pruned.
        """
        schedule = await self.get(name)
        since, until = instant(start, "start"), instant(end, "end")
        now = await self._store.now()
        if until > now:
            raise InvalidInput(f"A backfill is for what is past: {as_text(until)} is still to come.")
        if since > until:
            raise InvalidInput(f"The range ends ({as_text(until)}) before it starts ({as_text(since)}).")
        calendar = make_calendar(schedule.body.when)
        ticks = ticks_after(calendar, since - 1, until, BACKFILL_LIMIT + 1)
        if len(ticks) > BACKFILL_LIMIT:
            raise InvalidInput(f"There are more than {BACKFILL_LIMIT} ticks in that range; take it in parts.")
        kind = self._starters.kind_of(schedule.body.target)
        ids = {tick: tick_id(schedule.id, tick) for tick in ticks}
        already = tuple([tick for tick in ticks if await self._starters.was_started(kind, ids[tick])])
        wanted = [(tick, ids[tick]) for tick in ticks if tick not in already]
        if dry_run:
            would = tuple(Started(kind=kind, id=start_id, tick=tick) for tick, start_id in wanted)
            return Backfill(tuple(ticks), would, already, dry_run=True)
        started: list[Started] = []
        for first in range(0, len(wanted), _BACKFILL_BATCH):
            started += await self._start(schedule.id, wanted[first : first + _BACKFILL_BATCH], actor, "backfill")
        return Backfill(tuple(ticks), tuple(started), already)

    async def _start(self, schedule_id: str, starts: list[tuple[int, str]], actor: str, note: str) -> list[Started]:
        """Start it for those ticks, by a person's wish: a move of the record, in the same unit."""
        for _ in range(_TRIES):
            record = await self._get_record(schedule_id)
            if MACHINE.target(record.state, "fire") is None:
                raise IllegalMove("schedule", record.name or record.id, record.state, "fire", MACHINE.possible(record.state))
            body = load_body(record)
            now = await self._store.now()
            made = [await prepare_tick(self._starters, record, body, tick, start_id) for tick, start_id in starts]
            started = [each for each, _ in made]
            firings = tuple(Firing(tick=each.tick, at=now, kind=each.kind, id=each.id, note=note) for each in started)
            body = msgspec.structs.replace(
                body,
                recent=(*body.recent, *firings)[-RECENT:],
                fired=body.fired + len(started),
                live=body.live if note == "backfill" or body.overlap == ALLOW else (*body.live, *started),
            )
            data = {"note": note, "ticks": [as_text(each.tick) for each in started], "started": [each.id for each in started]}
            change = ChangeRecord(
                record.id,
                record.version,
                save_body(body),
                "fire",
                record.state,
                record.state,
                actor=actor,
                data=encode(data),
            )
            unit = unit_of([prepared for _, prepared in made], (change,))
            reach("operate.before_commit")
            answer = await self._committer.submit(unit, self._patience)
            reach("operate.after_commit")
            if answer.verdict is Verdict.DONE:
                for _, prepared in made:
                    prepared.committed()
                return started
        raise StoreUnavailable(f"The schedule {schedule_id} changes too fast; try again.")

    # looking

    async def get(self, name: str) -> Schedule:
        """The live schedule of that name, or the one of that id, or `ScheduleNotFound`."""
        return self._shown(await self._get_record(name))

    async def list_schedules(self, *, ended: bool = False, limit: int = _PAGE, before_id: str | None = None) -> list[Schedule]:
        """A page of schedules, newest first: the live ones, with `ended` those that have ended as well."""
        which = RecordFilter(SCHEDULE, self._namespace, live=None if ended else True, before_id=before_id)
        return [self._shown(record) for record in await self._store.list_records(which, limit)]

    async def preview(self, name: str, count: int = 10) -> Preview:
        """What the schedule will do by itself: what is made up for now, and the next ticks."""
        schedule = await self.get(name)
        return self.preview_body(schedule.body, await self._store.now(), count, schedule.id)

    def preview_body(self, body: ScheduleBody, now: int, count: int = 10, schedule_id: str = "") -> Preview:
        """The same for a schedule that need not be stored."""
        if not 0 < count <= _PREVIEW_LIMIT:
            raise InvalidInput(f"A preview has from 1 to {_PREVIEW_LIMIT} ticks, not {count}.")
        calendar = make_calendar(body.when)
        due = plan_of(body, calendar, now - jitter_of(schedule_id, body.jitter_for), batch=BACKFILL_LIMIT)
        upto = body.end_at if body.end_at is not None else 2**62
        ticks = ticks_after(calendar, max(due.cursor, now), upto, count)
        return Preview(tuple(ticks), due, catchup.describe(body.catch_up))

    async def describe_recovery(self) -> list[Recovery]:
        """What a start-up finds: the active schedules that have missed something, and what their policies will do about it."""
        now = await self._store.now()
        found = []
        for schedule in await self._all_active():
            due = self.preview_body(schedule.body, now, 1, schedule.id).due
            count = len(due.fire) + due.skipped
            if not count:
                continue
            fires = f"{len(due.fire)} will fire" if due.fire else "none will fire"
            text = f"{count} tick(s) are due; {fires}: {catchup.describe(schedule.body.catch_up)}"
            found.append(Recovery(SCHEDULE, schedule.id, schedule.name, due.cursor, count, due.fire, text))
        return found

    async def repair(self) -> list[str]:
        """Give active schedules a task again whose task is gone (somebody canceled it); their names. Idempotent."""
        repaired = []
        for schedule in await self._all_active():
            task = None if schedule.task_id is None else await self._store.find_task(schedule.task_id)
            if task is not None and not task.finished:
                continue
            new = self.next_task(schedule.id, schedule.body, await self._store.now())
            change = ChangeRecord(schedule.id, schedule.version, save_body(schedule.body), task_id=new.id)
            answer = await self._committer.submit(Unit(tasks=(new,), rows=(change,)), self._patience)
            if answer.verdict is Verdict.DONE:
                repaired.append(schedule.name)
        return repaired

    async def _all_active(self) -> list[Schedule]:
        found: list[Schedule] = []
        which = RecordFilter(SCHEDULE, self._namespace, states=(ACTIVE,), live=True)
        while page := await self._store.list_records(which, _PAGE):
            found += [self._shown(record) for record in page]
            which = replace(which, before_id=page[-1].id)
        return found

    async def _get_record(self, name: str) -> Record:
        record = await self._store.find_record_named(self._namespace, SCHEDULE, name)
        if record is None:
            try:
                record = await self._store.find_record(parse_id(name))
            except InvalidInput:
                record = None
        if record is None or record.namespace != self._namespace or record.entity != SCHEDULE:
            raise ScheduleNotFound(name)
        return record

    def _shown(self, record: Record) -> Schedule:
        body = load_body(record)
        following = make_calendar(body.when).next_after(body.cursor) if record.state == ACTIVE else None
        if following is not None and body.end_at is not None and following > body.end_at:
            following = None
        return Schedule(
            record.id,
            record.name or "",
            record.state,
            record.version,
            body,
            record.created_at,
            record.updated_at,
            record.task_id,
            following,
        )

    # changing

    def next_task(self, schedule_id: str, body: ScheduleBody, now: int, next_at: int | None = None) -> NewTask:
        """The task that is due at the schedule's next tick (or at `next_at`), which may be now."""
        due_at = next_at
        if due_at is None:
            due_at = make_calendar(body.when).next_after(body.cursor)
        wait_for = 0 if due_at is None else max(due_at + jitter_of(schedule_id, body.jitter_for) - now, 0)
        return NewTask(
            id=self._ids.new_id(),
            lane=Lane(self._namespace, SCHEDULE, ENGINE_LIST, SCHEDULE),
            payload=encode({"schedule_id": schedule_id}),
            wait_for=wait_for,
            trace_id=f"schedule:{schedule_id}",
        )

    async def _operate(
        self, name: str, move: str, actor: str, decide: Callable[[ScheduleBody, int], ScheduleBody], unless: str | None = None
    ) -> Schedule:
        """Read, decide, commit under what was seen, with another task in place of the one there was; look again if it changed."""
        for _ in range(_TRIES):
            record = await self._get_record(name)
            if record.state == unless:
                return self._shown(record)
            state = MACHINE.target(record.state, move)
            if state is None:
                raise IllegalMove("schedule", record.name or record.id, record.state, move, MACHINE.possible(record.state))
            now = await self._store.now()
            body = decide(load_body(record), now)
            tasks = (self.next_task(record.id, body, now),) if state == ACTIVE else ()
            change = ChangeRecord(
                record.id,
                record.version,
                save_body(body),
                move,
                record.state,
                state,
                ended=state in MACHINE.final,
                actor=actor,
                task_id=tasks[0].id if tasks else None,
            )
            task = None if record.task_id is None else await self._store.find_task(record.task_id)
            guard, settlement = replacing(task, actor, f"The schedule {record.name}: {move} by {actor}.")
            reach("operate.before_commit")
            answer = await self._committer.submit(Unit(guard, settlement, tasks, rows=(change,)), self._patience)
            reach("operate.after_commit")
            if answer.verdict is Verdict.DONE:
                return await self.get(record.id)
        raise StoreUnavailable(f"The schedule {name} changes too fast to {move} it; try again.")


def replacing(task: Task | None, actor: str, reason: str) -> tuple[Seen | None, Finish | None]:
    """Guard and settlement of a unit that puts another task in the place of this one, or none."""
    if task is None or task.finished:
        return None, None
    error = encode({"code": "canceled", "message": reason})
    finish = Finish("cancel", TaskState.CANCELED, error=error, error_code="canceled", actor=actor)
    return Seen(task.id, task.version, task.claim_version), finish


def unit_of(prepared: list[Prepared], rows: tuple[Row, ...], tasks: tuple[NewTask, ...] = (), **more: Any) -> Unit:
    """A unit that starts what was prepared, beside what else it does."""
    new = (*(task for each in prepared for task in each.tasks), *tasks)
    return Unit(tasks=new, rows=(*(row for each in prepared for row in each.rows), *rows), **more)


async def prepare_tick(
    starters: Starters, record: Record, body: ScheduleBody, tick: int, start_id: str | None = None
) -> tuple[Started, Prepared]:
    """What a tick starts, and what a unit needs for that."""
    said = as_text(tick)
    start_id = start_id or tick_id(record.id, tick)
    key = f"schedule:{record.id}:{start_id}"
    occasion = Occasion(start_id, f"schedule:{record.name}:{said}", said, key)
    started, prepared = await starters.prepare(body.target, occasion)
    return msgspec.structs.replace(started, tick=tick), prepared


def tick_id(schedule_id: str, tick: int) -> str:
    """The id of what a tick starts: the same whoever starts it, sorted by its tick."""
    return uuid7(tick, hashlib.sha256(f"{schedule_id}/tick:{tick}".encode()).digest())


def plan_of(body: ScheduleBody, calendar: Calendar, now: int, **more: Any) -> Plan:
    """The plan of a schedule at that time."""
    return plan(calendar, body.catch_up, body.cursor, now, end_at=body.end_at, **more)


def load_body(record: Record) -> ScheduleBody:
    """The body of a schedule's record."""
    return _decoder.decode(record.body)


def save_body(body: ScheduleBody) -> str:
    """The body as it is stored."""
    return encode(msgspec.to_builtins(body), "schedule")
