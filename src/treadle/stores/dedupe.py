"""Idempotency keys of new tasks, what both stores do alike: which tasks a call still has to store, and what it answers.

A key is taken before its task is stored, in the same transaction. What stands for another task already is not stored,
nor are its big values; a key whose task was not stored after all is given back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from treadle.kernel.store.units import Answer, PutBlob, Unit, Verdict
from treadle.model.tasks import NewTask

Key = tuple[str, str]
"""A namespace and an idempotency key in it."""

Held = tuple[str, str, str]
"""A key and the task that it stands for."""


def has_keys(units: Sequence[Unit]) -> bool:
    """Whether any new task has an idempotency key, or big values that it leaves behind if it is refused for its unique key."""
    return any(
        task.idempotency_key is not None or (unit.rows and task.unique_key is not None) for unit in units for task in unit.tasks
    )


def key_of(task: NewTask) -> Key:
    """The key of a task that has one."""
    return task.lane.namespace, task.idempotency_key or ""


def wanted_keys(units: Sequence[Unit]) -> list[tuple[Key, NewTask]]:
    """Each key once, in one order for all callers, with the first task that asks for it."""
    first: dict[Key, NewTask] = {}
    for task in _keyed(units):
        first.setdefault(key_of(task), task)
    return sorted(first.items(), key=lambda item: item[0])


def _keyed(units: Sequence[Unit]) -> Iterator[NewTask]:
    return (task for unit in units for task in unit.tasks if task.idempotency_key is not None)


@dataclass(slots=True)
class Deduped:
    """The units without what their keys stand for already, and what to do once they are done."""

    units: list[Unit]
    same: dict[str, str] = field(default_factory=dict)
    """For the id of each task that is not stored, the one that its key stands for."""
    lost: list[Held] = field(default_factory=list)
    """Keys of tasks that were not stored after all."""
    moved: list[Held] = field(default_factory=list)
    """Keys of tasks in whose place a live one with their unique key stands."""
    stand_ins: dict[str, str] = field(default_factory=dict)
    """For the ids of these tasks, the live one in their place."""
    orphans: list[str] = field(default_factory=list)
    """Roots of big values whose task was refused for its unique key."""

    def answer(self, asked: Sequence[Unit], answers: Sequence[Answer]) -> list[Answer]:
        """The answers to the units as they were asked; notes which keys are lost or moved."""
        for unit, answer in zip(asked, answers, strict=True):
            for task in unit.tasks:
                if task.id not in self.same:
                    self._note(task, unit, answer)
        # A key that another task of this call has taken stands for that one, or for what was live in its place.
        standing = {task_id: self.stand_ins.get(holder, holder) for task_id, holder in self.same.items()}
        done = []
        for unit, answer in zip(asked, answers, strict=True):
            same = {task.id: standing[task.id] for task in unit.tasks if task.id in standing}
            done.append(msgspec.structs.replace(answer, same=same) if same else answer)
        return done

    def _note(self, task: NewTask, unit: Unit, answer: Answer) -> None:
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
    """Take out the tasks whose keys stand for others, and their big values."""
    deduped = Deduped([])
    for unit in units:
        same = {
            task.id: holders[key_of(task)]
            for task in unit.tasks
            if task.idempotency_key is not None and holders[key_of(task)] != task.id
        }
        if same:
            deduped.same |= same
            tasks = tuple(task for task in unit.tasks if task.id not in same)
            rows = tuple(row for row in unit.rows if not (isinstance(row, PutBlob) and row.root_id in same))
            unit = msgspec.structs.replace(unit, tasks=tasks, rows=rows)
        deduped.units.append(unit)
    return deduped
