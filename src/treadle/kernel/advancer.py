"""Advancing runs: what a task of a run came to is taken in, decided on by the evaluator, and committed with its settle.

Inline and optimistic. Results of one run that arrive while it is being advanced wait and go together with the next
advance (one run is advanced by one coroutine of a process at a time); between processes the run's version decides. Who
finds that it has moved on looks again, and after a few times leaves the result in the step's inbox, with a task of kind
`afl.advance` that will take it in. So a settle either advances its run or leaves a task that does: there is no flag to lose.

What was read and written last is remembered by run, so that a chain of steps reads nothing; the guard makes that safe.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from treadle.evaluator import (
    BlobRef,
    Changes,
    Errored,
    Event,
    Expand,
    Finished,
    Limits,
    Need,
    RunRef,
    StepRow,
    TaskWish,
    View,
    advance,
)
from treadle.kernel.committer import Committer
from treadle.kernel.flows import Flows
from treadle.kernel.ports import (
    Answer,
    ClearInbox,
    Finish,
    MoveRun,
    PutInbox,
    PutSteps,
    Row,
    RunGuard,
    Seen,
    Store,
    Unit,
    Verdict,
)
from treadle.kernel.settle import failure
from treadle.kernel.stepcodec import load_step, store_step
from treadle.kernel.telemetry import Emit, LoopError, log_event
from treadle.kernel.vault import Vault
from treadle.model.errors import RunNotFound, StoreError, TreadleError
from treadle.model.ids import derived_id
from treadle.model.names import DEFAULT_LIST, HANDLER, Lane
from treadle.model.outcomes import Problem
from treadle.model.runs import Run
from treadle.model.states import RUN, Hold, RunState, TaskState
from treadle.model.tasks import Claim, LogLine, NewTask, Task
from treadle.model.values import Json, decode, encode

ADVANCE = "afl.advance"
"""The kind of tasks that take in what was left in inboxes, and go on with big expansions."""

SCRIPT = "afl.script"
"""The kind of tasks that run the scripts of a flow."""

PARAM = "param:"
"""What the parameters of a script are called in its task's payload, beside `script` itself."""

BATCH = 250
"""Results of one run that are taken in by one advance."""

_TRIES = 3
_REMEMBERED_RUNS = 2000
_REMEMBERED_ROWS = 2000
_PAYLOAD_LIMIT = 64 * 1024 * 1024


@dataclass(slots=True)
class Known:
    """A run, and what of its steps has been loaded, as of the run's version."""

    run: Run
    view: View
    inbox: dict[str, Event] = field(default_factory=dict)
    """Events found in inboxes, by step."""


@dataclass(slots=True)
class _Wish:
    """Something to take in, under its guard; `answer` is set when it is committed."""

    guard: Claim | Seen | None
    finish: Finish | None
    events: tuple[Event, ...]
    answer: asyncio.Future[Answer]
    task: Task | None = None
    fresh: bool = False
    """Inboxes must be looked at."""
    rows: tuple[Row, ...] = ()
    """What is stored with the end of the task."""


class Advancer:
    """Advances the runs of one process. `on_line` gets what flows log, `on_finished` the ids of runs that ended."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        flows: Flows,
        vault: Vault,
        now: Callable[[], int],
        emit: Emit = log_event,
        limits: Limits | None = None,
    ) -> None:
        self._store = store
        self._committer = committer
        self._flows = flows
        self._vault = vault
        self._now = now
        self._emit = emit
        self._limits = limits or Limits()
        self._waiting: dict[str, list[_Wish]] = {}
        self._drains: set[asyncio.Task[None]] = set()
        self._known: OrderedDict[str, Known] = OrderedDict()
        self.on_line: list[Callable[[LogLine], None]] = []
        self.on_finished: list[Callable[[str], None]] = []

    # what others ask for

    async def settle(self, task: Task, token: Claim, finish: Finish) -> Answer:
        """Commit the end of a run's task, and what follows from it for the run."""
        events: tuple[Event, ...] = ()
        rows: tuple[Row, ...] = ()
        fresh = task.kind == ADVANCE
        if task.kind == ADVANCE:
            if finish.state == TaskState.COMPLETED:
                events = tuple(Expand(block_id) for block_id in decode(task.payload).get("expand", ()))
        elif task.step_id is not None:
            events = (_event(task, finish),)
            finish, rows = self._vault.pack_end(finish, task.root_id)
        return await self.take_in(task.run_id or "", token, finish, events, task=task, fresh=fresh, rows=rows)

    async def take_in(
        self,
        run_id: str,
        guard: Claim | Seen | None,
        finish: Finish | None,
        events: Sequence[Event],
        *,
        task: Task | None = None,
        fresh: bool = False,
        rows: tuple[Row, ...] = (),
    ) -> Answer:
        """Advance the run by these events, committed together with the end of the guarded task, if there is one."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        wishes = self._waiting.get(run_id)
        wish = _Wish(guard, finish, tuple(events), answer, task, fresh, rows)
        if wishes is not None:
            wishes.append(wish)
        else:
            self._waiting[run_id] = [wish]
            drain = asyncio.get_running_loop().create_task(self._drain(run_id))
            self._drains.add(drain)
            drain.add_done_callback(self._drains.discard)
        return await answer

    def remember(self, known: Known) -> None:
        """Keep what is known of a run for its next advance, if it is still small and going on."""
        run_id = known.run.id
        if known.run.state != RunState.RUNNING or len(known.view.rows) > _REMEMBERED_ROWS:
            self._known.pop(run_id, None)
            return
        self._known[run_id] = known
        self._known.move_to_end(run_id)
        while len(self._known) > _REMEMBERED_RUNS:
            self._known.popitem(last=False)

    def forget(self, run_id: str) -> None:
        """Look at the store the next time: somebody else changed the run."""
        self._known.pop(run_id, None)

    # one run

    async def _drain(self, run_id: str) -> None:
        """Advance the run until nothing waits for it here."""
        while wishes := self._waiting[run_id]:
            batch, self._waiting[run_id] = wishes[:BATCH], wishes[BATCH:]
            try:
                await self._advance(run_id, batch)
            except asyncio.CancelledError:
                for wish in [*batch, *self._waiting.pop(run_id)]:
                    wish.answer.cancel()
                raise
            except Exception as error:
                self.forget(run_id)
                for wish in batch:
                    if not wish.answer.done():
                        wish.answer.set_exception(error)
        del self._waiting[run_id]

    async def _advance(self, run_id: str, batch: list[_Wish]) -> None:
        for _ in range(_TRIES):
            known = await self._look(run_id, fresh=any(wish.fresh for wish in batch))
            if known is None or (known.run.finished and not any(wish.guard is None for wish in batch)):
                return await self._settle_alone(batch)
            if known.run.state == RunState.PAUSED:
                return await self._leave(known.run, batch)
            events = [event for wish in batch for event in wish.events]
            taken = {event.step_id for event in events if isinstance(event, Finished | Errored)}
            found = {step_id: event for step_id, event in known.inbox.items() if step_id not in taken}
            try:
                changes = await self.evaluate(known, [*found.values(), *events])
            except StoreError:
                raise
            except Exception as error:
                return await self._evaluator_failed(known.run, batch, error)
            answer = await self._commit(known, batch, changes, tuple(known.inbox))
            if answer.verdict is Verdict.DONE:
                for wish in batch:
                    _answer(wish, answer)
                return None
            self.forget(run_id)
            if answer.verdict is Verdict.CLAIM_LOST:
                batch = self._without_lost(batch, answer)
                if not batch:
                    return None
        return await self._leave_or_raise(run_id, batch)

    async def _look(self, run_id: str, *, fresh: bool) -> Known | None:
        """What is remembered of the run, or its row and inboxes from the store."""
        if not fresh and (known := self._known.get(run_id)) is not None:
            return known
        run = await self._store.find_run(run_id)
        if run is None:
            return None
        known = Known(run, View())
        if fresh:
            for step in await self._store.list_inbox(run_id, BATCH):
                known.inbox[step.id] = await self._inbox_event(step.id, step.inbox or "")
            await self._load(known, Need(), list(known.inbox))
        return known

    async def evaluate(self, known: Known, events: Sequence[Event]) -> Changes:
        """What follows from the events, loading what the evaluator needs to see."""
        program = await self._flows.program(known.run.flow_id)
        ref = RunRef(id=known.run.id, workflow=known.run.workflow, rows=known.run.steps)
        near = [event.step_id for event in events if isinstance(event, Finished | Errored)]
        unseen = [step_id for step_id in near if step_id not in known.view.rows]
        if unseen:
            await self._load(known, Need(), unseen)
        while isinstance(result := advance(program, ref, known.view, events, self._limits), Need):
            await self._load(known, result)
        return result

    async def _load(self, known: Known, need: Need, near: Sequence[str] = ()) -> None:
        """Bring what is needed into the view."""
        view = known.view
        if near or need.rows or need.children_of:
            steps = await self._store.load_steps(known.run.id, near, need.rows, need.children_of)
            rows = [load_step(step, self._vault) for step in steps]
            view.add(*[row for row in rows if row.id not in view.rows or view.rows[row.id] is None])
            view.add_absent(*need.rows)
            self._complete(view, rows, near, need.children_of)
        if need.blobs:
            for digest, value in (await self._vault.load(need.blobs)).items():
                view.add_blob(digest, value)

    @staticmethod
    def _complete(view: View, rows: Sequence[StepRow], near: Sequence[str], asked: Sequence[str]) -> None:
        """Note whose children are all loaded now: those asked for, and everything near that is no foreach."""
        complete: dict[str, list[StepRow]] = {row_id: [] for row_id in asked}
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

    async def _commit(self, known: Known, batch: Sequence[_Wish], changes: Changes, inbox: tuple[str, ...]) -> Answer:
        tasks, rows, stored = self.unit_rows(known, changes)
        rows = (*rows, *(row for wish in batch for row in wish.rows), *([ClearInbox(inbox)] if inbox else []))
        ends = [(wish.guard, wish.finish) for wish in batch if wish.guard is not None and wish.finish is not None]
        first = ends[0] if ends else (None, None)
        also = tuple((guard, finish) for guard, finish in ends[1:] if isinstance(guard, Claim))
        guard = RunGuard(known.run.id, known.run.version)
        answer = await self._committer.submit(Unit(first[0], first[1], tasks, also, guard, rows))
        if answer.verdict is Verdict.DONE:
            self.committed(known, changes, stored)
        return answer

    # from changes to rows and back

    def unit_rows(self, known: Known, changes: Changes) -> tuple[tuple[NewTask, ...], tuple[Row, ...], list[StepRow]]:
        """The tasks and rows that the changes come to, and the step rows as they will be read back."""
        run = known.run
        rows: list[Row] = []
        stored: list[StepRow] = []
        if changes.created or changes.updated:
            steps = []
            for row in [*changes.created, *changes.updated]:
                step, slim, blobs = store_step(row, self._vault, run.root_id)
                steps.append(step)
                stored.append(slim)
                rows += blobs
            rows.append(PutSteps(run.id, tuple(steps), len(changes.created)))
        tasks = [self._task(run, wish, rows) for wish in changes.tasks]
        if changes.again:
            payload = encode({"expand": changes.again})
            place = f"advance/{run.version + 1}"
            tasks.append(self._advance_task(run, derived_id(run.id, place), payload))
        rows += self._moves(run, changes, rows)
        return tuple(tasks), tuple(rows), stored

    def _moves(self, run: Run, changes: Changes, rows: list[Row]) -> list[MoveRun]:
        """The moves that bring the run from its state to the one the changes say."""
        moves: list[MoveRun] = []
        state = run.state
        wanted = {RunState.COMPLETED: "succeed", RunState.FAILED: "fail"}
        if changes.status is not None and state == RunState.PENDING:
            moves.append(MoveRun(run.id, "start", state, RunState.RUNNING))
            state = RunState.RUNNING
        if changes.status is RunState.RUNNING and state == RunState.FAILED:
            moves.append(MoveRun(run.id, "retry", state, RunState.RUNNING))
        if changes.status in wanted and state == RunState.RUNNING:
            move = wanted[changes.status]
            outputs = None
            if changes.outputs is not None:
                outputs, blobs = self._vault.pack(changes.outputs, run.root_id, "outputs", _PAYLOAD_LIMIT)
                rows += blobs
            error = None
            if changes.error is not None:
                error = encode({"code": changes.error.type, "message": changes.error.text}, "error", _PAYLOAD_LIMIT)
            moves.append(
                MoveRun(
                    run.id,
                    move,
                    state,
                    RUN.moves[(state, move)],
                    outputs=outputs,
                    error=error,
                    failed_step_id=None if changes.error is None else changes.error.step_id or None,
                    data=error,
                )
            )
        return moves

    def committed(self, known: Known, changes: Changes, stored: Sequence[StepRow]) -> None:
        """Bring what is known up to what was committed, and tell who waits."""
        run, view = known.run, known.view
        state = run.state if changes.status is None else changes.status.value
        known.run = msgspec.structs.replace(run, version=run.version + 1, state=state, steps=run.steps + len(changes.created))
        known.inbox = {}
        for row in stored:
            new = view.rows.get(row.id) is None
            view.rows[row.id] = row
            if new:
                view.children.setdefault(row.id, [])
                siblings = view.children.get(row.parent_id or "")
                if siblings is not None and row.id not in siblings:
                    siblings.append(row.id)
        view.blobs.clear()
        self.remember(known)
        for entry in changes.logs:
            line = LogLine(
                task_id=entry.step_id,
                at=self._now(),
                level="info",
                message=f"{entry.path}: {_shown(entry.values)}"[:4096],
                run_id=run.id,
                step_id=entry.step_id,
            )
            for heard in self.on_line:
                heard(line)
        if known.run.finished:
            for told in self.on_finished:
                told(run.id)

    def _task(self, run: Run, wish: TaskWish, rows: list[Row]) -> NewTask:
        if wish.script is not None:
            kind, name = SCRIPT, SCRIPT
            attributes = {f"{PARAM}{param}": value for param, value in wish.payload.items()}
            attributes["script"] = msgspec.to_builtins(wish.script)
        else:
            kind, name, attributes = HANDLER, wish.facet, wish.payload
        text, blobs = self._vault.pack(attributes, run.root_id, "payload", _PAYLOAD_LIMIT)
        rows += blobs
        return NewTask(
            id=wish.id,
            lane=Lane(run.namespace, kind, run.task_list if wish.task_list == DEFAULT_LIST else wish.task_list, name),
            payload=text,
            priority=run.priority,
            timeout_for=wish.timeout_for,
            run_id=run.id,
            step_id=wish.step_id,
            flow_id=run.flow_id,
            root_id=run.root_id,
            trace_id=run.trace_id,
        )

    @staticmethod
    def _advance_task(run: Run, task_id: str, payload: str = "{}", hold: int = 0) -> NewTask:
        return NewTask(
            id=task_id,
            lane=Lane(run.namespace, ADVANCE, run.task_list, ADVANCE),
            payload=payload,
            priority=run.priority,
            hold=hold,
            run_id=run.id,
            flow_id=run.flow_id,
            root_id=run.root_id,
            trace_id=run.trace_id,
        )

    # when the run cannot be advanced now

    async def follow(self, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """What to store with the end of a run's task that an operator brought about."""
        run = await self._store.find_run(task.run_id or "")
        return ((), ()) if run is None or run.finished else self.left(run, task, finish)

    def left(self, run: Run, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """What to store so that the task's end is taken in later: the step's inbox, and a task that looks there."""
        if task.step_id is None:
            return (), ()
        hold = Hold.RUN_PAUSED if run.state == RunState.PAUSED else 0
        inbox = encode({"task_id": task.id, "result": finish.result, "error": finish.error}, "inbox", _PAYLOAD_LIMIT)
        advance_id = derived_id(task.id, f"advance/{task.claim_version}")
        return (self._advance_task(run, advance_id, hold=hold),), (PutInbox(task.step_id, self._vault.seal(inbox)),)

    async def _leave(self, run: Run, batch: Sequence[_Wish]) -> None:
        """Settle each task by itself and leave what it came to for later."""
        answers = []
        for wish in batch:
            if wish.finish is None or wish.task is None:
                if not wish.answer.done():
                    wish.answer.set_exception(TreadleError(f"The run {run.id} is {run.state}; try again when it goes on."))
                continue
            tasks, rows = self.left(run, wish.task, wish.finish)
            if wish.task.kind == ADVANCE:
                again = derived_id(wish.task.id, f"again/{wish.task.claim_version}")
                hold = Hold.RUN_PAUSED if run.state == RunState.PAUSED else 0
                tasks = (self._advance_task(run, again, wish.task.payload, hold),)
            answers.append((wish, self._committer.submit(Unit(wish.guard, wish.finish, tasks, rows=(*wish.rows, *rows)))))
        for wish, answer in answers:
            _answer(wish, await answer)

    async def _leave_or_raise(self, run_id: str, batch: Sequence[_Wish]) -> None:
        run = await self._store.find_run(run_id)
        if run is None:
            raise RunNotFound(run_id)
        await self._leave(run, batch)

    async def _settle_alone(self, batch: Sequence[_Wish]) -> None:
        """The run is over, or gone: end the tasks, and nothing follows."""
        answers = [
            (wish, self._committer.submit(Unit(wish.guard, wish.finish)))
            for wish in batch
            if wish.guard is not None and wish.finish
        ]
        for wish, answer in answers:
            _answer(wish, await answer)

    async def _evaluator_failed(self, run: Run, batch: Sequence[_Wish], error: Exception) -> None:
        """The result of a handler is kept whatever the evaluator does (D60); the advance task fails loudly."""
        self.forget(run.id)
        self._emit(LoopError("evaluator", f"run {run.id} cannot be advanced: {error!r}"))
        loud = failure(Problem("evaluator_error", f"The run could not be advanced: {error}", type(error).__name__))
        kept = []
        for wish in batch:
            if wish.task is not None and wish.task.kind == ADVANCE and wish.guard is not None:
                _answer(wish, await self._committer.submit(Unit(wish.guard, loud)))
            elif wish.task is not None:
                kept.append(wish)
            elif not wish.answer.done():
                wish.answer.set_exception(error)
        await self._leave(run, kept)

    @staticmethod
    def _without_lost(batch: Sequence[_Wish], answer: Answer) -> list[_Wish]:
        """The wishes whose claims still hold; the others are told. Without a list of the lost, it is the only one."""
        kept = []
        guarded = [wish for wish in batch if wish.guard is not None]
        lost = set(answer.lost) or {guarded[0].guard.task_id if guarded and guarded[0].guard else ""}
        for wish in batch:
            if wish.guard is not None and wish.guard.task_id in lost:
                _answer(wish, Answer(Verdict.CLAIM_LOST))
            else:
                kept.append(wish)
        return kept

    async def _inbox_event(self, step_id: str, inbox: str) -> Event:
        """What was left in a step's inbox."""
        said = decode(self._vault.plain(inbox))
        if said.get("error") is None:
            return Finished(step_id, await self._vault.unpack(said.get("result")), said.get("task_id"))
        return _errored(step_id, said["error"], said.get("task_id"))


def _event(task: Task, finish: Finish) -> Event:
    """What the end of a step's task means for the step; the result is plain JSON here."""
    step_id = task.step_id or ""
    if finish.state == TaskState.COMPLETED:
        return Finished(step_id, decode(finish.result) or {}, task.id)
    return _errored(step_id, finish.error, task.id)


def _errored(step_id: str, error: str | None, task_id: str | None) -> Errored:
    said = decode(error) or {}
    problem = Problem(said.get("code", "failed"), said.get("message", "failed"), said.get("type"))
    return Errored(step_id, problem, task_id)


def _shown(values: dict[str, Json]) -> str:
    """What a flow logs, as JSON; a value that stands elsewhere is shown by its size."""
    plain = {name: f"<{value.size} characters>" if isinstance(value, BlobRef) else value for name, value in values.items()}
    return encode(plain, "log", _PAYLOAD_LIMIT)


def _answer(wish: _Wish, answer: Answer) -> None:
    if not wish.answer.done():
        wish.answer.set_result(answer)
