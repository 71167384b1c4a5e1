"""The advancer: takes the result of a run's task, lets the evaluator decide, and commits the next steps with the settlement.

It works inline and optimistically. Results of one run that arrive while it is being advanced wait for the next advance (per
process, one coroutine advances a run at a time); between processes the run's version decides. If the run has moved on, the
advancer reads it again; after a few attempts it leaves the result in the step's inbox with a task of kind `afl.advance` that
will process it. So a settlement either advances its run or leaves a task that does: there is no flag to lose.

`RunViews` caches the rows of each run, so that a chain of steps reads nothing; the guard on the run's version makes that safe.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from treadle.evaluator import (
    Changes,
    Errored,
    Event,
    Expand,
    Finished,
    Limits,
    LoadedRows,
    Need,
    RetryStep,
    RunRef,
    StepRow,
    advance,
    steps_of,
)
from treadle.kernel.core import Core, Service
from treadle.kernel.functions.steps import VOID
from treadle.kernel.queue.decide import failure
from treadle.kernel.runs.decide import (
    VALUE_LIMIT,
    advance_task,
    errored,
    expand_payload,
    flow_lines,
    inbox_event,
    inbox_row,
    left_behind,
    load_step,
    once,
    repair_transition,
    rows_of,
    withdrawn,
)
from treadle.kernel.runs.flows import Flows
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.units import ClearInbox, Dismiss, Finish, Row, RunGuard, Seen, Unit, UnitAnswer, Verdict
from treadle.kernel.store.value_store import BIG
from treadle.kernel.telemetry.events import LoopError, StoreTrouble
from treadle.model.errors import Contended, Refused, RunNotFound, StoreError, UnreadableValue
from treadle.model.ids import derived_id
from treadle.model.names import ADVANCE
from treadle.model.outcomes import Problem
from treadle.model.runs import Run
from treadle.model.states import BlockReason, RunState, TaskState
from treadle.model.tasks import Claim, LogLine, NewTask, Preclaimed, Task
from treadle.model.values import Json, decode

ENDS = (Finished, Errored)

INBOX_LIMIT = 250
"""Limit on the inboxes that one advance reads."""

_RUNS = 2000
_ROWS_OF_RUN = 40_000
"""Limit on the cached rows of one run. Of a larger run, open rows and their children are cached if they are not more than half as
many: so the cache is searched for them only once in many advances."""
_ROWS = 100_000


@dataclass(slots=True)
class LoadedRun:
    """A run with the steps loaded so far, as of the run's version."""

    run: Run
    view: LoadedRows
    inbox: dict[str, Event] = field(default_factory=dict)
    """Events found in inboxes, by step."""

    @property
    def ref(self) -> RunRef:
        return RunRef(id=self.run.id, workflow=self.run.workflow, rows=self.run.steps)


class EvaluatorFailed(Exception):
    """Wraps an exception of the evaluator or its inputs."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class RunViews(Service):
    """Loads and caches the runs of one process."""

    def __init__(self, core: Core, flows: Flows, limits: Limits) -> None:
        super().__init__(core)
        self._flows = flows
        self.limits = limits
        self._known: OrderedDict[str, LoadedRun] = OrderedDict()
        self._known_rows: dict[str, int] = {}
        self._rows_in_all = 0

    async def get(self, run_id: str, *, fresh: bool) -> LoadedRun | None:
        """The cached run; with `fresh`, or for an unknown run, its row and inboxes from the store.

        The cached steps are those of the stored run as long as its version is the same.
        """
        cached = self._known.get(run_id)
        if not fresh and cached is not None:
            return cached
        run = await self._store.runs.find(run_id)
        if run is None:
            return None
        loaded = LoadedRun(run, cached.view if cached is not None and cached.run.version == run.version else LoadedRows())
        if fresh and not run.finished:
            try:
                for step in await self._store.runs.list_steps(run_id, None, INBOX_LIMIT, with_inbox=True):
                    loaded.inbox[step.id] = inbox_event(step.id, step.inbox or "", self._value_store)
            except StoreError:
                raise
            except Exception as error:
                raise EvaluatorFailed(error) from error
        return loaded

    def remember(self, known: LoadedRun) -> None:
        """Cache the run for its next advance, if it is small and unfinished."""
        run_id = known.run.id
        self.forget(run_id)
        if known.run.state != RunState.RUNNING:
            return
        if len(known.view.rows) > _ROWS_OF_RUN:
            known.view.drop_ended()
            if len(known.view.rows) > _ROWS_OF_RUN // 2:
                return
        rows = len(known.view.rows)
        self._known[run_id] = known
        self._known_rows[run_id] = rows
        self._rows_in_all += rows
        while len(self._known) > _RUNS or self._rows_in_all > _ROWS:
            self.forget(next(iter(self._known)))

    def forget(self, run_id: str) -> None:
        """Drop the cached run: someone else has changed it."""
        if self._known.pop(run_id, None) is not None:
            self._rows_in_all -= self._known_rows.pop(run_id)

    async def evaluate(self, known: LoadedRun, events: Sequence[Event]) -> Changes:
        """Evaluate the events, loading the rows that the evaluator asks for."""
        program = await self._flows.program(known.run.flow_id)
        unseen = [step_id for step_id in steps_of(events, self.limits) if step_id not in known.view.rows]
        if unseen:
            await self._load(known, Need(), unseen)
        while isinstance(result := advance(program, known.ref, known.view, events, self.limits), Need):
            await self._load(known, result)
        return result

    async def find_root(self, run: Run) -> StepRow | None:
        """The stored root row of the run."""
        root_id = RunRef(id=run.id, workflow=run.workflow).root_id
        return next(
            (load_step(step, self._value_store) for step in await self._store.runs.load_steps(run.id, rows=[root_id])), None
        )

    async def _load(self, known: LoadedRun, need: Need, near: Sequence[str] = ()) -> None:
        """Load the requested rows into the view."""
        view = known.view
        if near or need.rows or need.children_of:
            steps = await self._store.runs.load_steps(known.run.id, near, need.rows, need.children_of)
            rows = [load_step(step, self._value_store) for step in steps if step.kind != VOID]
            view.add(*[row for row in rows if row.id not in view.rows or view.rows[row.id] is None])
            view.add_absent(*need.rows, *near)
            self._complete(view, rows, near, need.children_of)
        if need.blobs:
            for digest, value in (await self._value_store.load(need.blobs)).items():
                view.add_blob(digest, value)

    @staticmethod
    def _complete(view: LoadedRows, rows: Sequence[StepRow], near: Sequence[str], parent_ids: Sequence[str]) -> None:
        """Mark parents whose children are all loaded: those asked for, and everything near except foreach blocks."""
        complete: dict[str, list[StepRow]] = {row_id: [] for row_id in parent_ids}
        by_id = {row.id: row for row in rows}
        for step_id in near:
            row = by_id.get(step_id)
            while row is not None and row.id not in complete:
                if row.total is None:
                    complete[row.id] = []
                row = by_id.get(row.parent_id or "")
        for row in rows:
            if row.parent_id in complete:
                complete[row.parent_id].append(row)
        for row_id, children in complete.items():
            view.add_children(row_id, children)


_TRIES = 3


@dataclass(slots=True)
class _Request:
    """Events to process under a guard; `answer` is set after the commit."""

    guard: Claim | Seen | None
    finish: Finish | None
    events: tuple[Event, ...]
    answer: asyncio.Future[UnitAnswer]
    task: Task | None = None
    fresh: bool = False
    """Whether the inboxes must be read."""
    rows: tuple[Row, ...] = ()
    """Further rows to commit with the end of the task."""
    values: dict[str, Json] = field(default_factory=dict)
    """Large values that the events refer to, by digest."""
    ignored: list[str] = field(default_factory=list)
    """Reasons why events were ignored, once answered."""
    actor: str | None = None
    repair: int | None = None
    """The version of the run for which a repair was decided; it is logged and applies to that version only."""


class Advancer(Service):
    """Advances the runs of one process. `on_line` receives log lines of flows, `on_finished` the ids of finished runs."""

    def __init__(
        self,
        core: Core,
        flows: Flows,
        limits: Limits | None = None,
        *,
        cancel_rows: Callable[[Run], Awaitable[tuple[Row, ...]]] | None = None,
        cancel_tasks: Callable[[Run], Awaitable[tuple[NewTask, ...]]] | None = None,
        withdraw_rows: Callable[[Run], Awaitable[tuple[Row, ...]]] | None = None,
    ) -> None:
        """`cancel_rows` and `cancel_tasks` return rows and tasks that are stored with the early end of a run, such as those
        that end its approvals and external jobs; `withdraw_rows` withdraws the approvals of a run that will fail."""
        super().__init__(core)
        self._cancel_rows = cancel_rows
        self._cancel_tasks = cancel_tasks
        self._withdraw_rows = withdraw_rows or _no_rows
        self.views = RunViews(core, flows, limits or Limits())
        self._waiting: dict[str, list[_Request]] = {}
        self._drains: set[asyncio.Task[None]] = set()
        self.driven: dict[str, Preclaimed] = {}
        """Runs driven by a caller in this process: their handler tasks are preclaimed by that owner."""
        self.on_line: list[Callable[[LogLine], None]] = []
        self.on_finished: list[Callable[[str], None]] = []

    # requests

    def settle(
        self, task: Task, guard: Claim | Seen, finish: Finish, more: tuple[Row, ...] = ()
    ) -> Coroutine[Any, Any, UnitAnswer]:
        """Commit the end of a run's task with its consequences for the run and the rows in `more`; the result is plain JSON."""
        events: tuple[Event, ...] = ()
        rows: tuple[Row, ...] = ()
        values: dict[str, Json] = {}
        fresh = task.kind == ADVANCE
        if fresh:
            events = tuple(Expand(block_id) for block_id in decode(task.payload).get("expand", ()))
        elif task.step_id is not None and finish.state == TaskState.COMPLETED:
            text = finish.result or "{}"
            result: dict[str, Json] = decode(text)
            if len(text) > BIG:
                result, rows, values = self._value_store.fold(result, task.root_id)
                text, _ = self._value_store.pack(result, task.root_id, "result", VALUE_LIMIT)
            else:
                text = self._value_store.encode_text(text)
            finish = finish if text == finish.result else msgspec.structs.replace(finish, result=text)
            events = (Finished(task.step_id, result, task.id),)
        elif task.step_id is not None:
            events = (errored(task.step_id, finish.error, task.id),)
        request = _Request(guard, finish, events, _future(), task, fresh, (*rows, *more), values)
        return self._process(task.run_id or "", request)

    async def offer(self, run_id: str, *events: Event, actor: str | None = None, repair: int | None = None) -> list[str]:
        """Advance the run by other events and by the contents of its inboxes; returns the reasons of ignored events.

        With `repair`, the events restore missing parts of the run at that version, and a transition in its log records it; raises
        `Stale` if the run is at another version. Raises `Refused` while the run is paused.
        """
        request = _Request(None, None, events, _future(), fresh=True, actor=actor, repair=repair)
        await self._process(run_id, request)
        return request.ignored

    async def _process(self, run_id: str, request: _Request) -> UnitAnswer:
        requests = self._waiting.get(run_id)
        if requests is not None:
            requests.append(request)
            return await request.answer
        self._waiting[run_id] = [request]
        try:
            if isinstance(request.guard, Claim):  # the settling worker advances inline; other callers may be canceled
                await self._advance_next(run_id)
        except asyncio.CancelledError:
            self._waiting[run_id] = [queued for queued in self._waiting[run_id] if not queued.answer.done()]
            raise
        finally:
            self._process_rest(run_id)
        return await request.answer

    def _process_rest(self, run_id: str) -> None:
        """Process the waiting requests of the run, if any."""
        if not self._waiting[run_id]:
            del self._waiting[run_id]
            return
        drain = asyncio.get_running_loop().create_task(self._drain(run_id))
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)

    # one run

    async def _drain(self, run_id: str) -> None:
        """Advance the run until no request is left."""
        try:
            while self._waiting[run_id]:
                await self._advance_next(run_id)
        finally:
            for request in self._waiting.pop(run_id):
                request.answer.cancel()

    async def _advance_next(self, run_id: str) -> None:
        """Advance the run by its oldest waiting requests."""
        requests = self._waiting[run_id]
        count = _batch_size(requests)
        batch, self._waiting[run_id] = requests[:count], requests[count:]
        try:
            await self._advance(run_id, batch)
        except asyncio.CancelledError:
            for request in batch:
                request.answer.cancel()
            raise
        except Exception as error:
            self.views.forget(run_id)
            for request in batch:
                _refuse(request, error)

    async def _advance(self, run_id: str, batch: list[_Request]) -> None:
        try:
            await self._committer.transact(lambda: self._attempt(run_id, batch), f"advance the run {run_id}", tries=_TRIES)
        except Contended as error:
            await self._leave(batch, error)

    async def _attempt(self, run_id: str, batch: list[_Request]) -> None:
        """Advance the run once; raises `Stale` if it has moved on. Requests with lost claims leave the batch."""
        cached: LoadedRun | None = None
        try:
            cached = await self.views.get(run_id, fresh=any(request.fresh for request in batch))
            if cached is None:
                return await self._settle_alone(batch, RunNotFound(run_id))
            if batch[0].repair not in (None, cached.run.version):
                return _refuse(batch[0], Stale())
            if not _can_advance(cached.run, batch):
                return await self._settle_alone(batch, f"the run is {cached.run.state}")
            if cached.run.state == RunState.PAUSED:
                answer = await self._leave_for_resume(cached.run, batch)
            else:
                answer = await self._evaluate_and_commit(cached, batch)
        except StoreError as error:
            self._emit(StoreTrouble("advancing a run", str(error), 0.0))
            return await self._leave(batch, error)
        except UnreadableValue as error:
            return await self._evaluator_failed(run_id, batch, error)
        except EvaluatorFailed as failed:
            if cached is not None and await self._moved_on(cached.run):
                self.views.forget(run_id)
                raise Stale from None  # the rows it read are of different versions
            return await self._evaluator_failed(run_id, batch, failed.error)
        if answer.verdict is Verdict.DONE:
            for request in batch:
                _answer(request, answer)
            return None
        self.views.forget(run_id)
        if answer.verdict is Verdict.CLAIM_LOST:
            batch[:] = _without_lost(batch, answer)
        if batch:
            raise Stale
        return None

    async def _evaluate_and_commit(self, cached: LoadedRun, batch: Sequence[_Request]) -> UnitAnswer:
        events = [event for request in batch for event in request.events]
        ended = {event.step_id for event in events if isinstance(event, ENDS)}
        inbox_events = [event for step_id, event in cached.inbox.items() if step_id not in ended]
        for request in batch:
            cached.view.blobs.update(request.values)
        try:
            changes = await self.views.evaluate(cached, [*inbox_events, *events])
            tasks, rows, stored = rows_of(cached.run, changes, self._value_store, batch[0].actor, self.driven.get(cached.run.id))
            rows = (*rows, ClearInbox(tuple(cached.inbox))) if cached.inbox else rows
            if changes.stopped:
                closing, closed = await self.early_end(cached.run)
                tasks, rows = (*tasks, *closing), (*rows, *closed)
            elif changes.doomed:
                rows = (*rows, *await self._withdraw_rows(cached.run))
            if any(isinstance(event, RetryStep) and event.step_id == cached.ref.root_id for event in _done(batch[0], changes)):
                rows = (*rows, Dismiss(cached.run.id))
            if len(cached.inbox) == INBOX_LIMIT:  # there may be more
                tasks = (*tasks, advance_task(cached.run, derived_id(cached.run.id, f"inbox/{cached.run.version + 1}")))
            answer = UnitAnswer(Verdict.DONE)
            if batch[0].guard or tasks or rows:
                if batch[0].repair is not None:
                    rows = (*repair_transition(cached.run, _done(batch[0], changes), batch[0].actor), *rows)
                failpoint("advance.before_commit")
                answer = await self._submit(cached.run, batch, tasks, rows)
                failpoint("advance.after_commit")
                if answer.verdict is Verdict.DONE:
                    self.committed(cached, changes, stored)
                    if changes.ignored:  # its claim may have been settled elsewhere, so that the store has not counted this version
                        self.views.forget(cached.run.id)
        except StoreError:
            raise
        except Exception as error:
            raise EvaluatorFailed(error) from error
        for ignored in changes.ignored:
            for request in batch:
                if any(event is ignored.event for event in request.events):
                    request.ignored.append(ignored.reason)
        return answer

    def _submit(
        self, run: Run, batch: Sequence[_Request], tasks: tuple[NewTask, ...], rows: tuple[Row, ...]
    ) -> asyncio.Future[UnitAnswer]:
        """Commit the end of all tasks of the batch with the changes, if the run is still at its version."""
        rows = once([*(row for request in batch for row in request.rows), *rows])
        also = tuple(
            (request.guard, request.finish) for request in batch[1:] if isinstance(request.guard, Claim) and request.finish
        )
        unit = Unit(batch[0].guard, batch[0].finish, tasks, also, RunGuard(run.id, run.version), rows)
        return self._committer.submit(unit)

    def committed(self, known: LoadedRun, changes: Changes, stored: Sequence[StepRow]) -> None:
        """Update the cache to the committed state and notify listeners."""
        run, view = known.run, known.view
        state = run.state if changes.status is None else changes.status.value
        known.run = msgspec.structs.replace(run, version=run.version + 1, state=state, steps=run.steps + len(changes.created))
        known.inbox = {}
        for row in stored:
            if view.rows.get(row.id) is None:
                view.add_new(row)
            else:
                view.rows[row.id] = row
        view.blobs.clear()
        self.views.remember(known)
        for line in flow_lines(run.id, changes, self._clock.now()):
            for write in self.on_line:
                write(line)
        if known.run.finished:
            self.driven.pop(run.id, None)
            for listener in self.on_finished:
                listener(run.id)

    async def early_end(self, run: Run) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """Return the tasks and rows to store with the end of a run that has live tasks, beside the end of these."""
        tasks = await self._cancel_tasks(run) if self._cancel_tasks is not None else ()
        return tasks, await self._cancel_rows(run) if self._cancel_rows is not None else ()

    async def withdraw(self, run_id: str) -> None:
        """End the tasks not in progress of a run that starts nothing new, after one of its tasks was requeued; else a no-op.

        Of a run that has ended meanwhile, end the approvals that it did not know of.
        """

        async def attempt() -> None:
            run = await self._store.runs.find(run_id)
            if run is not None and run.finished and (late := await self._withdraw_rows(run)):
                await self._committer.commit(Unit(rows=late))
            root = None if run is None or run.state != RunState.RUNNING else await self.views.find_root(run)
            if run is None or root is None or not root.stops or root.doom is None:
                return
            later, withdrawal = withdrawn(run, self._value_store)
            rows = (withdrawal, *await self._withdraw_rows(run))
            await self._committer.commit(Unit(tasks=(later,), run=RunGuard(run_id, run.version), rows=rows))
            self.views.forget(run_id)

        await self._committer.transact(attempt, f"withdraw tasks of the run {run_id}")

    # when the run cannot be advanced now

    async def follow(self, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """Return the tasks and rows to store with the end of a run's task that an operator ended."""
        run = await self._store.runs.find(task.run_id or "")
        return ((), ()) if run is None or run.finished else left_behind(task, finish, self._value_store)

    async def _leave_for_resume(self, run: Run, batch: Sequence[_Request]) -> UnitAnswer:
        """Settle the tasks of a paused run, store their results in inboxes, and leave one held task that processes them after
        the resume.

        The run's guard ensures that a concurrent resume either finds that task or comes first.
        """
        if batch[0].finish is None:
            raise Refused(f"The run {run.id} is paused; resume it first.")
        rows = [
            inbox_row(request.task, request.finish, self._value_store)
            for request in batch
            if request.task and request.task.step_id and request.finish
        ]
        expand = [event.block_id for request in batch for event in request.events if isinstance(event, Expand)]
        payload = expand_payload(expand) if expand else "{}"
        later = advance_task(run, derived_id(run.id, f"paused/{run.version}"), payload, BlockReason.RUN_PAUSED)
        failpoint("leave.before_commit")
        answer = await self._submit(run, batch, (later,), tuple(rows))
        failpoint("leave.after_commit")
        return answer

    async def _leave(self, batch: Sequence[_Request], otherwise: Exception) -> None:
        """Settle each task alone and leave its result in the inbox; requests without a task fail with `otherwise`."""
        answers = []
        failpoint("leave.before_commit")
        for request in batch:
            if request.finish is None or request.task is None:
                _refuse(request, otherwise)
                continue
            tasks, rows = left_behind(request.task, request.finish, self._value_store)
            answers.append(
                (request, self._committer.submit(Unit(request.guard, request.finish, tasks, rows=once([*request.rows, *rows]))))
            )
        for request, answer in answers:
            _answer(request, await answer)
        failpoint("leave.after_commit")

    async def _settle_alone(self, batch: Sequence[_Request], why: Exception | str) -> None:
        """The run is finished or gone: end the tasks without consequences."""
        answers = []
        for request in batch:
            if request.guard is not None and request.finish is not None:
                answers.append((request, self._committer.submit(Unit(request.guard, request.finish, rows=request.rows))))
            elif isinstance(why, Exception):
                _refuse(request, why)
            else:
                request.ignored += [why] * len(request.events)
                _answer(request, UnitAnswer(Verdict.DONE))
        for request, answer in answers:
            _answer(request, await answer)

    async def _moved_on(self, run: Run) -> bool:
        now = await self._store.runs.find(run.id)
        return now is not None and now.version != run.version

    async def _evaluator_failed(self, run_id: str, batch: Sequence[_Request], error: Exception) -> None:
        """Keep handler results even if the evaluator fails (D60); the advance task fails loudly."""
        self.views.forget(run_id)
        self._emit(LoopError("evaluator", f"run {run_id} cannot be advanced: {error!r}"))
        loud = failure(Problem("evaluator_error", f"The run could not be advanced: {error}", type(error).__name__))
        remaining = []
        for request in batch:
            if request.task is not None and request.task.kind == ADVANCE:
                _answer(request, await self._committer.submit(Unit(request.guard, loud)))
            else:
                remaining.append(request)
        await self._leave(remaining, error)


def _batch_size(requests: Sequence[_Request]) -> int:
    """The number of requests to process together: all under claims; an operator's or agent's request goes alone."""
    count = 0
    while count < min(len(requests), INBOX_LIMIT) and isinstance(requests[count].guard, Claim):
        count += 1
    return count or 1


def _can_advance(run: Run, batch: Sequence[_Request]) -> bool:
    """Whether the run can advance: it is unfinished, or the batch retries it."""
    if run.state == RunState.FAILED:
        return any(isinstance(event, RetryStep) for request in batch for event in request.events)
    return not run.finished


def _without_lost(batch: Sequence[_Request], answer: UnitAnswer) -> list[_Request]:
    """Answer the requests with lost claims and return the rest. Without a list of lost claims, the first one is lost."""
    remaining = []
    guarded = [request for request in batch if request.guard is not None]
    lost = set(answer.lost) or {guarded[0].guard.task_id if guarded and guarded[0].guard else ""}
    for request in batch:
        if request.guard is not None and request.guard.task_id in lost:
            _answer(request, UnitAnswer(Verdict.CLAIM_LOST))
        else:
            remaining.append(request)
    return remaining


def _done(request: _Request, changes: Changes) -> list[Event]:
    """The events of the request that changed something."""
    ignored = [entry.event for entry in changes.ignored]
    return [event for event in request.events if not any(event is other for other in ignored)]


async def _no_rows(run: Run) -> tuple[Row, ...]:
    return ()


def _future() -> asyncio.Future[UnitAnswer]:
    return asyncio.get_running_loop().create_future()


def _answer(request: _Request, answer: UnitAnswer) -> None:
    if not request.answer.done():
        request.answer.set_result(answer)


def _refuse(request: _Request, error: Exception) -> None:
    if not request.answer.done():
        request.answer.set_exception(error)
