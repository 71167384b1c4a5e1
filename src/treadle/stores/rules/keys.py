"""Idempotency keys of new tasks: the tasks that a commit still has to store, and the answers to its units.

A store takes a key before it stores the key's task, in the same transaction. If the key already identifies another task,
the store inserts neither the new task nor its large values. It releases a key if its task was not stored in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from treadle.kernel.store.units import DEFERRED, Answer, PutBlob, Unit, Verdict
from treadle.model.tasks import NewTask

Key = tuple[str, str]
"""A namespace and an idempotency key in it."""

Held = tuple[str, str, str]
"""A key and the task that it identifies."""


def has_keys(units: Sequence[Unit]) -> bool:
    """Whether a new task has an idempotency key, or large values that must go if the task is refused for its unique key."""
    return any(
        task.idempotency_key is not None or (unit.rows and task.unique_key is not None) for unit in units for task in unit.tasks
    )


def key_of(task: NewTask) -> Key:
    """Return the key of a task that has one."""
    return task.lane.namespace, task.idempotency_key or ""


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

    def answer(self, asked: Sequence[Unit], answers: Sequence[Answer]) -> list[Answer]:
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
