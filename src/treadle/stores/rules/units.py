"""The rules of commits, without SQL: guards, settlements, new tasks and their idempotency keys.

`decide` decides which units of a commit may be applied, one after the other, from a snapshot of the rows that they name. A
store takes an idempotency key before it stores the key's task, in the same transaction, and releases it if the task was not
stored in the end. A checkpoint is a unit that stores steps under a claim and changes nothing else: there is a short path for these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple, assert_never

import msgspec

from treadle.kernel.store.records import ChangeRecord, PutMessage, PutRecord
from treadle.kernel.store.units import (
    CLAIM_LOST,
    DEFERRED,
    DONE,
    Discard,
    Finish,
    PutBlob,
    PutRun,
    PutSteps,
    Redrive,
    ReleaseKey,
    Requeue,
    RunTransition,
    Seen,
    Unit,
    UnitAnswer,
    Verdict,
)
from treadle.model.errors import BacklogFull, InvalidInput, ListDraining
from treadle.model.names import QueueKey
from treadle.model.records import Record
from treadle.model.states import RUN, BlockReason
from treadle.model.tasks import Claim, NewTask, TaskLimit
from treadle.stores.statements import COLUMN_SETS

Key = tuple[str, str]
"""A namespace, and a limit key or an idempotency key in it."""

TaskKey = tuple[str, bool]
"""The id of a guarded task, and whether the guard is for a finished task."""

Name = tuple[str, str, str | None]
"""The namespace, entity and name of a record."""


_OF_FINISHED = frozenset({Redrive, Discard})
_RARE = frozenset({PutRun, RunTransition, PutRecord, ChangeRecord})
"""Rows that change values with which the guards of later units are compared."""


class GuardedTask(NamedTuple):
    """The stored values of a task that a guard names."""

    id: str
    version: int
    claim_version: int
    owner_id: str | None
    state: str
    queue_id: int
    blocked_by: int = 0
    namespace: str = ""
    limit_key: str | None = None
    asleep: bool = False

    @property
    def waits(self) -> bool:
        """Whether a claim, or an admission under a limit, would have taken the task, and skips it while it is locked."""
        return self.owner_id is None and not self.asleep and self.blocked_by in (0, BlockReason.OVER_LIMIT)


def has_rows(unit: Unit) -> bool:
    """Whether the unit writes more than one task's settlement and new tasks, or writes these only together."""
    return bool(unit.rows or unit.also) or unit.run is not None or unit.exclusive


def is_plain(unit: Unit) -> bool:
    """Whether the unit is of the most frequent kind: settle a task, and insert tasks without keys, limits or owners."""
    return not has_rows(unit) and not any(
        task.idempotency_key or task.limit_key or task.fairness_key or task.preclaimed for task in unit.tasks
    )


def has_rare_rows(unit: Unit) -> bool:
    """Whether the unit has new or moved runs or records."""
    return any(type(row) in _RARE for row in unit.rows)


def new_runs(unit: Unit) -> list[PutRun]:
    """Return the new runs of the unit."""
    return [row for row in unit.rows if isinstance(row, PutRun)]


def new_records(units: Iterable[Unit]) -> list[Record]:
    """Return the new records of the units."""
    return [row.record for unit in units for row in unit.rows if isinstance(row, PutRecord)]


def changed_records(units: Iterable[Unit]) -> list[ChangeRecord]:
    """Return the changes of records in the units."""
    return [row for unit in units for row in unit.rows if isinstance(row, ChangeRecord)]


def name_of(record: Record) -> Name:
    """Return the key under which at most one live record exists, if the record has a name."""
    return record.namespace, record.entity, record.name


def receiving_runs(units: Iterable[Unit]) -> set[str]:
    """Return the runs to which units send messages."""
    return {row.message.run_id for unit in units for row in unit.rows if isinstance(row, PutMessage)}


def released_tasks(units: Iterable[Unit]) -> set[str]:
    """Return the tasks whose unique keys the units release."""
    return {row.task_id for unit in units for row in unit.rows if isinstance(row, ReleaseKey)}


def exclusive_keys(units: Iterable[Unit]) -> set[Key]:
    """Return the unique keys of new tasks of exclusive units."""
    return {unique_key_of(task) for unit in units if unit.exclusive for task in unit.tasks if task.unique_key}


def unique_key_of(task: NewTask) -> Key:
    """Return the namespace and the unique key of a task."""
    return task.queue.namespace, task.unique_key or ""


def task_key(unit: Unit) -> TaskKey:
    """Return the key of the task that guards the unit."""
    finished = type(unit.settlement) in _OF_FINISHED or only_sees(unit)
    return (unit.guard.task_id if unit.guard else "", finished)


def task_keys(units: Iterable[Unit]) -> set[TaskKey]:
    """Return the keys of all tasks that guard the units."""
    keys = {task_key(unit) for unit in units if unit.guard}
    keys.update(task_key(part) for unit in units if unit.also for part in split(unit)[1:])
    return keys


def only_sees(unit: Unit) -> bool:
    """Whether the unit is guarded by the end of a task, which it does not change."""
    return unit.settlement is None and isinstance(unit.guard, Seen)


def kinds_of(units: Iterable[Unit]) -> set[type]:
    """Return the kinds of rows in the units."""
    return {type(row) for unit in units for row in unit.rows}


def split(unit: Unit) -> list[Unit]:
    """Split the unit into parts that settle one task each."""
    return [unit, *(Unit(guard, settlement) for guard, settlement in unit.also)]


class Snapshot(msgspec.Struct):
    """The rows that the guards of a commit name, as they are after the units decided so far."""

    tasks: dict[TaskKey, GuardedTask] = msgspec.field(default_factory=dict)
    runs: dict[str, int] = msgspec.field(default_factory=dict)
    """Versions of runs."""
    ended: set[str] = msgspec.field(default_factory=set)
    """Runs that have ended."""
    run_keys: dict[tuple[str, str], str] = msgspec.field(default_factory=dict)
    """Runs by namespace and idempotency key."""
    records: dict[str, int] = msgspec.field(default_factory=dict)
    """Versions of records."""
    names: dict[Name, str] = msgspec.field(default_factory=dict)
    """Live records by name."""
    unique_keys: dict[Key, str] = msgspec.field(default_factory=dict)
    """Live tasks by namespace and unique key, for exclusive units."""
    refused: dict[int, UnitAnswer] = msgspec.field(default_factory=dict)
    """Answers to units, by position, with runs or records that turned out to exist when the store inserted them."""

    def copy(self) -> Snapshot:
        """Return a snapshot to decide on, so that this one can be used again."""
        return Snapshot(
            dict(self.tasks),
            dict(self.runs),
            set(self.ended),
            dict(self.run_keys),
            dict(self.records),
            dict(self.names),
            dict(self.unique_keys),
            self.refused,
        )

    def refusal(self, position: int, unit: Unit, parts: Sequence[Unit]) -> UnitAnswer | None:
        """Return the answer to a unit that must not be applied, or None."""
        if position in self.refused:
            return self.refused[position]
        if unit.run is not None:
            version = self.runs.get(unit.run.run_id)
            if version is None or (unit.run.version is not None and version != unit.run.version):
                return DEFERRED
            if unit.run.live and unit.run.run_id in self.ended:
                return DEFERRED
        if lost := tuple(part.guard.task_id for part in parts if part.guard and not self._holds(part)):
            return UnitAnswer(Verdict.CLAIM_LOST, lost=lost) if has_rows(unit) else CLAIM_LOST
        if unit.exclusive and (existing := self._find_rivals(unit)):
            return UnitAnswer(Verdict.DEFERRED, existing=existing)
        if not has_rare_rows(unit):
            return None
        for put in new_runs(unit):
            if put.run.id in self.runs:
                return DONE
            key = put.run.idempotency_key
            if key is not None and (holder := self.run_keys.get((put.run.namespace, key))) is not None:
                return UnitAnswer(Verdict.DONE, existing={key: holder})
        return self._refuse_records(unit)

    def _holds(self, part: Unit) -> bool:
        row = self.tasks.get(task_key(part))
        return row is not None and part.guard is not None and matches(part.guard, row)

    def _find_rivals(self, unit: Unit) -> dict[str, str]:
        """Return the other live tasks that have unique keys of the unit's tasks and keep them."""
        released = released_tasks([unit])
        holders = {task.unique_key: self.unique_keys.get(unique_key_of(task), task.id) for task in unit.tasks if task.unique_key}
        own = {task.id for task in unit.tasks}
        return {key: holder for key, holder in holders.items() if holder not in own and holder not in released}

    def _refuse_records(self, unit: Unit) -> UnitAnswer | None:
        new = new_records([unit])
        changes = changed_records([unit])
        if any(record.id in self.records for record in new):
            return DONE
        names = [name_of(record) for record in new if record.name is not None]
        if len(set(names)) < len(names):
            raise InvalidInput(f"A unit cannot create two records with the same name, but these are given: {names}.")
        versions: dict[str, int] = {record.id: 0 for record in new}
        for change in changes:
            if versions.get(change.record_id, self.records.get(change.record_id)) != change.version:
                return DEFERRED
            versions[change.record_id] = change.version + 1
        ended = {change.record_id for change in changes if change.ended}
        for record in new:
            holder = self.names.get(name_of(record))
            if record.name is not None and holder is not None and holder not in ended:
                return UnitAnswer(Verdict.DONE, existing={record.name: holder})
        return None

    def advance(self, unit: Unit, parts: Sequence[Unit]) -> None:
        """Apply the unit to the snapshot: its tasks are settled, and its run and records have their next version."""
        for part in parts:
            if part.guard and part.settlement:
                self.tasks.pop(task_key(part), None)
        if unit.run is not None:
            self.runs[unit.run.run_id] += 1
        if unit.exclusive:
            self.unique_keys.update((unique_key_of(task), task.id) for task in unit.tasks if task.unique_key)
        if not has_rare_rows(unit):
            return
        for row in unit.rows:
            if isinstance(row, RunTransition):
                (self.ended.add if row.to_state in RUN.final else self.ended.discard)(row.run_id)
        for put in new_runs(unit):
            self.runs[put.run.id] = put.run.version
            if put.run.idempotency_key is not None:
                self.run_keys[put.run.namespace, put.run.idempotency_key] = put.run.id
        for record in new_records([unit]):
            self.records[record.id] = 0
            if record.name is not None:
                self.names[name_of(record)] = record.id
        for change in changed_records([unit]):
            self.records[change.record_id] = change.version + 1
            if change.ended:
                self.names = {name: holder for name, holder in self.names.items() if holder != change.record_id}


def matches(guard: Claim | Seen, row: GuardedTask) -> bool:
    """Whether the stored task is as the guard requires."""
    match guard:
        case Claim():
            return row.claim_version == guard.version and row.owner_id == guard.owner_id
        case Seen():
            return row.claim_version == guard.claim_version and row.version == guard.version
        case _:
            assert_never(guard)


class UnitPart(NamedTuple):
    """A part of a unit that may be applied: the position of the unit, and the row that the part's guard matched."""

    position: int
    unit: Unit
    row: GuardedTask | None


class CommitPlan(msgspec.Struct):
    """The units to apply, their parts, and the answers to the other units."""

    applied: dict[int, Unit]
    parts: list[UnitPart]
    rows: dict[int, GuardedTask]
    """The row that the guard of each applied unit matched, by position."""
    answers: list[UnitAnswer]

    def repeats(self, units: Sequence[Unit]) -> list[SettledClaim]:
        """Return the settlements of refused units that may have been committed before."""
        return [
            settled
            for position, unit in enumerate(units)
            if position not in self.applied and self.answers[position].verdict is not Verdict.DONE
            for settled in settlements_of(position, unit)
        ]

    def recognise(self, asked: Sequence[SettledClaim], settled: set[int]) -> None:
        """Answer `done` to each refused unit if all its settlements (by index in `asked`) were committed before."""
        for position in {settlement.position for settlement in asked}:
            if all(index in settled for index, settlement in enumerate(asked) if settlement.position == position):
                self.answers[position] = DONE

    def skipped(self, locked: Mapping[TaskKey, GuardedTask]) -> list[GuardedTask]:
        """Return the locked tasks that concurrent claims and admissions skipped and that still wait for one.

        No notification reports them, because no unit made them ready: the transaction that held them has to.
        """
        settled = {
            part.row.id for part in self.parts if part.row is not None and isinstance(part.unit.settlement, Finish | Requeue)
        }
        return [row for (task_id, ended), row in locked.items() if not ended and row.waits and task_id not in settled]


class SettledClaim(NamedTuple):
    """A settlement of a claim by a unit: if the log has it, the unit was committed before."""

    position: int
    claim: Claim
    transition: str
    actor: str


def settlements_of(position: int, unit: Unit) -> list[SettledClaim]:
    """Return the settlements of the unit that leave a trace: the ends and logged requeues of its claims."""
    return [
        SettledClaim(position, part.guard, part.settlement.transition, part.settlement.actor or part.guard.owner_id)
        for part in split(unit)
        if isinstance(part.guard, Claim) and isinstance(part.settlement, Finish | Requeue)
    ]


End = tuple[Any, ...]
"""The end of a task if its claim is unchanged: a row of `finish`. A plain tuple is built in a quarter of the time of a named one,
once per task."""


def end_of(task_id: str, claim_version: int, owner_id: str | None, actor: str | None, what: Finish) -> End:
    """Return the end of a task as a row of `finish`."""
    start = task_id, claim_version, owner_id, actor
    return (*start, what.transition, what.state, what.result, what.error, what.error_code, what.fingerprint)


def decide(units: Sequence[Unit], snapshot: Snapshot) -> CommitPlan:
    """Decide the units in order, each as if the applied units before it had been committed."""
    decision = CommitPlan({}, [], {}, [CLAIM_LOST] * len(units))
    for position, unit in enumerate(units):
        parts = split(unit) if unit.also else [unit]
        refusal = snapshot.refusal(position, unit, parts)
        if refusal is not None:
            decision.answers[position] = refusal
            continue
        decision.applied[position] = unit
        if unit.guard is not None:
            decision.rows[position] = snapshot.tasks[task_key(unit)]
        decision.parts += [UnitPart(position, part, snapshot.tasks.get(task_key(part)) if part.guard else None) for part in parts]
        snapshot.advance(unit, parts)
    return decision


def with_queues(answer: UnitAnswer, queue_ids: set[int]) -> UnitAnswer:
    """Add queues in which tasks became ready to the answer."""
    return msgspec.structs.replace(answer, queue_ids=tuple(sorted(queue_ids.union(answer.queue_ids)))) if queue_ids else answer


def with_admitted(answers: list[UnitAnswer], queue_ids: set[int]) -> list[UnitAnswer]:
    """Add the queues of admitted tasks to the first applied unit, or the first: a caller that reads one answer reads all."""
    if queue_ids:
        first = next((position for position, answer in enumerate(answers) if answer.verdict is Verdict.DONE), 0)
        answers[first] = with_queues(answers[first], queue_ids)
    return answers


RUN_PAUSED = UnitAnswer(Verdict.DONE, run_paused=True)
"""Done, but the run was paused meanwhile."""


def kept_answer(blocked_by: int) -> UnitAnswer:
    """Return the answer to a unit that keeps its claim, from the block reasons of its task."""
    return RUN_PAUSED if blocked_by & BlockReason.RUN_PAUSED else DONE


def is_checkpoint(unit: Unit) -> bool:
    """Whether the unit has a claim that stays, and steps, and nothing else."""
    return (
        type(unit.guard) is Claim
        and unit.settlement is None
        and unit.run is None
        and bool(unit.rows)
        and not unit.tasks
        and not unit.also
        and all(type(row) is PutSteps and row.steps for row in unit.rows)
    )


Preclaim = tuple[str, str, int]
"""The id of a new task, its owner, and the milliseconds of its lease."""

_REST = attrgetter(*(column.name for column in COLUMN_SETS["given"][3:]))
"""The values of a new task after its id and queue, in the order of the set `given`."""

_HOLD = [column.name for column in COLUMN_SETS["given"]].index("blocked_by")


def values_of(task: NewTask, queue_id: int) -> list[Any]:
    """Return the values of a new task in the order of the set `given`; a task with a limit key waits to be admitted."""
    values = [task.id, queue_id, task.queue.namespace, *_REST(task)]
    if task.limit_key is not None:
        values[_HOLD] |= 1
    return values


class GuardedQueue(NamedTuple):
    """A queue with settings that an insert must obey."""

    queue_id: int
    accepting: bool
    backlog_limit: int | None
    limit_key: str | None


Entered = tuple[GuardedQueue, QueueKey, bool]
"""A guarded queue that an entrance has put a task into, its names, and whether the task is ready."""


def with_queue_key(task: NewTask, queue: GuardedQueue | None) -> NewTask:
    """Return the task with the limit key of its queue, if it has none of its own."""
    if queue is None or queue.limit_key is None or task.limit_key is not None:
        return task
    return msgspec.structs.replace(task, limit_key=queue.limit_key)


def is_entrance(unit: Unit) -> bool:
    """Whether a queue may refuse the unit's tasks: not those of a unit with a guard, which settles or advances something."""
    return unit.guard is None and unit.run is None


def is_ready(task: NewTask) -> bool:
    """Whether a worker may claim the task as soon as it is stored."""
    return task.delay <= 0 and not task.blocked_by and task.limit_key is None


def capped_queues(entered: Iterable[Entered]) -> list[tuple[int, int, QueueKey]]:
    """Return the queues with a cap on ready tasks, and their caps; raise `ListDraining` for a queue that is draining."""
    capped = []
    for guarded, queue, ready in sorted(set(entered)):
        if not guarded.accepting:
            raise ListDraining(queue.task_list)
        if ready and guarded.backlog_limit is not None:
            capped.append((guarded.queue_id, guarded.backlog_limit, queue))
    return capped


def check_backlog(queue: QueueKey, cap: int, count: int) -> None:
    """Raise `BacklogFull` if the queue has more ready tasks than its cap allows."""
    if count > cap:
        raise BacklogFull(queue.task_list, queue.name, cap)


@dataclass(slots=True)
class Inserted:
    """`ids` are new; `holders` maps the id of each task with a taken unique key to the live task that has the key."""

    tasks: Sequence[NewTask] = ()
    """The tasks to insert, with the limit keys of their queues."""
    ids: set[str] = field(default_factory=set)
    holders: dict[str, str] = field(default_factory=dict)
    shut: bool = False
    """Nothing was inserted, because one of the queues is guarded and must be checked first."""

    @property
    def keys(self) -> set[Key]:
        """The limit keys of new tasks, which wait to be admitted."""
        return {
            (task.queue.namespace, task.limit_keys or task.limit_key)
            for task in self.tasks
            if task.limit_key and task.id in self.ids
        }

    @property
    def limits(self) -> dict[Key, TaskLimit]:
        """The limits that callers gave for keys of new tasks."""
        return {
            (task.queue.namespace, key): limit
            for task in self.tasks
            if task.limit_key and task.id in self.ids
            for key, limit in (*task.limits, (task.limit_key, TaskLimit(task.limit)))
            if limit != TaskLimit()
        }


def note_inserted(
    answer: UnitAnswer, tasks: Iterable[NewTask], inserted: Inserted, queue_ids: Mapping[QueueKey, int]
) -> UnitAnswer:
    """Add to the answer the queues in which new tasks are ready, and the live tasks that have the unique keys of refused ones."""
    ready, existing = set(answer.queue_ids), {}
    for task in tasks:
        if task.id in inserted.ids:
            if is_ready(task):
                ready.add(queue_ids[task.queue])
        elif task.unique_key is not None and task.id in inserted.holders:
            existing[task.unique_key] = inserted.holders[task.id]
    if not existing and len(ready) == len(answer.queue_ids):
        return answer
    return msgspec.structs.replace(answer, existing=existing, queue_ids=tuple(sorted(ready)))


def has_preclaims(units: Sequence[Unit]) -> bool:
    """Whether a task of the units is to be claimed for its creator."""
    return any(task.preclaimed is not None for unit in units for task in unit.tasks)


def list_preclaims(units: Sequence[Unit], answers: Sequence[UnitAnswer]) -> list[Preclaim]:
    """Return the tasks of applied units that are to be claimed for their creators."""
    return [
        (task.id, task.preclaimed.owner_id, task.preclaimed.lease_for)
        for unit, answer in zip(units, answers, strict=True)
        if answer.verdict is Verdict.DONE
        for task in unit.tasks
        if task.preclaimed is not None
    ]


Held = tuple[str, str, str]
"""A key and the task that it identifies."""


def has_keys(units: Sequence[Unit]) -> bool:
    """Whether a new task has an idempotency key, or large values that must go if the task is refused for its unique key."""
    return any(
        task.idempotency_key is not None or (unit.rows and task.unique_key is not None) for unit in units for task in unit.tasks
    )


def key_of(task: NewTask) -> Key:
    """Return the key of a task that has one."""
    return task.queue.namespace, task.idempotency_key or ""


def wanted_keys(units: Sequence[Unit]) -> list[tuple[Key, NewTask]]:
    """Return each key once, in one order for all callers, with the first task that has it."""
    first: dict[Key, NewTask] = {}
    for task in _keyed(units):
        first.setdefault(key_of(task), task)
    return sorted(first.items(), key=lambda item: item[0])


def _keyed(units: Sequence[Unit]) -> Iterator[NewTask]:
    return (task for unit in units for task in unit.tasks if task.idempotency_key is not None)


class Deduped(msgspec.Struct):
    """The units without deduplicated tasks, and the changes of keys to make after the commit."""

    units: list[Unit]
    same: dict[str, str] = msgspec.field(default_factory=dict)
    """The task that the key identifies, by the id of each task that is not stored."""
    lost: list[Held] = msgspec.field(default_factory=list)
    """Keys of tasks that were not stored after all."""
    moved: list[Held] = msgspec.field(default_factory=list)
    """Keys of tasks that were refused because a live task has their unique key."""
    stand_ins: dict[str, str] = msgspec.field(default_factory=dict)
    """The live task, by the id of each task that was refused for its unique key."""
    orphans: list[str] = msgspec.field(default_factory=list)
    """Roots of large values of tasks that were refused for their unique key."""
    refused: set[int] = msgspec.field(default_factory=set)
    """Positions of `fresh` units with a key that identifies another task."""

    def answer(self, asked: Sequence[Unit], answers: Sequence[UnitAnswer]) -> list[UnitAnswer]:
        """Return the answers to the original units, and note the keys that are lost or moved."""
        answers = [DEFERRED if position in self.refused else answer for position, answer in enumerate(answers)]
        for unit, answer in zip(asked, answers, strict=True):
            for task in unit.tasks:
                if task.id not in self.same:
                    self._note(task, unit, answer)
        # A key that another task of this call has taken identifies that task, or the live task that has its unique key.
        standing = {task_id: self.stand_ins.get(holder, holder) for task_id, holder in self.same.items()}
        lost = {task_id for *_, task_id in self.lost}
        done = []
        for unit, answer in zip(asked, answers, strict=True):
            same = {task.id: standing[task.id] for task in unit.tasks if task.id in standing}
            if unit.fresh:  # a key of a task that was not stored is free again
                same = {task_id: holder for task_id, holder in same.items() if holder not in lost}
            done.append(msgspec.structs.replace(answer, same=same) if same else answer)
        return done

    def _note(self, task: NewTask, unit: Unit, answer: UnitAnswer) -> None:
        holder = answer.existing.get(task.unique_key, task.id) if task.unique_key is not None else task.id
        if answer.verdict is not Verdict.DONE:
            if task.idempotency_key is not None:
                self.lost.append((*key_of(task), task.id))
        elif holder != task.id:
            if task.idempotency_key is not None:
                self.moved.append((*key_of(task), holder))
                self.stand_ins[task.id] = holder
            if any(isinstance(row, PutBlob) and row.root_id == task.id for row in unit.rows):
                self.orphans.append(task.id)


def leave_out(units: Sequence[Unit], holders: Mapping[Key, str]) -> Deduped:
    """Remove tasks with keys that identify other tasks, and their large values."""
    deduped = Deduped([])
    for position, unit in enumerate(units):
        same = {
            task.id: holders[key_of(task)]
            for task in unit.tasks
            if task.idempotency_key is not None and holders[key_of(task)] != task.id
        }
        if same:
            deduped.same |= same
            if unit.fresh:
                deduped.refused.add(position)
                deduped.units.append(Unit())
                continue
            tasks = tuple(task for task in unit.tasks if task.id not in same)
            rows = tuple(row for row in unit.rows if not (isinstance(row, PutBlob) and row.root_id in same))
            unit = msgspec.structs.replace(unit, tasks=tasks, rows=rows)
        deduped.units.append(unit)
    return deduped
