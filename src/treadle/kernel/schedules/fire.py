"""Fires schedules: one unit, under the claim of the schedule's task, starts the work, moves the cursor, and inserts the task
for the next tick.

So a tick fires exactly once, despite crashes and with any number of processes: the unit commits as a whole or not at all. The
time is that of the claim, by the store's clock. Each task ends with its actions as the result and is pruned like any other, so
a schedule that ticks for years stays small.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from treadle.kernel.schedules.decide import Due, decide, jitter_of
from treadle.kernel.schedules.service import RECENT, Schedules, prepare_tick
from treadle.kernel.schedules.ticks import make_calendar
from treadle.kernel.store.records import ChangeRecord
from treadle.kernel.store.units import Requeue, Unit, UnitAnswer, Verdict
from treadle.kernel.triggers import ACTIVE, Prepared, TriggerTasks, succeeded, unit_of
from treadle.model.clock import as_text
from treadle.model.errors import StoreError, TreadleError
from treadle.model.names import SCHEDULE
from treadle.model.records import Record
from treadle.model.retry import Backoff
from treadle.model.schedules import ALLOW, Firing, ScheduleDocument, Started
from treadle.model.states import SCHEDULE as MACHINE
from treadle.model.states import TaskState
from treadle.model.tasks import NewTask, Task
from treadle.model.values import Json, encode

_LOOK_BACKOFF = Backoff(500, 15_000)
"""Delay until the next check whether the earlier work of a queued tick has ended; it doubles each time."""

_RETRY_BACKOFF = Backoff(1000, 300_000)


@dataclass(slots=True)
class _FireAttempt:
    """One attempt of a schedule in progress."""

    record: Record
    document: ScheduleDocument
    now: int
    due: Due
    live: list[Started]
    firings: list[Firing] = field(default_factory=list)
    started: list[Started] = field(default_factory=list)
    prepared: list[Prepared] = field(default_factory=list)
    skipped: int = 0

    @property
    def waiting(self) -> tuple[int, ...]:
        """Ticks that start after this attempt."""
        return self.due.admission.waiting

    def note(self, tick: int, why: str) -> None:
        """Record that the tick starts nothing, and the reason."""
        self.firings.append(Firing(tick=tick, at=self.now, note=why))
        self.skipped += 1


class Firer(TriggerTasks[Schedules]):
    """Fires schedules."""

    point = "fire"

    async def act(self, record: Record, task: Task) -> UnitAnswer:
        """Perform the due actions for a schedule, and settle the task."""
        try:
            attempt = await self._work_out(record, task.claimed_at or 0)
        except StoreError:
            raise
        except TreadleError as error:
            return await self._put_off(record, task, error)
        return await self._settle(attempt, task)

    async def _work_out(self, record: Record, now: int) -> _FireAttempt:
        document = self.triggers.load(record)
        before = [] if document.overlap == ALLOW else [await self.triggers.starters.find_live(work) for work in document.live]
        live = [work for work in before if work is not None]
        due = decide(document, make_calendar(document.when), record.id, now, busy=bool(live))
        planned, admitted = due.plan, due.admission
        attempt = _FireAttempt(record, document, now, due, live, skipped=planned.skipped)
        if planned.skipped:
            attempt.firings.append(Firing(tick=planned.cursor, at=now, note=f"{planned.skipped} missed tick(s) up to here skipped"))
        overtaken = bool(due.fire) and due.fire[-1] in planned.fire
        for tick in admitted.skipped:
            attempt.note(tick, "skipped: a newer tick fires" if overtaken else "skipped: earlier work is still live")
        if admitted.cancel:
            for work in live:
                await self.triggers.starters.cancel(work, f"The next tick of the schedule {record.name} is due.", "schedule")
            attempt.live = []
        for tick in admitted.start:
            started, prepared = await prepare_tick(self.triggers.starters, record, document, tick)
            attempt.started.append(started)
            attempt.prepared.append(prepared)
            attempt.firings.append(Firing(tick=tick, at=now, kind=started.kind, id=started.id))
        return attempt

    async def _settle(self, attempt: _FireAttempt, task: Task) -> UnitAnswer:
        record, document = attempt.record, attempt.document
        waiting = attempt.waiting[0] if attempt.waiting else None
        looks = document.looks + 1 if waiting is not None and waiting == document.waiting else 0
        new = msgspec.structs.replace(
            document,
            cursor=attempt.due.plan.cursor,
            live=() if document.overlap == ALLOW else (*attempt.live, *attempt.started),
            waiting=waiting,
            backlog=attempt.waiting[1:],
            looks=looks,
            recent=(*document.recent, *attempt.firings)[-RECENT:],
            fired=document.fired + len(attempt.started),
            skipped=document.skipped + attempt.skipped,
            error=None,
        )
        over = attempt.due.plan.next_at is None and waiting is None
        tasks: tuple[NewTask, ...] = () if over else (self._next(attempt, new),)
        change = ChangeRecord(
            record.id,
            record.version,
            self.triggers.save(new),
            transition="finish" if over else None,
            from_state=ACTIVE if over else None,
            to_state=MACHINE.target(ACTIVE, "finish") if over else None,
            ended=over,
            actor="schedule" if over else None,
            task_id=tasks[0].id if tasks else None,
        )
        finish = succeeded(_result(attempt))
        answer = await self.commit(unit_of(attempt.prepared, (change,), tasks, guard=task.claim, settlement=finish))
        if answer.verdict is Verdict.DONE:
            for prepared in attempt.prepared:
                prepared.committed()
            if not attempt.firings:
                await self.forget(task)
        return answer

    def _next(self, attempt: _FireAttempt, document: ScheduleDocument) -> NewTask:
        """Return the task for the next tick, or for an earlier check if ticks wait."""
        next_at = attempt.due.plan.next_at
        task = self.triggers.next_task(attempt.record.id, document, attempt.now, next_at)
        if not attempt.waiting or document.overlap == ALLOW:
            return task
        look_for = _LOOK_BACKOFF.delay_for(document.looks)
        due_for = look_for if next_at is None else max(next_at + jitter_of(attempt.record.id, document.jitter_for) - attempt.now, 0)
        return msgspec.structs.replace(task, delay=min(due_for, look_for))

    async def _put_off(self, record: Record, task: Task, error: TreadleError) -> UnitAnswer:
        """Retry later: the tick stays due, and the record and the task show the error."""
        problem: dict[str, Json] = {"code": error.code, "message": str(error)}
        document = msgspec.structs.replace(self.triggers.load(record), error=problem)
        delay = _RETRY_BACKOFF.delay_for(task.failures)
        requeue = Requeue(
            "retry",
            TaskState.PENDING,
            task.attempt + 1,
            task.failures + 1,
            0,
            delay=delay,
            error=encode(problem),
            data=encode(problem),
        )
        change = ChangeRecord(record.id, record.version, self.triggers.save(document))
        return await self.commit(Unit(task.claim, requeue, rows=(change,)))


def _result(attempt: _FireAttempt) -> dict[str, Json]:
    return {
        SCHEDULE: attempt.record.name,
        "started": [{"kind": started.kind, "id": started.id, "tick": as_text(started.tick)} for started in attempt.started],
        "skipped": attempt.skipped,
        "waiting": as_text(attempt.waiting[0] if attempt.waiting else None),
    }
