"""The driver of a run: executes or replays the function's code, and requeues or ends its task when none of it executes.

    FunctionExecution   the claim, the clock, the number of active branches
    Journal             recorded steps by place; the place of the next step
    Branches            the function itself and the arguments of its gathers, as asyncio tasks
    Inbox               messages and timers, and the waits that they end
    Recorder            commits while the task stays claimed
    SemaphoreSlots      the limit key under which a step may start
    Streams             entries for readers

A branch that waits durably is suspended in a future, so the driver knows when no code executes. At the end of that turn of the
event loop, one unit commits everything that was decided and requeues the task. While some code executes, the decisions of other
branches are committed as checkpoints. The claim of the run's task fences every unit; the version of the run up to which
messages were read guards the requeue, so that no message is missed.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

import msgspec

from treadle.kernel.functions.decide import REPLAYED, CancelRequest, closing_tasks, new_run, noted, read_note, run_message
from treadle.kernel.functions.notes import note_waits
from treadle.kernel.functions.steps import (
    ANSWER,
    VALUE_LIMIT,
    Recorded,
    answer_id,
    folded,
)
from treadle.kernel.queue.decide import canceled_error, failure
from treadle.kernel.queue.engine_tasks import deadline_tasks
from treadle.kernel.store.lookups import continued_id, kept_tags
from treadle.kernel.store.records import Await, PutMessage, TakeMessages
from treadle.kernel.store.units import (
    CancelRunTasks,
    Finish,
    PutSteps,
    PutTags,
    Requeue,
    Row,
    RunGuard,
    RunTransition,
    Unit,
    Verdict,
)
from treadle.model.errors import (
    Canceled,
    InvalidInput,
    InvalidPayload,
    NonRetryable,
    TreadleError,
    UpdateUnanswered,
)
from treadle.model.names import is_run_key
from treadle.model.outcomes import TYPE_CHANGED, Problem
from treadle.model.records import Message
from treadle.model.retry import Backoff
from treadle.model.states import RunState, StepState, TaskState
from treadle.model.tasks import NewTask, Task
from treadle.model.values import Json, decode, encode, error_code, error_text, type_name
from treadle.workers.call import outcome_of_error
from treadle.workers.context import Context, holder
from treadle.workers.functions.execution import FunctionBranch, FunctionExecution, PendingUnit, Runtime, diverged
from treadle.workers.functions.inbox import Inbox, SemaphoreSlots
from treadle.workers.functions.journal import Journal, blamed_steps
from treadle.workers.functions.recorder import Branches, FunctionStreams, Recorder
from treadle.workers.functions.registry import RegisteredFunction

SAFETY_NET_FOR = 86_400_000
"""Milliseconds after which a function that waits only for messages is woken anyway."""

_WAIT = "wait"

_WRAPPER = len('{"result":}')
_STUCK_BACKOFF = Backoff(1000, 300_000)

_OWN = str(Path(__file__).parents[2])
_NAMED = 3
"""Forgotten operations that an error names."""

T = TypeVar("T")

EndedUnit = tuple[Finish, tuple[NewTask, ...], tuple[Row, ...]]
"""The end of the task, new tasks, and rows."""

SetSettling = Callable[[bool], None]
"""Notes whether the last unit of a claim is being committed, which must not be interrupted."""


class Driver:
    """Drives one run in this process, from its first claim here until it ends, is evicted or is taken over."""

    def __init__(self, runtime: Runtime, function: RegisteredFunction, task: Task) -> None:
        self.execution = FunctionExecution(runtime, function, task)
        self.journal = Journal(self.execution)
        self.branches = Branches(self.execution, self.journal)
        self.inbox = Inbox(self.execution, self.journal)
        self.recorder = Recorder(self.execution, self.journal, self.inbox, self.branches)
        self.semaphore_slots = SemaphoreSlots(self.execution)
        self.streams = FunctionStreams(self.execution, self.journal)
        self.execution.on_turn = self._turn
        self.successor: dict[str, Any] | None = None
        """The payload of the run that continues this one, once the function has asked for it."""
        self.children: list[Recorded] = []
        """The steps that started child runs with a policy."""
        self.updates: dict[str, str] = {}
        """Names of the updates that the function has received and not answered, by id."""
        self._unawaited: dict[int, tuple[object, str, CodeType, int]] = {}
        """The operations that the code has created and not awaited, each with its kind, and code and position of its creation; a
        coroutine stays until the next one is created."""
        self._started = False
        self._ended: tuple[Any, BaseException | None] | None = None

    async def execute(
        self, task: Task, context: Context, start: Callable[[Any], Coroutine[Any, Any, Any]], set_settling: SetSettling
    ) -> Requeue | Finish | None:
        """Continue the run until it is suspended or ends; None if the claim was lost. A canceled driver is closed.

        `start` calls the function with its payload.
        """
        execution = self.execution
        execution.claimed(task, context)
        try:
            if self._started:
                await self._continue()
            else:
                self.semaphore_slots.claimed()
                await self._begin(start)
            while True:
                await execution.rest()
                if (settled := await self._settle(set_settling)) is not None:
                    if execution.resting:
                        self.close()
                    return settled
                if execution.lost:
                    self.close()
                    return None
                if context.cancelled:
                    raise asyncio.CancelledError
        except BaseException as error:
            self.close()
            current = asyncio.current_task()
            if execution.lost and isinstance(error, asyncio.CancelledError) and current is not None and not current.cancelling():
                return None
            raise

    def close(self) -> None:
        """Stop all code of the run here, and refuse its further operations. Nothing durable changes."""
        self.execution.closed = True
        self.branches.close()
        self.inbox.close()
        self.recorder.close()
        self.streams.close()

    # operations that nobody awaits

    def note_created(self, operation: object, kind: str, depth: int = 4) -> None:
        """Note an operation, which the code must await before it ends; its caller is at least that many frames away."""
        frame = sys._getframe(depth)
        while frame.f_code.co_filename.startswith(_OWN) and frame.f_back is not None:
            frame = frame.f_back
        self._unawaited[id(operation)] = (operation, kind, frame.f_code, frame.f_lasti)  # its line is slow to find

    def note_begun(self, operation: object) -> None:
        """Note that the operation is awaited, or part of another one."""
        self._unawaited.pop(id(operation), None)

    def created(self, code: Coroutine[Any, Any, T], name: str, parts: Iterable[object] = ()) -> Coroutine[Any, Any, T]:
        """Return the coroutine of an operation after noting it in place of the operations that are its parts."""
        for part in parts:
            self.note_begun(part)
        self._unawaited = {key: noted for key, noted in self._unawaited.items() if _is_unawaited(noted[0])}
        self.note_created(code, name, depth=3)
        return code

    def find_forgotten(self) -> InvalidInput | None:
        """Return the error of code that ends although it has not awaited all its operations."""
        forgotten = [noted for noted in self._unawaited.values() if _is_unawaited(noted[0])]
        if not forgotten:
            return None
        for operation, *_ in forgotten:
            if inspect.iscoroutine(operation):
                operation.close()  # Python need not warn of it, too
        places = [_place(*noted) for noted in forgotten[:_NAMED]]
        more = f" and {len(forgotten) - _NAMED} more" if len(forgotten) > _NAMED else ""
        return InvalidInput(
            f"The function {self.execution.function.name} ended without awaiting {', '.join(places)}{more}, so it did not happen. "
            "Write `await` before each operation of ctx, or pass it to `ctx.gather`.",
            code="never_awaited",
        )

    # code

    async def _begin(self, start: Callable[[Any], Coroutine[Any, Any, Any]]) -> None:
        task = self.execution.task
        if task.claim_version > 1 or task.scope is not None:
            run = await self.inbox.read_run()
            await self.journal.load(run.steps)
            await self.inbox.receive(run)
        payload = await self.execution.runtime.value_store.unpack(task.payload)
        holder.set(self.execution)
        self.branches.start(FunctionBranch(), self._run(start, payload))
        self._started = True

    async def _run(self, start: Callable[[Any], Coroutine[Any, Any, Any]], payload: Any) -> None:
        try:
            self._ended = (await start(payload), self.execution.misuse or self.find_forgotten())
        except BaseException as error:
            if self.branches.stops(error):
                raise
            self._ended = (None, self.execution.misuse or error)
        self.branches.ended()

    async def _continue(self) -> None:
        """Deliver new messages to the suspended code, and let it run."""
        execution = self.execution
        execution.run_paused = False
        await self.inbox.refresh_if_awaited()
        if not execution.run_paused:
            execution.resume_paused()
        self.semaphore_slots.claimed()
        execution.schedule()

    def _turn(self) -> None:
        self.recorder.flush()
        self.inbox.poll()

    # settlement

    async def _settle(self, set_settling: SetSettling) -> Requeue | Finish | None:
        """Requeue or end the task, as no code executes; None if some code can continue after all."""
        execution, inbox = self.execution, self.inbox
        await inbox.stop_polling()
        await self.recorder.flushed()
        await self.streams.settle()
        if execution.lost or (execution.active and execution.problem is None):
            return None
        if execution.problem is None and (self._ended is not None or self.successor is not None):
            if (unreached := self.journal.history.unreached()) is not None:
                execution.problem = _ended_early(unreached, None if self._ended is None else self._ended[1])
            elif not execution.run_paused:
                return await self._end(set_settling)
        if execution.problem is not None:
            self.close()
            requeue = stuck_requeue(execution.task, execution.problem, execution.function.cleanup_for, execution.cancel)
            return await self._requeue(set_settling, requeue, PendingUnit())
        if execution.run_paused:  # its task is ready as soon as the run is resumed; until then it starts no children
            return await self._requeue(set_settling, self._waiting(None), self.recorder.collect(starts=False))
        await inbox.refresh_if_due()
        if execution.active or inbox.fire_due():
            return None
        need = inbox.need()
        if self.semaphore_slots.wanted is not None:
            return await self._requeue(set_settling, self._waiting(None), self.recorder.collect(), need.messages)
        delay = min(max(need.wake_at - execution.now(), 1), SAFETY_NET_FOR)
        return await self._requeue(set_settling, self._waiting(delay), self.recorder.collect(), need.messages)

    def _waiting(self, delay: int | None) -> Requeue:
        task = self.execution.task
        activity, note = note_waits(self.inbox.waiting())
        note = noted(note, self.execution.function.cleanup_for, self.execution.cancel)
        return Requeue(
            _WAIT,
            TaskState.PENDING,
            task.attempt,
            task.failures,
            0,
            delay=delay,
            checkpoint=note,
            activity=activity,
            keeps_slot=task.limit_key is not None and is_run_key(task.limit_key),
        )

    async def _requeue(
        self, set_settling: SetSettling, requeue: Requeue, pending: PendingUnit, messages: int = 0
    ) -> Requeue | Finish | None:
        execution, inbox = self.execution, self.inbox
        pending.consumed += inbox.take_stale()
        tasks, rows = self.recorder.rows_of(pending)
        rows += self.semaphore_slots.change()
        rows.append(Await(execution.run_id, messages, self.journal.uncounted))
        guard = RunGuard(execution.run_id, inbox.version)
        set_settling(True)
        answer = await self.recorder.submit(Unit(execution.token, requeue, tasks, (), guard, tuple(rows)))
        if answer.verdict is Verdict.DONE:
            inbox.version += 1
            self.journal.uncounted = 0
            inbox.consumed(pending.consumed)
            inbox.forget_consumed()
            return requeue
        set_settling(False)
        self.recorder.restore(pending)
        if answer.verdict is Verdict.CLAIM_LOST:
            execution.lose()
            return None
        was_paused = execution.run_paused
        await inbox.refresh()
        if was_paused and not execution.run_paused:
            execution.resume_paused()
        return None

    async def _end(self, set_settling: SetSettling) -> Requeue | Finish | None:
        execution, inbox = self.execution, self.inbox
        guard, signals = RunGuard(execution.run_id, None), []
        if self.successor is not None and execution.cancel is None:
            # it takes over unconsumed signals; the guard ensures that none is missed
            guard, signals = RunGuard(execution.run_id, (await inbox.read_run()).version), await inbox.list_signals()
            if execution.run_paused:
                return None
        elif inbox.run is None and execution.root_id != execution.run_id:
            await inbox.read_run()
        pending = self.recorder.collect()
        tasks, rows = self.recorder.rows_of(pending)
        unconsumed = [signal for signal in signals if signal.id not in pending.consumed]
        finish, more_tasks, more_rows = await self._ended_unit(unconsumed, rows)
        rows.append(Await(execution.run_id, 0, self.journal.uncounted))
        set_settling(True)
        try:
            answer = await self.recorder.submit(
                Unit(execution.token, finish, (*tasks, *more_tasks), (), guard, (*rows, *more_rows))
            )
        except TreadleError as refused:
            if refused.code != "illegal_transition":
                raise
            set_settling(False)  # the run was paused meanwhile, or has ended
            self.recorder.restore(pending)
            await inbox.read_run()
            if not execution.run_paused:
                raise
            return None
        if answer.verdict is not Verdict.DONE:
            set_settling(False)
            self.recorder.restore(pending)
            if answer.verdict is Verdict.CLAIM_LOST:
                execution.lose()
            return None
        self.close()
        execution.runtime.on_finished(execution.run_id)
        return finish

    async def _ended_unit(self, signals: Sequence[Message], pending: Sequence[Row]) -> EndedUnit:
        """Return the unit that ends the task and its run; `pending` are the rows that are committed with it."""
        execution = self.execution
        value_store, limit = execution.runtime.value_store, execution.runtime.payload_limit
        value, error = self._ended or (None, None)
        closing = closing_tasks(execution.run_id, execution.task.namespace, self.children)
        if execution.cancel is not None:
            finish, rows = self._canceled(execution.cancel, error)
            return finish, closing, rows
        if self.successor is not None:
            try:
                return await self._continued(self.successor, signals, pending)
            except InvalidInput as refused:
                error = NonRetryable(f"The function cannot continue as a new run: {refused}", refused.code)
        if error is None:
            try:
                encode(value, "result", limit)
                outputs, blobs = value_store.pack({"result": value}, execution.root_id, "result", limit + _WRAPPER)
            except InvalidInput as refused:
                error = NonRetryable(f"The function's result cannot be stored: {refused}", "invalid_result")
            else:
                moved = RunTransition(execution.run_id, "succeed", RunState.RUNNING, RunState.COMPLETED, outputs=outputs)
                messages = self._messages(RunState.COMPLETED, outputs, None)
                return Finish("succeed", TaskState.COMPLETED), closing, (*blobs, moved, *messages)
        finish = failure(outcome_of_error(error, "function_error").problem)
        step_ids = blamed_steps(error)
        text = encode({**decode(finish.error), "step_ids": list(step_ids)}, "error", VALUE_LIMIT)
        first = step_ids[0] if step_ids else None
        moved = RunTransition(
            execution.run_id, "fail", RunState.RUNNING, RunState.FAILED, error=text, failed_step_id=first, data=finish.error
        )
        return finish, closing, (moved, *self._messages(RunState.FAILED, None, finish.error))

    def _messages(self, state: RunState, outputs: str | None, error: str | None) -> tuple[Row, ...]:
        """Return the message about the end to the parent, if the run has one."""
        run = self.inbox.run
        return () if run is None else run_message(run, state, outputs, error, self.execution.runtime.value_store)

    def _canceled(self, cancel: CancelRequest, error: BaseException | None) -> tuple[Finish, tuple[Row, ...]]:
        """End a run that was canceled and has cleaned up, whatever its code returned."""
        message, run_id = cancel.message, self.execution.run_id
        if error is not None and not isinstance(error, Canceled):
            problem = outcome_of_error(error, "function_error").problem
            message = f"{message.rstrip('.')}. Its cleanup failed: {problem.type or problem.code}: {problem.message}"
        text = canceled_error(cancel.actor, message, cancel.code)
        moved = RunTransition(run_id, "cancel", RunState.RUNNING, RunState.CANCELED, actor=cancel.actor, error=text, data=text)
        finish = Finish("cancel", TaskState.CANCELED, error=text, error_code=cancel.code, actor=cancel.actor)
        return finish, (moved, *self._messages(RunState.CANCELED, None, text), CancelRunTasks(run_id, cancel.actor, text))

    async def _continued(self, payload: dict[str, Any], signals: Sequence[Message], pending: Sequence[Row]) -> EndedUnit:
        """End the run, and start a new one without history, which receives the unconsumed signals in their order.

        The parent of the first run receives the result of the last one. The new run keeps tags and published values; updates that
        this one leaves unanswered are answered with that.
        """
        execution, run = self.execution, self.inbox.run
        runtime, task, run_id, published = execution.runtime, execution.task, execution.run_id, self.journal.published
        child = run is not None and run.parent_step_id is not None
        tags = dict(tag for row in pending if isinstance(row, PutTags) for tag in row.tags)
        new, new_task, rows = new_run(
            run_id=continued_id(run_id),
            namespace=task.namespace,
            name=execution.function.name,
            version=await runtime.resolve(execution.function.name, None),
            payload=payload,
            task_list=task.task_list,
            priority=task.priority,
            value_store=runtime.value_store,
            payload_limit=runtime.payload_limit,
            root_id=task.root_id,
            trace_id=task.trace_id,
            parent_id=run.parent_id if run is not None and child else run_id,
            parent_step_id=run.parent_step_id if run is not None and child else None,
            deadline_at=None if run is None else run.deadline_at,
            fairness_key=task.fairness_key,
            baggage=task.baggage,
            tags=await kept_tags(runtime.store, run_id, tags),
            continues=run,
            scope=REPLAYED if published else None,
            steps=1 if published else 0,
        )
        own = await runtime.store.tasks.find(task.id)  # the unique key may have been released since the claim
        unique_key = None if own is None else own.unique_key
        new_task = msgspec.structs.replace(new_task, unique_key=unique_key, limit_key=task.limit_key, limit_keys=task.limit_keys)
        if published:
            step, blobs = folded(new.id, self.journal.published_row(new.id), task.root_id, runtime.value_store)
            rows = (*rows, *blobs, PutSteps(new.id, (step,), 0))
        answers = PendingUnit()
        for update_id, name in self.updates.items():
            self.journal.add(answer_row(update_id, name, None, {"code": UpdateUnanswered.code}), answers)
        if answers:
            rows = (*rows, PutSteps(run_id, tuple(answers.steps.values()), 0))
        outputs, _ = runtime.value_store.pack({"continued_as": new.id}, task.root_id, "result")
        moved = RunTransition(run_id, "succeed", RunState.RUNNING, RunState.COMPLETED, outputs=outputs)
        signals = [msgspec.structs.replace(signal, run_id=new.id) for signal in signals]
        transitions: list[Row] = [TakeMessages(run_id, tuple(signal.id for signal in signals)), *map(PutMessage, signals)]
        timers = deadline_tasks(new, await runtime.store.now()) if new.deadline_at is not None else ()
        return Finish("succeed", TaskState.COMPLETED), (new_task, *timers), (*rows, moved, *transitions)


def _ended_early(unreached: Recorded, error: BaseException | None) -> Problem:
    """Return the problem of a replay whose code ends, with an error or without, before it has reached all recorded steps."""
    if error is not None and error_code(error, "") == InvalidPayload.code:
        return Problem(
            TYPE_CHANGED,
            f"{str(error).rstrip('.')}. The run recorded this value before its type changed: give a new field a default, or "
            "convert earlier values in the type, e.g. with a validator of pydantic; a worker with such code continues the run",
        )
    now = "the end of the function" + ("" if error is None else f" by {type_name(error)}: {error_text(error)}")
    return diverged(unreached.place, f"{unreached.kind} {unreached.name}", now)


def _place(operation: object, kind: str, code: CodeType, position: int) -> str:
    """Return the name of an operation, with the file and the line of its creation."""
    name = getattr(operation, "name", "")
    line = next(islice(code.co_positions(), position // 2, None))[0]
    return f"{kind if name == kind else f'{kind} {name}'.rstrip()} ({Path(code.co_filename).name}, line {line})"


def _is_unawaited(operation: object) -> bool:
    """Return whether a noted operation has not begun; all but coroutines are removed when they begin."""
    return not inspect.iscoroutine(operation) or inspect.getcoroutinestate(operation) == inspect.CORO_CREATED


def stuck_requeue(task: Task, problem: Problem, cleanup_for: int, cancel: CancelRequest | None) -> Requeue:
    """Retry with backoff, as the code does not match the recorded steps; a rollback of the code fixes it."""
    times = stuck + 1 if isinstance(stuck := read_note(task.checkpoint).get("stuck"), int) else 1
    text = encode(problem.storable().as_json(), "error", VALUE_LIMIT)
    return Requeue(
        "retry",
        TaskState.PENDING,
        task.attempt + 1,
        task.failures,
        0,
        delay=_STUCK_BACKOFF.delay_for(times - 1),
        checkpoint=noted(encode({"stuck": times}), cleanup_for, cancel),
        error=text,
        data=text,
    )


def answer_row(update_id: str, name: str, value: Json, error: dict[str, Json] | None) -> Recorded:
    """Return the row with the answer to an update."""
    state = StepState.COMPLETED if error is None else StepState.FAILED
    return Recorded(id=answer_id(update_id), kind=ANSWER, name=name, state=state, value=value, error=error)
