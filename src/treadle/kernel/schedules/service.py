"""Schedules: create, edit, pause, resume, remove, run now, backfill, preview. Every operator's change goes through here.

A schedule is a record and, while it is active, one task of kind `schedule` whose `wake_at` is its next tick. Every change of
the record replaces that task in the same unit, so an edit takes effect immediately and no old tick can fire. `fire.py` fires
ticks, `ticks.py` computes them, and `decide.py` decides on missed and overlapping ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Unpack

import msgspec

from treadle.api.options import ScheduleOptions
from treadle.api.schedules import (
    Backfilled,
    DueTicks,
    Schedule,
    SchedulePage,
    SchedulePreview,
    ScheduleTime,
    ScheduleTransitions,
    Started,
)
from treadle.api.wire import Instant, record_of
from treadle.kernel.reads.records import transition_record
from treadle.kernel.schedules.decide import Due, decide, jitter_of, tick_id
from treadle.kernel.schedules.options import begin, check_options, edit_document, make_document, redefine
from treadle.kernel.schedules.ticks import Calendar, find_zone, make_calendar, ticks_after
from treadle.kernel.store.records import ChangeRecord, unreadable
from treadle.kernel.triggers import Prepared, Starters, TriggerRecovery, Triggers, is_placeholder, named_targets, unit_of
from treadle.model import schedules as model
from treadle.model.clock import as_text, instant
from treadle.model.errors import InvalidInput, InvalidSchedule
from treadle.model.names import SCHEDULE, check_name
from treadle.model.records import Record
from treadle.model.schedules import ALLOW, Firing, ScheduleDocument, Target, When, describe_catch_up
from treadle.model.states import SCHEDULE as MACHINE
from treadle.model.tasks import NewTask, Task
from treadle.model.values import encode

RECENT = 20
"""Number of recent ticks kept in the record."""
BACKFILL_LIMIT = 1000
"""Maximum number of ticks per backfill."""

_BACKFILL = "backfill"
_BACKFILL_BATCH = 50
_LATE_FOR = 60_000
"""Milliseconds by which a task may be due after its tick without being replaced."""
_PREVIEW_LIMIT = 1000


_ANY_TARGET = {"task": "preview"}
"""The target of a previewed schedule without one."""


class Schedules(Triggers[ScheduleDocument, Schedule]):
    """The schedules of one namespace."""

    machine = MACHINE
    document = ScheduleDocument
    kind = SCHEDULE

    # changes by operators

    async def create(
        self, name: str, *, paused: bool = False, actor: str = "python", **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Start a task, a workflow or a function at certain times; see `ScheduleOptions`.

        Raises `InvalidSchedule` for invalid options, `Refused` (`schedule_exists`) if the name is taken.
        """
        check_name(name, "schedule name")
        now = await self._store.now()
        document = make_document(options, now)
        self.check(document)
        return await self.get(await self._put(name, document, paused=paused, actor=actor))

    def check(self, document: ScheduleDocument) -> Calendar:
        """Return the calendar of a schedule, or raise the error of an invalid one."""
        calendar = make_calendar(document.when)
        if document.end_at is not None and document.start_at is not None and document.end_at < document.start_at:
            raise InvalidSchedule(
                f"The schedule would end ({as_text(document.end_at)}) before it starts ({as_text(document.start_at)})."
            )
        find_zone(document.when.zone)
        first = calendar.next_after(document.cursor)
        if first is None or (document.end_at is not None and first > document.end_at):
            raise InvalidSchedule("The schedule would never fire: it has no tick before its end, or its time has already passed.")
        self.starters.check(document.target)
        encode(document.target.inputs, "inputs")
        return calendar

    async def edit(
        self, name: str, *, clear: Sequence[str] = (), actor: str = "python", **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Change any option of `create`, or remove those in `clear`; omitted options stay. Takes effect immediately.

        A new time (cron, zone, every, at, start, end) counts from now on: missed ticks of the old one are dropped. A schedule that
        cannot be read is made anew from the options.
        """
        changes: dict[str, Any] = dict.fromkeys(clear) | {**options}
        check_options(changes)

        def edited(document: ScheduleDocument, now: int) -> ScheduleDocument:
            new = make_document(changes, now) if is_placeholder(document) else edit_document(document, changes, now)
            self.check(new)
            return new

        return await self._operate(name, "edit", actor, edited)

    def redefine(self, document: ScheduleDocument, wanted: ScheduleDocument, now: int) -> ScheduleDocument:
        """Return the document with another definition; if the times are the same, its ticks continue."""
        return begin(wanted, now) if is_placeholder(document) else redefine(document, wanted, now)

    async def begin(self, name: str, document: ScheduleDocument, *, paused: bool = False, actor: str) -> str:
        """Store a new schedule whose times count from now on."""
        return await super().begin(name, begin(document, await self._store.now()), paused=paused, actor=actor)

    async def run_now(self, name: str, *, actor: str = "python") -> Started:
        """Start the target once, now, independently of ticks and of the overlap policy."""
        record = await self.get_record(name)
        tick = await self._store.now()
        (started,) = await self._start(record.id, [(tick, self._ids.new_id())], actor, "run now")
        return record_of(Started, started)

    async def backfill(
        self, name: str, start: datetime, end: datetime, *, dry_run: bool = False, actor: str = "python"
    ) -> Backfilled:
        """Start the target for each tick from `start` to `end` that has not started it yet.

        Catch-up and overlap policies do not apply, and the schedule's own ticks are not affected. A second backfill of the same
        range starts nothing, unless the work of the first has been pruned.
        """
        record = await self.get_record(name)
        document = self.load_shown(record)[1]
        since, until = instant(start, "start"), instant(end, "end")
        now = await self._store.now()
        if until > now:
            raise InvalidInput(f"A backfill must be in the past: {as_text(until)} is still to come.")
        if since > until:
            raise InvalidInput(f"The range ends ({as_text(until)}) before it starts ({as_text(since)}).")
        calendar = make_calendar(document.when)
        ticks = ticks_after(calendar, since - 1, until, BACKFILL_LIMIT + 1)
        if len(ticks) > BACKFILL_LIMIT:
            raise InvalidInput(f"There are more than {BACKFILL_LIMIT} ticks in that range; split it.")
        kind = self.starters.kind_of(document.target)
        ids = {tick: tick_id(record.id, tick) for tick in ticks}
        wanted = [(tick, ids[tick]) for tick in ticks if not await self.starters.was_started(kind, ids[tick])]
        if dry_run:
            started = [model.Started(kind=kind, id=start_id, tick=tick) for tick, start_id in wanted]
        else:
            batches = [wanted[first : first + _BACKFILL_BATCH] for first in range(0, len(wanted), _BACKFILL_BATCH)]
            started = [work for batch in batches for work in await self._start(record.id, batch, actor, _BACKFILL)]
        done = {work.tick for work in started}
        already = [Instant.of(tick) for tick in ticks if tick not in done]
        return Backfilled(dry_run, [Instant.of(tick) for tick in ticks], [record_of(Started, work) for work in started], already)

    async def _start(self, schedule_id: str, starts: list[tuple[int, str]], actor: str, note: str) -> list[model.Started]:
        """Start the schedule's target for these ticks on an operator's request; the same unit moves the record."""

        async def attempt() -> list[model.Started]:
            record = await self.get_record(schedule_id)
            self.check_transition(record, "fire")
            document = self.load(record)
            now = await self._store.now()
            wanted = starts
            if note == _BACKFILL:  # another backfill may run concurrently
                kind = self.starters.kind_of(document.target)
                wanted = [start for start in starts if not await self.starters.was_started(kind, start[1])]
                if not wanted:
                    return []
            prepared_starts = [
                await prepare_tick(self.starters, record, document, tick, start_id, actor) for tick, start_id in wanted
            ]
            started = [start for start, _ in prepared_starts]
            firings = tuple(Firing(tick=start.tick, at=now, kind=start.kind, id=start.id, note=note) for start in started)
            document = msgspec.structs.replace(
                document,
                recent=(*document.recent, *firings)[-RECENT:],
                fired=document.fired + len(started),
                live=document.live if note == _BACKFILL or document.overlap == ALLOW else (*document.live, *started),
            )
            data = {"note": note, "ticks": [as_text(start.tick) for start in started], "started": [start.id for start in started]}
            change = ChangeRecord(
                record.id,
                record.version,
                self.save(document),
                "fire",
                record.state,
                record.state,
                actor=actor,
                data=encode(data),
            )
            unit = unit_of([prepared for _, prepared in prepared_starts], (change,))
            await self._committer.commit(unit, self._patience)
            for _, prepared in prepared_starts:
                prepared.committed()
            return started

        return await self._committer.transact(attempt, f"start the schedule {schedule_id}")

    # reads

    async def list(self, *, every: bool = False, limit: int = 100, before: str | None = None) -> SchedulePage:
        """Return a page of schedules, newest first: the live ones, with `every` also those that have ended."""
        page, cursor = await self._page(every, limit, before)
        return SchedulePage(page, next_before=cursor)

    async def transitions(self, name: str) -> ScheduleTransitions:
        """Return its transitions, oldest first."""
        record = await self.get_record(name)
        return ScheduleTransitions(
            [transition_record(transition) for transition in await self._store.log.list_transitions(record.id)]
        )

    async def preview(self, name: str, count: int = 10) -> SchedulePreview:
        """Return the upcoming actions of the schedule: due ticks that fire now or one after another, and the next ticks."""
        record = await self.get_record(name)
        return await self._preview(record.id, self.load_shown(record)[1], count)

    async def preview_new(self, *, count: int = 10, **options: Unpack[ScheduleOptions]) -> SchedulePreview:
        """Preview a schedule with these options, which need not name a target; nothing is stored."""
        document = make_document(options if named_targets(options) else {**_ANY_TARGET, **options}, await self._store.now())
        self.check(document)
        return await self._preview("", document, count)

    async def _preview(self, schedule_id: str, document: ScheduleDocument, count: int) -> SchedulePreview:
        if not 0 < count <= _PREVIEW_LIMIT:
            raise InvalidInput(f"A preview has from 1 to {_PREVIEW_LIMIT} ticks, not {count}.")
        now = await self._store.now()
        due = await self._due(schedule_id, document, now)
        upto = document.end_at if document.end_at is not None else 2**62
        ticks = ticks_after(make_calendar(document.when), max(due.plan.cursor, now), upto, count)
        return SchedulePreview(
            time_record(document.when),
            document.when.zone,
            [Instant.of(tick) for tick in ticks],
            record_of(DueTicks, due),
            describe_catch_up(document.catch_up, document.overlap),
        )

    async def _due(self, schedule_id: str, document: ScheduleDocument, now: int) -> Due:
        busy = False
        if document.overlap != ALLOW:
            busy = any([await self.starters.find_live(work) is not None for work in document.live])
        return decide(document, make_calendar(document.when), schedule_id, now, busy=busy)

    async def describe_recovery(self) -> Sequence[TriggerRecovery]:
        """Return the active schedules that have missed ticks, and the effect of their policies, for start-up."""
        now, recoveries = await self._store.now(), []
        for record in await self._list_active():
            document = self.load(record)
            due = await self._due(record.id, document, now)
            count = len(due.fire) + due.skipped
            if not count:
                continue
            fires = f"{len(due.fire)} will fire" if due.fire else "none will fire"
            text = f"{count} tick(s) are due; {fires}: {describe_catch_up(document.catch_up, document.overlap)}"
            recoveries.append(TriggerRecovery(SCHEDULE, record.id, record.name or "", due.plan.cursor, count, due.fire, text))
        return recoveries

    def show(self, record: Record) -> Schedule:
        """Return the schedule of the API."""
        state, document = self.load_shown(record)
        following = make_calendar(document.when).next_after(document.cursor) if state == MACHINE.initial else None
        if following is not None and document.end_at is not None and following > document.end_at:
            following = None
        return record_of(
            Schedule,
            record,
            document,
            name=record.name or "",
            state=state,
            next_at=None if following is None else Instant.of(following),
            when=time_record(document.when),
            zone=document.when.zone,
        )

    # records and tasks

    def load(self, record: Record) -> ScheduleDocument:
        """Decode the document of a schedule's record; a time that this version cannot interpret makes it unreadable."""
        document = super().load(record)
        try:
            make_calendar(document.when)
        except InvalidSchedule as error:
            raise unreadable(record, error) from None
        return document

    def placeholder(self, problem: dict[str, Any]) -> ScheduleDocument:
        """Return the document that is displayed in place of one that cannot be read."""
        return ScheduleDocument(when=When(at=0), target=Target(kind="", name=""), cursor=0, error=problem)

    def is_late(self, record_id: str, document: ScheduleDocument, task: Task) -> bool:
        """Return whether its next tick is before its task is due: the rules of its time zone have changed."""
        if task.owner_id is not None or task.wake_at is None or task.failures or document.waiting is not None:
            return False
        following = make_calendar(document.when).next_after(document.cursor)
        return following is not None and following + jitter_of(record_id, document.jitter_for) + _LATE_FOR < task.wake_at

    def next_task(self, schedule_id: str, document: ScheduleDocument, now: int, next_at: int | None = None) -> NewTask:
        """Return the task that is due at the schedule's next tick (or at `next_at`), or now if a tick waits."""
        due_at = next_at
        if document.waiting is not None:
            due_at = now - jitter_of(schedule_id, document.jitter_for)
        elif due_at is None:
            due_at = make_calendar(document.when).next_after(document.cursor)
        delay = 0 if due_at is None else max(due_at + jitter_of(schedule_id, document.jitter_for) - now, 0)
        return self.make_task(schedule_id, delay)


def time_record(when: When) -> ScheduleTime:
    """The times of a schedule, without the fields that do not apply."""
    if when.cron is not None:
        return ScheduleTime(cron=when.cron, zone=when.zone)
    unused: dict[str, None] = {"zone": None, "at": None} if when.every_for is not None else {"zone": None, "anchor_at": None}
    return record_of(ScheduleTime, when, **unused)


async def prepare_tick(
    starters: Starters, record: Record, document: ScheduleDocument, tick: int, start_id: str | None = None, actor: str | None = None
) -> tuple[model.Started, Prepared]:
    """Return the work that a tick starts, and its rows."""
    at = as_text(tick)
    start_id = start_id or tick_id(record.id, tick)
    started, prepared = await starters.prepare(
        document.target,
        start_id,
        f"schedule:{record.name}:{at}",
        at,
        actor=actor or f"schedule:{record.name}",
        key=f"schedule:{record.id}:{start_id}",
    )
    return msgspec.structs.replace(started, tick=tick), prepared
