"""Runs of durable functions: start, signal, settle; and how a run and its function end together.

The executing worker commits the function's own decisions (`workers.functions`); everything else that changes such a run goes
through here. Parts of a tree inform each other by messages: the unit that ends a child task or child run puts a message into
the parent's inbox.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from treadle.kernel.core import Core, Service
from treadle.kernel.functions.decide import (
    ABANDON,
    TERMINATE,
    CleanupHere,
    canceled_rows,
    cleanup_for,
    closing_tasks,
    end_with_task,
    find_policy,
    new_run,
    task_message,
)
from treadle.kernel.functions.steps import (
    START,
    UPDATE_PREFIX,
    Recorded,
    answer_id,
    check_version,
    child_run_id,
    find_readable,
    parse_queue_name,
    place_key,
    published_id,
    queue_name,
    read_step,
    step_id,
)
from treadle.kernel.queue.conflicts import DEBOUNCE, REJECT, REPLACE, KeyConflict, has_started, key_taken, rescheduled
from treadle.kernel.queue.engine_tasks import Defaults, cancel_task, deadline_tasks, find_deadline
from treadle.kernel.queue.service import check_priority, limit_fields
from treadle.kernel.queue.why import shown_server_state
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.lookups import all_steps, check_run_repeat, current_run, find_id
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.records import PutMessage
from treadle.kernel.store.units import (
    Dismiss,
    Finish,
    PutBlob,
    PutPayload,
    ReleaseKey,
    Row,
    RunGuard,
    Seen,
    Unit,
    UnitAnswer,
    Verdict,
)
from treadle.model.clock import Duration, instant, milliseconds
from treadle.model.conversion import plain_object
from treadle.model.errors import (
    IllegalTransition,
    InvalidInput,
    NotFound,
    StoreError,
    UnreadableValue,
    UpdateRejected,
    UpdateUnanswered,
    not_found,
)
from treadle.model.ids import Ref, derived_id
from treadle.model.lists import check_count
from treadle.model.names import DEFAULT_LIST, FUNCTION, check_key, check_name, is_function, run_key
from treadle.model.records import Message
from treadle.model.retry import Backoff
from treadle.model.runs import Run, Step
from treadle.model.states import RUN, RunState, StepState, TaskState
from treadle.model.tags import Tags
from treadle.model.tasks import FRAMEWORK, SOURCE, Claim, LogLine, NewTask, Task, TaskLimit
from treadle.model.values import BlobRef, Json, encode

if TYPE_CHECKING:
    from treadle.api.functions import Function

_PAGE = 1000
T = TypeVar("T")
_POLLS = Backoff(0.02, 0.5, 1.5)
"""Seconds between two reads of a caller that waits for an answer."""


@dataclass(frozen=True, slots=True)
class SentUpdate:
    """An update on its way to a function; `id` is the same for every call with its key."""

    id: str
    run_id: str
    name: str


@dataclass(frozen=True, slots=True)
class UpdateAnswer:
    """The value with which a function answered an update."""

    value: Json


class Functions(Service):
    """The function runs of one namespace."""

    def __init__(
        self,
        core: Core,
        newest_here: Callable[[str], int | None],
        cleanup_here: CleanupHere = lambda _: None,
        *,
        cancel_rows: Callable[[Run], Awaitable[tuple[Row, ...]]] | None = None,
        cancel_tasks: Callable[[Run], Awaitable[tuple[NewTask, ...]]] | None = None,
        cancel: Callable[[], Callable[..., Awaitable[Run]]] | None = None,
        deadlines: Defaults = (),
    ) -> None:
        """`cancel_rows` and `cancel_tasks` return rows and tasks that are stored with the cancellation of a run, such as those
        that end its approvals and external jobs; `cancel` cancels a run, with a `successor` in the same commit."""
        super().__init__(core)
        self._newest_here = newest_here
        self.cleanup_here = cleanup_here
        self.on_finished: list[Callable[[str], None]] = []
        self._cancel_rows = cancel_rows
        self._cancel_tasks = cancel_tasks
        self._cancel = cancel
        self.deadlines = deadlines

    def finished(self, run_id: str) -> None:
        """Notify listeners that a run ended in this process."""
        for listener in self.on_finished:
            listener(run_id)

    # start

    async def start(
        self,
        name: str,
        payload: Mapping[str, Json] | None = None,
        *,
        run_id: str | None = None,
        actor: str | None = None,
        on_conflict: str | None = None,
        max_wait: Duration | None = None,
        signal: str | None = None,
        signal_payload: Json = None,
        **options: Any,
    ) -> tuple[str, bool]:
        """Start a run; durable when this returns. Returns its id and whether it is new: an idempotency key returns its first
        run, and a unique key may return the live one. Options are those of `FunctionOptions`.

        The default version is the newest registered in this process, or else the newest known to the store.
        """
        run, tasks, rows = await self.prepare(name, payload, run_id=run_id, actor=actor, **options)
        conflict = KeyConflict.of(tasks[0].unique_key, on_conflict, tasks[0].delay, max_wait)
        if signal is not None:
            sent, blobs = self._message(run, check_name(signal, "signal name"), signal_payload, self._ids.new_id(), keyed=False)
            rows = (*rows, *blobs, PutMessage(sent))

        async def attempt() -> tuple[str, bool]:
            failpoint("function.before_commit")
            unit = Unit(tasks=tasks, rows=rows, exclusive=tasks[0].unique_key is not None)
            answer = await self._committer.submit_unique(unit, self._patience)
            failpoint("function.after_commit")
            if answer.verdict is not Verdict.DONE:
                live_id, created = await self._meet(
                    answer.existing[tasks[0].unique_key or ""], run, unit, conflict, actor or "python"
                )
                if signal is not None and not created:
                    try:
                        await self.signal(live_id, signal, signal_payload, actor=actor)
                    except IllegalTransition as error:
                        raise Stale from error
                return live_id, created
            if run.idempotency_key is not None and run.idempotency_key in answer.existing:
                existing = answer.existing[run.idempotency_key]
                await check_run_repeat(self._store, self._value_store, run, existing)
                if signal is not None:
                    await self.signal(existing, signal, signal_payload, actor=actor)
                return existing, False
            return run.id, True

        return await self._committer.transact(attempt, f"start {name}")

    async def _meet(self, holder_id: str, run: Run, unit: Unit, conflict: KeyConflict, actor: str) -> tuple[str, bool]:
        """Act on the live run that has the unique key of a new one: return its id, or store `unit`, the new run, beside its end."""
        task = await self._store.tasks.find(holder_id)
        live = None if task is None or task.finished else await self._store.runs.find(task.run_id or "")
        if task is None or live is None or live.finished:
            raise Stale
        is_same = (live.workflow, live.task_list) == (run.workflow, run.task_list)
        if conflict.action == REJECT or not is_same:
            raise key_taken(unit.tasks[0].unique_key, f"the run {live.id}" if is_same else "other work")
        successor = replace(unit, rows=(ReleaseKey(task.id), *unit.rows))
        if conflict.action == REPLACE:
            assert self._cancel is not None
            try:
                await self._cancel()(
                    live.id, actor=actor, reason=f"The run {run.id} replaces it.", code="replaced", successor=successor
                )
            except IllegalTransition as error:  # it has ended meanwhile
                raise Stale from error
            if await self._store.runs.find(run.id) is None:
                raise Stale
        elif conflict.action == DEBOUNCE and has_started(task):
            await self._committer.commit(replace(successor, run=RunGuard(live.id, None, live=True)), self._patience)
        else:
            if conflict.action == DEBOUNCE:
                now = await self._store.now()
                blobs = tuple(replace(row, root_id=live.root_id) for row in unit.rows if isinstance(row, PutBlob))
                settlement = rescheduled(task, conflict.next_delay(live.created_at, now), now, actor)
                rows: tuple[Row, ...] = (PutPayload(task.id, run.inputs), *blobs)
                await self._committer.commit(Unit(Seen.of(task), settlement, run=RunGuard(live.id, live.version), rows=rows))
            return live.id, False
        return run.id, True

    async def reschedule(
        self, run_id: Ref, delay: Duration | None = None, start_at: datetime | None = None, *, actor: str = "operator"
    ) -> Run:
        """Change the start of a run that has not started, to `delay` from now or to `start_at`; without both, to now.

        Its deadline stays. Raises `Refused` (`already_started`) for a run that has started.
        """
        run_id = (await self.get(run_id)).id

        async def attempt() -> Run:
            run, task, now = await self.get(run_id), await self.own_task(run_id), await self._store.now()
            if task is None or run.finished:
                raise IllegalTransition("run", run.id, run.state, "reschedule", RUN.possible(run.state))
            settlement = rescheduled(task, await self._delay(delay, start_at), now, actor)
            await self._committer.commit(Unit(Seen.of(task), settlement, run=RunGuard(run.id, run.version)), self._patience)
            return await self.get(run.id)

        return await self._committer.transact(attempt, f"reschedule the run {run_id}")

    async def _delay(self, delay: Duration | None, start_at: datetime | None) -> int:
        if delay is not None and start_at is not None:
            raise InvalidInput("Give either delay or start_at, not both.")
        if start_at is not None:
            return max(instant(start_at, "start_at") - await self._store.now(), 0)
        return 0 if delay is None else milliseconds(delay, "delay")

    async def prepare(
        self,
        name: str,
        payload: Mapping[str, Json] | None = None,
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
        task_list: str = DEFAULT_LIST,
        priority: int = 0,
        trace_id: str | None = None,
        tags: Tags | None = None,
        run_id: str | None = None,
        actor: str | None = None,
        deadline: Duration | str | None = None,
        deadline_at: datetime | None = None,
        fairness_key: str | None = None,
        delay: Duration | None = None,
        start_at: datetime | None = None,
        unique_key: str | None = None,
        limit_key: str | None = None,
        limit: int | None = None,
        baggage: str | None = None,
    ) -> tuple[Run, tuple[NewTask, ...], tuple[Row, ...]]:
        """Build a new run, its tasks and its rows, for a unit with other rows; arguments as for `start`."""
        check_name(name, "function name")
        check_priority(priority)
        chosen = await self.resolve(name, version)
        ends_at, now = await find_deadline(self._store, name, deadline, deadline_at, self.deadlines)
        wait_for = await self._delay(delay, start_at)
        if ends_at is not None and deadline_at is None:
            ends_at += wait_for
        if unique_key is not None and idempotency_key is not None:
            raise InvalidInput("Give either unique_key, for one live run, or idempotency_key, for one run ever; not both.")
        run, task, rows = new_run(
            run_id=run_id or self._ids.new_id(),
            namespace=self._namespace,
            name=name,
            version=chosen,
            payload=payload,
            task_list=task_list,
            priority=priority,
            value_store=self._value_store,
            payload_limit=self._core.payload_limit,
            idempotency_key=None if idempotency_key is None else check_key(idempotency_key, "idempotency key"),
            trace_id=self._core.current_trace_id() if trace_id is None else check_key(trace_id, "trace id"),
            actor=actor,
            deadline_at=ends_at,
            fairness_key=None if fairness_key is None else check_key(fairness_key, "fairness key"),
            baggage=baggage or self._core.baggage(),
            tags=tags,
            limits_for=self._core.limits_for,
        )
        task = replace(
            task, delay=wait_for, unique_key=None if unique_key is None else run_key(check_key(unique_key, "unique key"))
        )
        if limit is not None or limit_key is not None:
            key = run_key(name if limit_key is None else check_key(limit_key, "limit key"))
            task = replace(task, **limit_fields({key: TaskLimit(None if limit is None else check_count(limit, "A limit"))}))
        return run, (task, *deadline_tasks(run, now)), rows

    async def resolve(self, name: str, version: int | None) -> int:
        """The version of a new run. A requested version is accepted even if no worker has it yet."""
        if version is not None:
            return check_version(version)
        if (here := self._newest_here(name)) is not None:
            return here
        functions = await self.list_known()
        versions = [version for (function, version) in functions if function == name]
        if not versions:
            raise not_found("function", name, {function for function, _ in functions})
        return max(versions)

    async def list_known(self) -> dict[tuple[str, int], list[str]]:
        """All functions and versions that live workers offer or runs were started with, each with the task lists of its runs."""
        task_lists: dict[str, set[str]] = {}
        for queue in (await self._store.tasks.list_queues()).values():
            if queue.namespace == self._namespace and queue.kind == FUNCTION:
                task_lists.setdefault(queue.name, set()).add(queue.task_list)
        for server in await self._store.servers.list_all(self._namespace):
            for name in server.handlers:
                if name.rpartition("@")[2].isdecimal():  # otherwise a specialist with its scope
                    task_lists.setdefault(name, set())
        return dict(sorted((parse_queue_name(name), sorted(lists)) for name, lists in task_lists.items()))

    async def list_shown(self) -> list[Function]:
        """All known versions, by name, with their servers and runs."""
        from treadle.api.functions import Function

        now = await self._store.now()
        servers = [
            server for server in await self._store.servers.list_all(self._namespace) if shown_server_state(server, now) == "running"
        ]
        runs: dict[str, int] = {}
        for depth in await self._store.tasks.list_depths():
            if depth.queue.namespace == self._namespace and depth.queue.kind == FUNCTION:
                count = depth.ready + depth.running + depth.waiting + depth.blocked
                runs[depth.queue.name] = runs.get(depth.queue.name, 0) + count
        functions = []
        for (name, version), task_lists in (await self.list_known()).items():
            full = queue_name(name, version)
            having = sum(full in server.handlers for server in servers)
            functions.append(Function(name, version, having, runs.get(full, 0), task_lists))
        return functions

    # ends

    async def settle(self, task: Task, guard: Claim | Seen, finish: Finish, more: tuple[Row, ...] = ()) -> UnitAnswer:
        """Commit the end of a task of a function's run with its message or the end of the run itself, and `more`."""
        if task.step_id is not None:
            failpoint("advance.before_commit")
            answer = await self._committer.submit(self.child_end(task, guard, finish, more))
            failpoint("advance.after_commit")
            return answer
        finish, blobs = self._value_store.pack_end(finish, task.root_id)

        async def attempt() -> UnitAnswer:
            tasks, rows = await self.follow(task, finish)
            failpoint("advance.before_commit")
            try:
                answer = await self._committer.submit(Unit(guard, finish, tasks, rows=(*more, *blobs, *rows)))
            except IllegalTransition as error:
                raise Stale from error  # the run changed its state meanwhile
            failpoint("advance.after_commit")
            if answer.verdict is Verdict.DONE:
                self.finished(task.run_id or "")
            return answer

        return await self._committer.transact(attempt, f"end a task of the run {task.run_id}")

    def child_end(self, task: Task, guard: Claim | Seen, finish: Finish, more: tuple[Row, ...] = ()) -> Unit:
        """Return the unit that ends a child task and sends the message about it; its result is plain JSON."""
        finish, blobs = self._value_store.pack_end(finish, task.root_id)
        return Unit(guard, finish, rows=(*more, *blobs, *self._child_rows(task, finish)))

    def _child_rows(self, task: Task, finish: Finish) -> tuple[Row, ...]:
        message = task_message(task, finish, self._value_store)  # the function handles a failure, or fails itself
        return (message, Dismiss(task.run_id or "", (task.id,))) if finish.state == TaskState.FAILED else (message,)

    async def follow(self, task: Task, finish: Finish) -> tuple[tuple[NewTask, ...], tuple[Row, ...]]:
        """Return the tasks and rows to store with the end of a function run's task; the result is in stored form."""
        if task.step_id is not None:
            return (), self._child_rows(task, finish)
        run = await self._store.runs.find(task.run_id or "")
        if run is None or run.finished:
            return (), ()
        rows: list[Row] = [*end_with_task(run, finish, self._value_store)]
        if finish.state != TaskState.CANCELED and run.state != RunState.PAUSED:
            steps = [step for step in await all_steps(self._store, run.id) if step.kind == START]
            started = [recorded for step in steps if (recorded := find_readable(step, self._value_store)) is not None]
            return closing_tasks(run.id, run.namespace, started), tuple(rows)
        below, cancel_tasks = await self.closing(run)
        error = finish.error or encode({"code": "canceled", "message": "Its parent has ended."})
        rows += canceled_rows([run, *below], finish.actor or "engine", error, self._value_store, but=run.id)
        rows += await self.closed([run, *below])
        return (*await self.closed_tasks([run, *below]), *cancel_tasks), tuple(rows)

    async def closed(self, runs: Sequence[Run]) -> list[Row]:
        """The rows to store with the cancellation of the runs, beside their ends."""
        return [] if self._cancel_rows is None else [row for run in runs for row in await self._cancel_rows(run)]

    async def closed_tasks(self, runs: Sequence[Run]) -> list[NewTask]:
        """The tasks to store with the cancellation of the runs."""
        return [] if self._cancel_tasks is None else [task for run in runs for task in await self._cancel_tasks(run)]

    # trees

    async def descendants(self, run_id: Ref) -> list[Run]:
        """All unfinished runs below the run, in order of id."""
        unfinished: dict[str, Run] = {}
        pending = [await find_id(self._store, self._namespace, "run", run_id)]
        while pending:
            for child_id in await self._store.runs.list_children(pending.pop()):
                if child_id not in unfinished and (run := await self._store.runs.find(child_id)) is not None and not run.finished:
                    unfinished[child_id] = run
                    pending.append(child_id)
        return [unfinished[key] for key in sorted(unfinished)]

    async def closing(self, run: Run, *, force: bool = False) -> tuple[list[Run], tuple[NewTask, ...]]:
        """The unfinished runs below a canceled run that end with it, in order of id, and the task that cancels those that clean
        up. Runs that it has abandoned, and those below them, continue."""
        ending: dict[str, Run] = {}
        cleaning: list[str] = []
        pending = [run.id]
        while pending:
            for child_id in await self._store.runs.list_children(pending.pop()):
                child = None if child_id in ending else await self._store.runs.find(child_id)
                if child is None or child.finished:
                    continue
                policy = await find_policy(self._store, self._value_store, child)
                if policy == ABANDON:
                    continue
                own = None if force or policy == TERMINATE else await self.own_task(child.id)
                if own is not None and cleanup_for(own, self.cleanup_here):
                    cleaning.append(child.id)
                else:
                    ending[child.id] = child
                    pending.append(child.id)
        reason = f"Its parent, the run {run.id}, was canceled."
        task = cancel_task(derived_id(run.id, "children"), self._namespace, reason, runs=cleaning)
        return [ending[key] for key in sorted(ending)], (task,) if cleaning else ()

    # reads

    async def recorded(self, run_id: Ref) -> list[Recorded]:
        """All recorded steps of the run in program order; large values are references."""
        rows = [
            read_step(step, self._value_store)
            for step in await all_steps(self._store, await find_id(self._store, self._namespace, "run", run_id))
        ]
        return sorted(rows, key=lambda row: (place_key(row.place) if row.place else (), row.redo))

    async def list_repeated(self, task: Task) -> list[tuple[str, str]]:
        """The steps that retries have replaced by the task's step, with their runs: also those of a child run started before."""
        step = await self._store.runs.find_step(task.step_id or "")
        run = await self._store.runs.find(task.run_id or "")
        return [] if step is None or run is None else await self._list_replaced(run, step)

    async def _list_replaced(self, run: Run, step: Step) -> list[tuple[str, str]]:
        recorded = read_step(step, self._value_store)
        replaced = [(run.id, step_id(run.id, recorded.place, redo)) for redo in range(recorded.redo)]
        start = await self._store.runs.find_step(run.parent_step_id) if run.parent_step_id else None
        parent = await self._store.runs.find(run.parent_id) if start is not None and run.parent_id else None
        if start is not None and parent is not None:
            for _, replaced_id in await self._list_replaced(parent, start):
                child_id = child_run_id(replaced_id)
                steps = [read_step(row, self._value_store) for row in await all_steps(self._store, child_id)]
                replaced += [(child_id, child_step.id) for child_step in steps if child_step.place == recorded.place]
        return replaced

    async def version_of(self, run: Run) -> int:
        """The version that executes the run now, possibly by adoption."""
        task = await self.own_task(run.id)
        return parse_queue_name(task.name if task is not None else run.flow_id.partition(":")[2])[1]

    async def own_task(self, run_id: Ref) -> Task | None:
        """The task that executes the run: the live one, or else the last to end."""
        tasks = await self._store.tasks.list_matching(
            TaskFilter(kind=FUNCTION, run_id=await find_id(self._store, self._namespace, "run", run_id)), _PAGE
        )
        return max(tasks, key=lambda task: (not task.finished, task.finished_at or 0, task.created_at), default=None)

    async def get(self, run_id: Ref) -> Run:
        """The run of a function, or `RunNotFound`."""
        run = await self._get_run(run_id)
        if not is_function(run.flow_id):
            raise InvalidInput(f"The run {run_id} belongs to the workflow {run.workflow}, not to a durable function.")
        return run

    # messages

    async def get_current(self, run_id: Ref) -> Run:
        """The current run of the function's lineage, or `RunNotFound`."""
        return await current_run(self._store, await self.get(run_id))

    async def signal(
        self, run_id: Ref, name: str, payload: Json = None, *, idempotency_key: str | None = None, actor: str | None = None
    ) -> bool:
        """Send a signal to an unfinished run, or to the run that continues it; returns False if the lineage already received one
        with this key.

        The signal is kept until the function waits for it. Raises `IllegalTransition` for a finished run. `actor`, if given, is
        named in the run's log.
        """
        check_name(name, "signal name")
        run = await self.get(run_id)
        message_id = None
        if idempotency_key:
            key = check_key(idempotency_key, "idempotency key")
            message_id = derived_id(run.lineage_id or run.id, f"signal/{name}/{key}")
        return await self._send(run, name, payload, message_id, keyed=idempotency_key is not None, actor=actor)

    async def _send(
        self, run: Run, name: str, payload: Json, message_id: str | None, *, keyed: bool, actor: str | None, what: str = "Signal"
    ) -> bool:
        message, blobs = self._message(run, name, payload, message_id or self._ids.new_id(), keyed=keyed)
        seen: Run | None = run

        async def attempt() -> bool:
            nonlocal seen
            now, seen = await current_run(self._store, seen or await self.get(run.id)), None
            if keyed and await self._was_received(now.id, message.id):
                return False
            if now.finished:
                raise IllegalTransition("run", now.id, now.state, what.lower(), RUN.possible(now.state))
            guard = RunGuard(now.id, now.version if keyed else None, live=True)  # a key must be new at that version
            unit = Unit(run=guard, rows=(*blobs, PutMessage(replace(message, run_id=now.id))))
            await self._committer.commit(unit, self._patience)
            if actor is not None:
                await self._note_sender(now.id, f"{what} {name.removeprefix(UPDATE_PREFIX)} from {actor}", actor)
            return True

        return await self._committer.transact(attempt, f"signal the run {run.id}")

    def _message(self, run: Run, name: str, payload: Json, message_id: str, *, keyed: bool) -> tuple[Message, Sequence[Row]]:
        """Return a message to a function, and its large values."""
        text, blobs = self._value_store.pack({"payload": payload}, run.root_id, "payload", self._core.payload_limit)
        document = {"payload": text} | ({"keyed": True} if keyed else {})
        encoded = self._value_store.encode_text(encode(document, "signal", 2 * self._core.payload_limit))
        return Message(id=message_id, run_id=run.id, name=name, document=encoded), blobs

    async def _note_sender(self, run_id: str, text: str, actor: str) -> None:
        """Log the sender of a message; a failed write does not undo the message."""
        with suppress(StoreError):
            at, task_id = await self._store.now(), derived_id(run_id, "task")
            line = LogLine(
                task_id=task_id,
                at=at,
                level="info",
                message=text,
                details=encode({SOURCE: FRAMEWORK, "actor": actor}),
                run_id=run_id,
            )
            await self._store.log.append_lines([line])

    async def _was_received(self, run_id: str, message_id: str) -> bool:
        if await self._store.runs.find_step(message_id) is not None:
            return True
        after = 0
        while page := await self._store.records.list_messages(run_id, _PAGE, after):
            if any(message.id == message_id for message in page):
                return True
            after = page[-1].seq
        return False

    # updates

    async def send_update(
        self, run_id: Ref, name: str, payload: Json = None, *, idempotency_key: str | None = None, actor: str | None = None
    ) -> SentUpdate:
        """Send an update to an unfinished run, or to the run that continues it; a repeated call with the key sends nothing.

        Raises `IllegalTransition` for a finished run, unless it has received an update with this key.
        """
        check_name(name, "update name")
        run = await self.get(run_id)
        key = self._ids.new_id() if idempotency_key is None else check_key(idempotency_key, "idempotency key")
        sent = SentUpdate(derived_id(run.lineage_id or run.id, f"update/{name}/{key}"), run.id, name)
        document = {"id": sent.id, "value": plain_object(payload)}
        await self._send(run, f"{UPDATE_PREFIX}{name}", document, sent.id, keyed=True, actor=actor, what="Update")
        return sent

    async def find_answer(self, sent: SentUpdate) -> UpdateAnswer | None:
        """Return the answer, or None if it may still come; raises `UpdateRejected` or `UpdateUnanswered`."""
        run = await self.get_current(sent.run_id)
        step = await self._store.runs.find_step(answer_id(sent.id))
        if step is None:
            if run.finished:
                raise UpdateUnanswered(sent.name, run.id)
            return None
        recorded = read_step(step, self._value_store)
        if recorded.state == StepState.COMPLETED:
            return UpdateAnswer(await self._loaded(recorded.value))
        error = recorded.error or {}
        if error.get("code") == UpdateUnanswered.code:
            raise UpdateUnanswered(sent.name, run.id)
        raise UpdateRejected(sent.name, str(error.get("message", "")))

    async def wait_for_answer(self, sent: SentUpdate, timeout: Duration | None = None) -> UpdateAnswer | None:
        """Wait for the answer; None if it has not come after `timeout`."""
        return await self._poll(lambda: self.find_answer(sent), timeout)

    async def _poll(self, find: Callable[[], Awaitable[T | None]], timeout: Duration | None) -> T | None:
        """Read until there is something, at most `timeout`."""
        ends_at = None if timeout is None else self._clock.monotonic() + milliseconds(timeout, "timeout") / 1000
        pause = _POLLS.first
        while (answer := await find()) is None:
            delay = pause if ends_at is None else min(pause, ends_at - self._clock.monotonic())
            if delay <= 0:
                break
            await self._clock.sleep(delay)
            pause = _POLLS.after(pause)
        return answer

    # published values

    async def list_published(self, run_id: Ref) -> dict[str, dict[str, Json]]:
        """The values that the current run of the lineage has published, by name, each with its `value` and the time `at` (ms)."""
        step = await self._store.runs.find_step(published_id((await self.get_current(run_id)).id))
        published: Any = {} if step is None else await self._loaded(read_step(step, self._value_store).value)
        if not isinstance(published, dict) or not all(isinstance(entry, dict) for entry in published.values()):
            raise UnreadableValue("The published values cannot be read. They are damaged, or a newer version wrote them.")
        return published

    async def query(self, run_id: Ref, name: str, *, wait: Duration = 0) -> Json:
        """The value that the function last published under the name, also after its end; or `NotFound` (`nothing_published`).

        If it has published none, wait for one until the run ends, or `wait` has passed.
        """
        return (await self.get_published(run_id, name, wait=wait)).get("value")

    async def get_published(self, run_id: Ref, name: str, *, wait: Duration = 0) -> dict[str, Json]:
        """The same with its time, as in `list_published`."""

        async def find() -> dict[str, dict[str, Json]] | None:
            has_ended = (await self.get_current(run_id)).finished
            values = await self.list_published(run_id)
            return values if name in values or has_ended else None

        values = await self._poll(find, wait) or await self.list_published(run_id)
        if name not in values:
            published = f"It has published {', '.join(values)}." if values else "It has published nothing."
            raise NotFound(
                f"The function of the run {run_id} has not called `ctx.publish({name!r}, ...)`. {published}",
                code="nothing_published",
            )
        return values[name]

    async def _loaded(self, value: Any) -> Any:
        return (await self._value_store.load([value.digest]))[value.digest] if isinstance(value, BlobRef) else value
