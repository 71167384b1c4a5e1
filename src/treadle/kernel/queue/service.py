"""The queue service: every change to a task except settling a running attempt."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from treadle.api.contract import OptionField, option_fields
from treadle.api.options import SpecOptions
from treadle.api.tasks import TaskSpec
from treadle.kernel.core import Core, Service, intercepted
from treadle.kernel.operations import difference
from treadle.kernel.queue.conflicts import REJECT, REPLACE, KeyConflict, has_started, key_taken, rescheduled
from treadle.kernel.queue.decide import canceled_error, paused, refuse_of_run, requeued, resumed
from treadle.kernel.queue.engine_tasks import find_owner
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.lookups import check_task_repeat, find_id, is_same_request
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.units import (
    Discard,
    Finish,
    PutBlob,
    PutPayload,
    Redrive,
    ReleaseKey,
    Row,
    Seen,
    Settlement,
    Unit,
    UnitAnswer,
    Verdict,
    tag_rows,
)
from treadle.kernel.store.value_store import ref_json
from treadle.model.clock import instant, milliseconds
from treadle.model.errors import IdempotencyKeyReused, IllegalTransition, InvalidInput, Refused, UnreadableValue
from treadle.model.ids import Ref, parse_id
from treadle.model.lists import check_count
from treadle.model.names import ADVANCE, HANDLER, QueueKey, check_key, check_name
from treadle.model.retry import as_policy
from treadle.model.states import TASK, TaskState
from treadle.model.stored import write
from treadle.model.tags import check_tags
from treadle.model.tasks import NewTask, Task, TaskLimit
from treadle.model.values import BlobRef, Json, encode, shown

TASKS_PER_UNIT = 1000
_UNITS_IN_FLIGHT = 16
_OWNERS_TRANSITIONS = frozenset({"cancel", "requeue", "pause", "resume"})
_PRIORITIES = range(-1_000_000, 1_000_001)


Follow = Callable[[Task, Finish], Awaitable[tuple[tuple[NewTask, ...], tuple[Row, ...]]]]
"""Returns the tasks and rows to commit with the end of a run's task that an operator, not its holder, ended."""


class Enqueued(NamedTuple):
    """The task that represents the request.

    `created` is False if a live task had the unique key, or a task (possibly pruned since) had the idempotency key.
    """

    id: str
    created: bool = True


class Queue(Service):
    """Enqueue, cancel, retry, pause and resume tasks of one namespace."""

    def __init__(
        self, core: Core, *, follow: Follow | None = None, retry_of_run: Callable[[Task, str], Awaitable[object]] | None = None
    ) -> None:
        """`follow` returns the tasks and rows that are stored with the end of a task; `retry_of_run` retries the step of a run's
        task for an actor."""
        super().__init__(core)
        self._follow = follow
        self._retry_of_run = retry_of_run
        self._queues_checked: set[QueueKey] = set()

    def check(self, specs: Iterable[TaskSpec]) -> None:
        """Raise the error of the first invalid task, if any; works without an open store."""
        for spec in specs:
            self.make(spec)

    async def enqueue(self, specs: Iterable[TaskSpec]) -> list[Enqueued]:
        """Store the tasks; all are checked first, so an invalid one changes nothing.

        Up to 1000 are atomic; more are stored in several commits, in order. After an error, repeat the call only with unique or
        idempotency keys: without them it creates new tasks. Raises `IdempotencyKeyReused`, and stores none of the 1000, if a key
        identifies a task with another name, list or payload, stored earlier or given earlier in the same call.
        """
        if "enqueue" in self._core.around:
            return await intercepted(self._core.around, "enqueue", list(specs), self._enqueue)
        return await self._enqueue(specs)

    async def _enqueue(self, specs: Iterable[TaskSpec]) -> list[Enqueued]:
        now = None
        checked: list[NewTask] = []
        blobs: dict[str, tuple[Row, ...]] = {}
        keyed: dict[str, NewTask] = {}
        twins: dict[str, str] = {}
        conflict: KeyConflict | None = None
        for spec in specs:
            if spec.at is not None and now is None:
                now = await self._store.now()
            task, big = self.make(spec, now)
            checked.append(task)
            if spec.on_conflict is not None or spec.max_wait is not None:
                conflict = KeyConflict.of(task.unique_key, spec.on_conflict, task.delay, spec.max_wait)
            if task.idempotency_key is not None and (first := keyed.setdefault(task.idempotency_key, task)) is not task:
                if not is_same_request(self._value_store, first, task):
                    raise IdempotencyKeyReused(task.idempotency_key)
                twins[task.id] = first.id
            elif big:
                blobs[task.id] = big
        if conflict is not None and conflict.action != "return":
            if len(checked) > 1:
                raise InvalidInput("Enqueue a task with on_conflict in a call of its own.")
            return [await self._enqueue_unique(checked[0], blobs.get(checked[0].id, ()), conflict)]
        new = [task for task in checked if task.id not in twins] if twins else checked
        owners: dict[str, str] = {}
        failpoint("enqueue.before_commit")
        chunks = [new[start : start + TASKS_PER_UNIT] for start in range(0, len(new), TASKS_PER_UNIT)]
        answers: list[UnitAnswer] = []
        for start in range(0, len(chunks), _UNITS_IN_FLIGHT):
            part = chunks[start : start + _UNITS_IN_FLIGHT]
            sent = [self._committer.submit(_new_unit(chunk, blobs), self._patience) for chunk in part]
            answers += [await sent[0]] if len(sent) == 1 else await asyncio.gather(*sent)  # one caller is in a hurry
        for chunk, answer in zip(chunks, answers, strict=True):
            if answer.verdict is Verdict.DEFERRED:
                answer = await self._store_rest(chunk, blobs, answer)
            existing = answer.existing
            for task in chunk:
                owners[task.id] = existing.get(task.unique_key, task.id) if task.unique_key and existing else task.id
            owners |= answer.same
        failpoint("enqueue.after_commit")
        pairs = [(task.id, owners[twins.get(task.id, task.id)]) for task in checked]
        return [Enqueued(owner, owner == task_id) for task_id, owner in pairs]

    async def _enqueue_unique(self, task: NewTask, rows: tuple[Row, ...], conflict: KeyConflict) -> Enqueued:
        """Store a task, and act on the live one that has its unique key in the same commit."""
        actor = task.created_by or "engine"

        async def attempt() -> Enqueued:
            failpoint("enqueue.before_commit")
            answer = await self._committer.submit_unique(Unit(tasks=(task,), rows=rows, fresh=True, exclusive=True), self._patience)
            failpoint("enqueue.after_commit")
            if answer.verdict is Verdict.DONE:
                return Enqueued(task.id)
            if (same := answer.same.get(task.id)) is not None:
                await check_task_repeat(self._store, self._value_store, task, same)
                return Enqueued(same, False)
            holder = await self._store.tasks.find(answer.existing[task.unique_key or ""])
            if holder is None or holder.finished:
                raise Stale
            if conflict.action == REJECT or holder.queue != task.queue or holder.run_id is not None:
                raise key_taken(task.unique_key, f"the task {holder.id}" if holder.queue == task.queue else "other work")
            unit = Unit(tasks=(task,), rows=(ReleaseKey(holder.id), *rows), fresh=True, exclusive=True)
            if conflict.action == REPLACE:
                error = canceled_error(actor, f"The task {task.id} replaces it.", "replaced")
                ending = Finish("cancel", TaskState.CANCELED, error=error, error_code="replaced", actor=actor)
                unit = replace(unit, guard=Seen.of(holder), settlement=ending)
            elif not has_started(holder):
                now = await self._store.now()
                settlement = rescheduled(holder, conflict.next_delay(holder.created_at, now), now, actor)
                blobs = tuple(replace(row, root_id=holder.root_id) for row in rows if isinstance(row, PutBlob))
                unit = Unit(Seen.of(holder), settlement, rows=(PutPayload(holder.id, task.payload), *blobs))
            await self._committer.commit(unit, self._patience)
            return Enqueued(task.id) if unit.tasks else Enqueued(holder.id, False)

        return await self._committer.transact(attempt, f"enqueue {task.queue.name}")

    async def _store_rest(self, tasks: list[NewTask], blobs: Mapping[str, tuple[Row, ...]], answer: UnitAnswer) -> UnitAnswer:
        """Store the tasks of a refused unit without the repeated ones; raise the error of one that is not a repeat."""
        same: dict[str, str] = {}
        while answer.verdict is Verdict.DEFERRED:
            for task in tasks:
                if task.id in answer.same:
                    await check_task_repeat(self._store, self._value_store, task, answer.same[task.id])
            same |= answer.same
            tasks = [task for task in tasks if task.id not in same]
            if not tasks:
                return UnitAnswer(Verdict.DONE, same=same)
            answer = await self._committer.submit(_new_unit(tasks, blobs), self._patience)
        return replace(answer, same=same)

    async def cancel(self, task_id: Ref, *, actor: str = "operator", reason: str | None = None) -> Task:
        """End the task immediately, fence off its holder and notify its handler; returns the task as it was.

        Canceling a canceled task is a no-op; any other finished task raises `IllegalTransition`.
        """
        ending = Finish("cancel", TaskState.CANCELED, error=canceled_error(actor, reason), error_code="canceled", actor=actor)
        return await self._operate(task_id, "cancel", lambda _: ending, unless=TaskState.CANCELED)

    async def retry(self, task_id: Ref, *, actor: str = "operator", payload: Json = None) -> Task:
        """Make a failed, canceled or ignored task live again, with reset counters and an edited payload if given.

        The task of a run is repeated by its run, as `Runs.retry` does for its step: as another task, with all that follows.
        """
        if payload is not None:
            self.pack(payload, "")
        elif self._retry_of_run is not None:
            task = await self._get_task(await find_id(self._store, self._namespace, "task", task_id))
            if task.finished and task.run_id is not None and task.kind != ADVANCE:
                await self._retry_of_run(task, actor)
                return task
        blobs: tuple[PutBlob, ...] = ()

        def redriven(task: Task) -> Settlement:
            nonlocal blobs
            refuse_of_run(task)
            text, blobs = (None, ()) if payload is None else self.pack(payload, task.root_id)
            return self.redriven(actor, text, task.payload)

        return await self._operate(task_id, "requeue", redriven, rows=lambda: blobs)

    async def try_again(self, task_id: Ref, *, actor: str = "operator") -> Task:
        """Make a finished task live again under its own retry policy: counts as a failure, ready after the policy's delay.

        Raises `RetriesUsedUp` when the policy is exhausted; `retry` resets the count.
        """
        return await self._operate(task_id, "requeue", lambda task: requeued(task, actor, self._ids.random))

    async def end(self, task_id: Ref, finish: Finish, check: Callable[[Task], None] = lambda task: None) -> Task:
        """End a live task with the given settlement and fence off its holder; returns the task as it was.

        A task already in that state is left alone; one that ended differently raises `IllegalTransition`. `check` may raise to
        refuse the task as read.
        """

        def ended(task: Task) -> Settlement:
            check(task)
            return finish

        return await self._operate(task_id, finish.transition, ended, unless=finish.state)

    async def discard(self, task_id: Ref, *, actor: str = "operator") -> Task:
        """Cancel a failed task, removing it from the dead letters. Discarding a canceled one is a no-op."""
        discard = Discard("discard", TaskState.CANCELED, actor)
        return await self._operate(task_id, "discard", lambda _: discard, unless=TaskState.CANCELED)

    async def pause(self, task_id: Ref, *, actor: str = "operator", reason: str | None = None, interrupt: bool = False) -> Task:
        """Hold a task: no worker claims it until it is resumed.

        An attempt in progress ends normally, and if that completes the task, there is nothing to hold. With `interrupt` it is
        taken from its worker, which stops the handler at its next safe point (an `await`, or a check of `ctx.cancelled`); after the
        resume another attempt begins, with the last checkpoint.
        """
        now = await self._store.now()
        return await self._operate(task_id, "pause", lambda task: paused(task, now, actor, reason, interrupt=interrupt))

    async def resume(self, task_id: Ref, *, actor: str = "operator") -> Task:
        """Resume a paused task."""
        now = await self._store.now()
        return await self._operate(task_id, "resume", lambda task: resumed(task, now, actor))

    async def _operate(
        self,
        task_id: Ref,
        transition: str,
        decide: Callable[[Task], Settlement],
        unless: str | None = None,
        rows: Callable[[], tuple[Row, ...]] = tuple,
    ) -> Task:
        """Apply an operator's transition to a task, guarded by the version that was read; returns the task as it was before."""
        task_id = await find_id(self._store, self._namespace, "task", task_id)

        async def attempt() -> Task:
            task = await self._get_task(task_id)
            if task.state == unless:
                return task
            if transition in _OWNERS_TRANSITIONS and (owner := await find_owner(self._store, task, transition)) is not None:
                raise Refused(f"Task {task.id} is the engine's own: {owner}")
            if TASK.target(task.state, transition) is None:
                raise IllegalTransition("task", task_id, task.shown_state, transition, TASK.possible(task.state))
            seen = Seen.of(task)
            decided = decide(task)
            tasks: tuple[NewTask, ...] = ()
            more = rows()
            if isinstance(decided, Finish) and self._follow is not None:
                tasks, followed = await self._follow(task, decided)
                more = (*more, *followed)
            await self._committer.commit(Unit(seen, decided, tasks, rows=more), self._patience)
            return task

        return await self._committer.transact(attempt, f"{transition} the task {task_id}")

    def make(self, spec: TaskSpec, now: int | None = None) -> tuple[NewTask, tuple[Row, ...]]:
        """Build the stored task, its large values and its tags, for the caller to commit; `now` is needed for a task with `at`."""
        if spec.delay is not None and spec.at is not None:
            raise InvalidInput("Give either delay or at, not both.")
        delay = milliseconds(spec.delay, "delay") if spec.delay is not None else 0
        if spec.at is not None and now is not None:
            delay = max(instant(spec.at, "at") - now, 0)
        task_id = self._ids.new_id() if spec.id is None else parse_id(spec.id, "task id")
        root_id = None if spec.root_id is None else parse_id(spec.root_id, "root id")
        payload, blobs = self.pack(spec.payload, root_id or task_id)
        if spec.limit is not None and spec.limit_key is None:
            raise InvalidInput("limit needs a limit_key: it is the number of tasks with that key that may run concurrently.")
        stored = {
            field: check(value)
            for (field, check, default), value in zip(_STORED, _values_of(spec), strict=True)
            if value is not default
        }
        if spec.trace_id is None:
            stored["trace_id"] = self._core.current_trace_id()
        if self._core.current_baggage is not None:
            stored["baggage"] = self._core.baggage()
        if spec.limit_key is not None:
            stored |= _limit_keys(spec)
        elif spec.kind == HANDLER:
            stored |= limit_fields(self._core.limits_for(check_name(spec.name), spec.payload or {}))
        if spec.created_by is not None:
            stored["created_by"] = check_key(spec.created_by, "actor")
        queue = self._queue(spec.kind, spec.task_list, spec.name)
        task = NewTask(id=task_id, queue=queue, payload=payload, delay=delay, root_id=root_id, **stored)
        tags = tag_rows("task", task_id, check_tags(spec.tags)) if spec.tags else ()
        return task, (*blobs, *tags) if tags else blobs

    def _queue(self, kind: str, task_list: str, name: str) -> QueueKey:
        queue = QueueKey(self._namespace, kind, task_list, name)
        if queue not in self._queues_checked:
            check_name(name)
            check_name(task_list, "task list")
            check_name(kind, "kind")
            if len(self._queues_checked) < 10_000:
                self._queues_checked.add(queue)
        return queue

    def redriven(self, actor: str, text: str | None, before: str | None = None) -> Redrive:
        """Return the settlement that makes a finished task live again; the log has its payload before and after an edit."""
        if text is None:
            return Redrive("requeue", actor)
        old = None
        with suppress(UnreadableValue):  # it can be the reason for the edit
            old = None if before is None else {"payload": self._logged(before)}
        return Redrive("requeue", actor, text, data=encode(difference(old, {"payload": self._logged(text)})))

    def _logged(self, payload: str) -> dict[str, Json]:
        """Return a stored payload for the log, with references in place of values that are stored apart."""
        values = self._value_store.unfold(payload).items()
        return {name: ref_json(value) if isinstance(value, BlobRef) else value for name, value in values}

    def pack(self, payload: Json, root_id: str) -> tuple[str, tuple[PutBlob, ...]]:
        """Encode a payload for storage, with its large values for the tree; raises if it is invalid."""
        if payload is None:
            payload = {}
        if not isinstance(payload, dict):
            raise InvalidInput(f"A payload is a dict (a JSON object), not {type(payload).__name__}.")
        return self._value_store.pack(payload, root_id, "payload", self._core.payload_limit)


def limit_fields(limits: Mapping[str, TaskLimit]) -> dict[str, Any]:
    """Return the fields of a new task with these limit keys, each with the limit that the task sets."""
    if not limits:
        return {}
    keys, own = sorted(limits), tuple((key, limit) for key, limit in limits.items() if limit != TaskLimit())
    return {"limit_key": keys[0], "limit_keys": "\n".join(keys) if len(keys) > 1 else None, "limits": own}


def _limit_keys(spec: TaskSpec) -> dict[str, Any]:
    """Return the fields of a new task for its limit keys."""
    if isinstance(spec.limit_key, str):
        return {"limit_key": check_key(spec.limit_key, "limit key")}
    keys = {check_key(key, "limit key") for key in spec.limit_key}
    if not 0 < len(keys) <= MAX_LIMIT_KEYS:
        raise InvalidInput(f"A task has from 1 to {MAX_LIMIT_KEYS} limit keys, not {len(keys)}.")
    if spec.limit is not None and len(keys) > 1:
        raise InvalidInput(
            "limit is for a task with one limit key; set those of several with engine.declare.limit or kernel.lists."
        )
    return limit_fields(dict.fromkeys(keys, TaskLimit()))


def check_priority(priority: int) -> int:
    """Return the priority, or raise `InvalidInput`."""
    if not isinstance(priority, int) or isinstance(priority, bool) or priority not in _PRIORITIES:
        raise InvalidInput(f"priority must be a whole number from -1,000,000 to 1,000,000, not {shown(priority)}.")
    return priority


_FIELDS = {"retry": "policy", "timeout": "timeout_for", "progress_every": "progress_for", "deadline": "deadline_for"}
_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "priority": lambda priority: check_priority(priority),
    "retry": lambda retry: None if (policy := as_policy(retry)) is None else write(policy),
    "limit": partial(check_count, what="A limit"),
}
MAX_LIMIT_KEYS = 10
"""The maximum number of limit keys of one task."""

_CONVERTED = frozenset(
    {"limit_key", "delay", "at", "on_conflict", "max_wait", "task_list", "kind", "root_id", "id", "tags", "created_by"}
)
"""The options that `Queue.make` converts itself."""


def _check_of(option: OptionField) -> Callable[[Any], Any]:
    """The check of an option that returns its stored form: durations are stored in milliseconds, and texts are keys."""
    if option.kind == "duration":
        return partial(milliseconds, what=option.name, positive=True)
    return _CHECKS.get(option.name) or partial(check_key, what=option.name.replace("_", " "))


_STORED = tuple(
    (_FIELDS.get(option.name, option.name), _check_of(option), option.doc.default)
    for option in option_fields(SpecOptions)
    if option.name not in _CONVERTED
)
"""The other options: each with its field in `NewTask`, its check, and its default, which is the one of the field."""
_values_of = attrgetter(*(option.name for option in option_fields(SpecOptions) if option.name not in _CONVERTED))


def _new_unit(tasks: Sequence[NewTask], blobs: Mapping[str, tuple[Row, ...]]) -> Unit:
    return Unit(tasks=tuple(tasks), rows=tuple(blob for task in tasks for blob in blobs.get(task.id, ())), fresh=True)
