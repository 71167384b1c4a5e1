"""Base of schedules, watchers and alert rules: records that have a task of their own while they are active.

Every operator's change replaces that task in the same unit as the record: it takes effect immediately, and a worker that
holds the old task is fenced off.

A target is the work that a tick or a change starts: a task of a handler, a run of a workflow, or a run of a durable function.
`Starters` builds its rows; the caller commits them in the unit that records the tick or change.
"""

from __future__ import annotations

import builtins
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar, cast
from urllib.parse import urlsplit

import msgspec

from treadle.api.contract import Lookup
from treadle.api.options import TargetOptions
from treadle.api.tasks import TaskSpec
from treadle.api.wire import to_builtins
from treadle.kernel.core import Core, Service
from treadle.kernel.operations import difference
from treadle.kernel.queue.service import Queue, check_priority
from treadle.kernel.record_service import B, RecordService
from treadle.kernel.store.lookups import check_limit, current_run, every_record, find_owners
from treadle.kernel.store.process import failpoint
from treadle.kernel.store.queries import Rules
from treadle.kernel.store.records import ChangeRecord, PutItems, PutRecord, RecordFilter
from treadle.kernel.store.units import Finish, Row, Seen, Unit, UnitAnswer, Verdict
from treadle.model.clock import milliseconds
from treadle.model.errors import IllegalTransition, InvalidInput, NotFound, Refused, StoreError, UnreadableValue
from treadle.model.ids import parse_id
from treadle.model.lists import MAX_COUNT
from treadle.model.names import ENGINE_LIST, QueueKey, check_key, check_name
from treadle.model.records import UNREADABLE, Record
from treadle.model.retry import as_policy
from treadle.model.schedules import TARGETS, TASK, WORKFLOW, ScheduleDocument, Started, Target
from treadle.model.states import TaskState
from treadle.model.tags import check_tags, decode_tags
from treadle.model.tasks import NewTask, Task
from treadle.model.values import Json, decode, encode, shown
from treadle.model.watchers import WatcherDocument

S = TypeVar("S")

ACTIVE, PAUSED = "active", "paused"

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class TriggerRecovery:
    """The state of one schedule or watcher at start-up, and the action that follows."""

    entity: str
    id: str
    name: str
    due_at: int | None
    missed: int
    fires: tuple[int, ...]
    text: str


class Triggers(RecordService[B], Lookup[S], ABC, Generic[B, S]):
    """The live records of one entity in one namespace; `B` is the type of their documents, `S` the record that the API returns."""

    kind: ClassVar[str]
    """The kind of their tasks."""

    def __init__(self, core: Core, starters: Starters) -> None:
        super().__init__(core)
        self.starters = starters

    @abstractmethod
    def placeholder(self, problem: dict[str, Any]) -> B:
        """Return the document that is displayed in place of one that cannot be read."""

    @abstractmethod
    def show(self, record: Record) -> S:
        """Return the record of the API."""

    def check(self, document: B) -> object:
        """Raise the error of an invalid document."""
        return None

    def redefine(self, document: B, wanted: B, now: int) -> B | None:
        """Return the document with the definition of another one, and its own progress; None if it must be made anew."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """The entity for people."""
        return self.machine.entity.replace("_", " ")

    def load_shown(self, record: Record) -> tuple[str, B]:
        """Return the displayed state and the document; `unreadable` and a placeholder if the document cannot be read."""
        try:
            return record.state, self.load(record)
        except UnreadableValue as error:
            state = record.state if record.state in self.machine.final else UNREADABLE
            return state, self.placeholder({"code": error.code, "message": str(error)})

    # operations

    async def get(self, name: str) -> S:
        """Return the live one of that name, or the one of that id; raises `NotFound`."""
        return (await self._show_all([await self.get_record(name)]))[0]

    async def pause(self, name: str, *, actor: str = "python") -> S:
        """Pause it until `resume`: no tick fires, no source is scanned; started work continues. A no-op if it is paused."""
        return await self._operate(name, "pause", actor, unless=PAUSED)

    async def resume(self, name: str, *, actor: str = "python") -> S:
        """Resume it immediately: missed ticks follow the catch-up policy, changes made meanwhile are reported."""
        return await self._operate(name, "resume", actor, unless=ACTIVE)

    async def remove(self, name: str, *, actor: str = "python") -> S:
        """End it: its name becomes free, started work continues, and its alerts end without a message."""
        return await self._operate(name, "remove", actor)

    async def find_document(self, name: str) -> tuple[str, B] | None:
        """Return the id and the document of the live one of that name, if there is one."""
        record = await self._store.records.find_named(self._namespace, self.machine.entity, name)
        return None if record is None else (record.id, self.load_shown(record)[1])

    async def define(self, name: str, wanted: B, *, actor: str) -> None:
        """Create the one of that name, or give it this definition; it stays paused, and equal times continue."""

        def defined(document: B, now: int) -> B:
            new = self.redefine(document, wanted, now)
            assert new is not None
            self.check(new)
            return new

        existing = await self.find_document(name)
        if existing is not None:
            record_id, document = existing
            if self.redefine(document, wanted, await self._store.now()) is not None:
                await self._operate(record_id, "edit", actor, defined)
                return
            await self.remove(record_id, actor=actor)
        await self.begin(name, wanted, actor=actor)

    async def begin(self, name: str, document: B, *, paused: bool = False, actor: str) -> str:
        """Store a new one with this definition; return its id."""
        self.check(document)
        return await self._put(name, document, paused=paused, actor=actor)

    # tasks

    def next_task(self, record_id: str, document: B, now: int) -> NewTask:
        """Return the task for the next due action, with its delay."""
        return self.make_task(record_id)

    def make_task(self, record_id: str, delay: int = 0, task_list: str = ENGINE_LIST) -> NewTask:
        """Return a task of the record."""
        return NewTask(
            id=self._ids.new_id(),
            queue=QueueKey(self._namespace, self.kind, task_list, self.kind),
            payload=encode({f"{self.machine.entity}_id": record_id}),
            delay=delay,
            trace_id=f"{self.machine.entity}:{record_id}",
        )

    def is_late(self, record_id: str, document: B, task: Task) -> bool:
        """Return whether the live task is due later than it should be."""
        return False

    async def follow(self, record: Record, state: str, actor: str) -> tuple[Row, ...]:
        """Return further rows of an operator's transition to that state."""
        return ()

    # recovery

    async def describe_recovery(self) -> Sequence[TriggerRecovery]:
        """Return the active records that have missed work, and the action that follows."""
        return ()

    async def repair(self) -> list[str]:
        """Give a new task to active records without one that is due in time; return their names. Idempotent."""
        repaired = []
        for record in await self._list_active():
            document = self.load(record)
            task = await self.find_task(record)
            if task is not None and not task.finished and not self.is_late(record.id, document, task):
                continue
            unit = await self._replace_task(
                record, document, task, "repair", f"The {record.entity} {record.name} has another task."
            )
            answer = await self._committer.submit(unit, self._patience)
            if answer.verdict is Verdict.DONE:
                repaired.append(record.name or record.id)
        return repaired

    async def _replace_task(self, record: Record, document: B, task: Task | None, actor: str, reason: str) -> Unit:
        """Return the unit that gives the record another task."""
        new = self.next_task(record.id, document, await self._store.now())
        guard, settlement = replacing(task, actor, reason)
        change = ChangeRecord(record.id, record.version, record.document, task_id=new.id)
        return Unit(guard, settlement, (new,), rows=(change,))

    # records

    async def find_task(self, record: Record) -> Task | None:
        """Return the task of the record."""
        return None if record.task_id is None else await self._store.tasks.find(record.task_id)

    async def _list_active(self) -> list[Record]:
        which = RecordFilter(self.machine.entity, self._namespace, states=(ACTIVE,), live=True)
        return [record async for record in every_record(self._store, which) if self._readable(record)]

    def _readable(self, record: Record) -> bool:
        """Return whether this process can read the document; if not, a process with its codec handles the record."""
        try:
            self.load(record)
        except UnreadableValue:
            return False
        return True

    async def _page(self, ended: bool, limit: int, before_id: str | None) -> tuple[builtins.list[S], str | None]:
        """Return a page of records, newest first (the live ones, with `ended` also those that have ended), and its cursor."""
        check_limit(limit)
        before_id = None if before_id is None else parse_id(before_id, "cursor")
        which = RecordFilter(self.machine.entity, self._namespace, live=None if ended else True, before_id=before_id)
        page = await self._store.records.list_matching(which, limit)
        return await self._show_all(page), page[-1].id if len(page) == limit else None

    async def _show_all(self, records: Sequence[Record]) -> builtins.list[S]:
        """Return the records of the API with their programs."""
        owners = await find_owners(self._store, self._namespace) if records else {}
        rows = [(record, self.show(record)) for record in records]
        return [
            cast(S, msgspec.structs.replace(cast(Any, row), program=owners.get(f"{self.kind} {record.name}")))
            if owners and record.ended_at is None
            else row
            for record, row in rows
        ]

    async def _put(
        self, name: str, document: B, *, paused: bool, actor: str, items: tuple[tuple[str, str | None], ...] = ()
    ) -> str:
        """Store a new record with its items, and its task unless it begins paused; return its id."""
        record_id, text = self._ids.new_id(), self.save(document)
        tasks = () if paused else (self.next_task(record_id, document, await self._store.now()),)
        record = Record(
            id=record_id,
            namespace=self._namespace,
            entity=self.machine.entity,
            name=name,
            state=ACTIVE,
            document=text,
            task_id=tasks[0].id if tasks else None,
        )
        data = encode(difference(None, self._settings(record)))
        created = ChangeRecord(record_id, 0, text, "create", ACTIVE, ACTIVE, actor=actor, data=data)
        rows: tuple[Row, ...] = (PutRecord(record), created, *((PutItems(record_id, items),) if items else ()))
        if paused:
            rows = (*rows, ChangeRecord(record_id, 1, text, "pause", ACTIVE, PAUSED, actor=actor))
        answer = await self.operate(Unit(tasks=tasks, rows=rows))
        if name in answer.existing:
            text = f"Another {self.words} has the name {name} already; remove it first, or choose another name."
            raise Refused(text, code=f"{self.machine.entity}_exists")
        return record_id

    async def _operate(
        self,
        name: str,
        transition: str,
        actor: str,
        decide: Callable[[B, int], B] = lambda document, _: document,
        unless: str | None = None,
    ) -> S:
        """Apply an operator's transition to the record and replace its task, guarded by the version that was read."""
        entity = self.machine.entity

        async def attempt() -> S:
            record = await self.get_record(name, exact=transition == "remove")
            if record.state == unless:
                return self.show(record)
            state = self.check_transition(record, transition)
            now = await self._store.now()
            if state in self.machine.final and not self._readable(record):
                text, tasks = record.document, []  # it is kept as it was found
            else:
                document = decide(self.load_shown(record)[1] if transition == "edit" else self.load(record), now)
                text, tasks = self.save(document), [self.next_task(record.id, document, now)] if state == ACTIVE else []
            after = msgspec.structs.replace(record, document=text, state=state)
            change = ChangeRecord(
                record.id,
                record.version,
                text,
                transition,
                record.state,
                state,
                ended=state in self.machine.final,
                actor=actor,
                data=encode(difference(self._settings(record), self._settings(after))),
                task_id=tasks[0].id if tasks else None,
            )
            guard, settlement = replacing(
                await self.find_task(record), actor, f"The {entity} {record.name}: {transition} by {actor}."
            )
            rows = (change, *await self.follow(record, state, actor))
            await self._committer.commit(Unit(guard, settlement, tuple(tasks), rows=rows), self._patience)
            return await self.get(record.id)

        return await self._committer.transact(attempt, f"{transition} the {entity} {name}")

    def _settings(self, record: Record) -> dict[str, Any]:
        """Return what the log shows of a record before and after a change."""
        fields = to_builtins(self.show(record))
        return {name: value for name, value in fields.items() if name not in _NO_SETTINGS}

    def check_transition(self, record: Record, transition: str) -> str:
        """Return the state to which the transition leads, or raise `IllegalTransition`."""
        state = self.machine.target(record.state, transition)
        if state is None:
            name = record.name or record.id
            raise IllegalTransition(self.machine.entity, name, record.state, transition, self.machine.possible(record.state))
        return state


_NO_SETTINGS = frozenset({"id", "state", "version", "task_id", "created_at", "updated_at", "error", "program"})
"""Fields of a shown record that operators do not set, or that the transition has."""


T = TypeVar("T", bound=Triggers[Any, Any])


class TriggerTasks(Service, ABC, Generic[T]):
    """Performs the tasks of one kind of trigger. One object is enough for all of them, and any number may run concurrently."""

    point: ClassVar[str]
    """The name of its failpoints."""

    def __init__(self, core: Core, triggers: T) -> None:
        super().__init__(core)
        self.triggers = triggers

    @abstractmethod
    async def act(self, record: Record, task: Task) -> UnitAnswer:
        """Perform the due actions of the record, and settle the task."""

    async def run(self, task: Task) -> UnitAnswer:
        """Perform the due actions of a claimed task's record, and settle the task."""
        answer = await self._attempt(task)
        while answer.verdict is Verdict.DEFERRED:  # the record changed concurrently
            answer = await self._attempt(task)
        return answer

    async def _attempt(self, task: Task) -> UnitAnswer:
        triggers = self.triggers
        record = await self._store.records.find(decode(task.payload)[f"{triggers.machine.entity}_id"])
        if record is None or record.state != ACTIVE or record.task_id != task.id:
            return await self.commit(Unit(task.claim, succeeded({"note": f"the {triggers.words} has another task now"})))
        return await self.act(record, task)

    async def commit(self, unit: Unit) -> UnitAnswer:
        """Commit a unit of an attempt."""
        failpoint(f"{self.point}.before_commit")
        answer = await self._committer.submit(unit)
        failpoint(f"{self.point}.after_commit")
        return answer

    async def forget(self, task: Task) -> None:
        """Remove the finished task of an attempt without changes, and its transitions, immediately."""
        try:
            await self._store.retention.prune_trees(Rules(task.namespace, 0, 0), [task.root_id], _PAGE)
        except StoreError:
            pass  # retention prunes it later


def succeeded(result: dict[str, Json]) -> Finish:
    """Return the settlement of a task that ends with this result."""
    return Finish("succeed", TaskState.COMPLETED, result=encode(result, "result"))


def is_placeholder(document: ScheduleDocument | WatcherDocument) -> bool:
    """Return whether the document stands for one that cannot be read."""
    return not document.target.kind


def replacing(task: Task | None, actor: str, reason: str) -> tuple[Seen | None, Finish | None]:
    """Return the guard and settlement of a unit that replaces this task, if it is live."""
    if task is None or task.finished:
        return None, None
    error = encode({"code": "canceled", "message": reason})
    finish = Finish("cancel", TaskState.CANCELED, error=error, error_code="canceled", actor=actor)
    return Seen.of(task), finish


def unit_of(prepared: list[Prepared], rows: tuple[Row, ...], tasks: tuple[NewTask, ...] = (), **more: Any) -> Unit:
    """Return a unit that starts the prepared work, with further rows and tasks."""
    new = (*(task for work in prepared for task in work.tasks), *tasks)
    return Unit(tasks=new, rows=(*(row for work in prepared for row in work.rows), *rows), **more)


RUN = "run"
"""The kind of started work that is not a `task`."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The tasks and rows that start the work."""

    tasks: tuple[NewTask, ...] = ()
    rows: tuple[Row, ...] = ()
    committed: Callable[[], None] = lambda: None
    """Call it once the unit is committed."""


class Starters(Service):
    """Starts targets, and answers queries about started work. `runs` and `functions` load their services on first use."""

    def __init__(self, core: Core, queue: Queue, runs: Callable[[], Any], functions: Callable[[], Any]) -> None:
        super().__init__(core)
        self._queue = queue
        self._runs = runs
        self._functions = functions

    def kind_of(self, target: Target) -> str:
        """Return the kind of the started work, `task` or `run`; raise `InvalidInput` for an unknown target."""
        if target.kind not in TARGETS:
            raise InvalidInput(f"A {target.kind} cannot be started.")
        return TASK if target.kind == TASK else RUN

    def check(self, target: Target) -> None:
        """Raise the error of an invalid target, as far as it is known without the store."""
        if self.kind_of(target) == TASK:
            self._queue.check([_task_spec(target, dict(target.inputs))])
            return
        if target.kind == WORKFLOW and not target.flow:
            raise InvalidInput(f"Name the published flow of the workflow {target.name}: flow='checkout'.")
        check_name(target.name, f"{target.kind} name")
        check_name(target.task_list, "task list")

    async def prepare(
        self, target: Target, start_id: str, trace_id: str, given: Json, *, actor: str, key: str | None = None
    ) -> tuple[Started, Prepared]:
        """Return the started work and its rows (none if it was already started under that id); raise if it cannot start.

        `given` is the value passed to the work, `actor` the trigger, or the person who made it start the work.
        """
        started = Started(kind=self.kind_of(target), id=start_id, tick=0)
        inputs = dict(target.inputs)
        if target.given_as is not None:
            inputs[target.given_as] = given
        if started.kind == TASK:
            spec = _task_spec(target, inputs, id=start_id, trace_id=trace_id, idempotency_key=key, created_by=actor)
            task, blobs = self._queue.make(spec)
            return started, Prepared((task,), blobs)
        if await self._store.runs.find(start_id) is not None:
            return started, Prepared()
        options = _options(target) | {"version": target.version, "run_id": start_id, "trace_id": trace_id, "actor": actor}
        if target.kind == WORKFLOW:
            run = await self._runs().prepare(target.flow, target.name, inputs, **options)
            return started, Prepared(run.unit.tasks, run.unit.rows, run.committed)
        _, tasks, rows = await self._functions().prepare(target.name, inputs, **options)
        return started, Prepared(tasks, rows)

    async def was_started(self, kind: str, start_id: str) -> bool:
        """Return whether such a task or run exists."""
        find = self._store.runs.find if kind == RUN else self._store.tasks.find
        return await find(start_id) is not None

    async def find_live(self, started: Started) -> Started | None:
        """Return the work if it is live, or the run as which a function continued; None if it has ended."""
        if started.kind != RUN:
            task = await self._store.tasks.find(started.id)
            return None if task is None or task.finished else started
        if (run := await self._store.runs.find(started.id)) is None:
            return None
        run = await current_run(self._store, run)
        return None if run.finished else msgspec.structs.replace(started, id=run.id)

    async def cancel(self, started: Started, reason: str, actor: str) -> None:
        """Cancel the work, if it is live."""
        live: Started | None = started
        while live is not None:
            try:
                if live.kind == RUN:
                    await self._runs().cancel(live.id, actor=actor, reason=reason)
                else:
                    await self._queue.cancel(live.id, actor=actor, reason=reason)
                return
            except (IllegalTransition, NotFound):  # it has ended, or continued as another run
                live = await self.find_live(live)


def _options(target: Target) -> dict[str, Any]:
    return {
        "task_list": target.task_list,
        "priority": target.priority,
        "deadline": None if target.deadline_for is None else target.deadline_for / 1000,
        "fairness_key": target.fairness_key,
        "tags": target.tags or None,
    }


def _task_spec(target: Target, inputs: dict[str, Json], **more: Any) -> TaskSpec:
    timeout = None if target.timeout_for is None else target.timeout_for / 1000
    return TaskSpec(name=target.name, payload=inputs, retry=target.retry, timeout=timeout, **_options(target), **more)


def check_options(options: Mapping[str, Any], known: Any, what: str, example: str) -> None:
    """Raise `InvalidInput` for options that the `TypedDict` does not have, and for none at all."""
    if not options:
        raise InvalidInput(f"Give at least one option, e.g. {example}.")
    if unknown := [name for name in options if name not in known.__annotations__]:
        raise InvalidInput(f"{what} has no option {unknown[0]!r}; it has {', '.join(known.__annotations__)}.")


def is_web_url(url: str) -> bool:
    """Return whether it is an http or https URL with a host, without spaces and control characters."""
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        return False
    return valid and url.isprintable() and " " not in url


def named_targets(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the targets among the options of a schedule or watcher, by kind."""
    return {kind: options[kind] for kind in TARGETS if options.get(kind) is not None}


def edit_target(options: Mapping[str, Any], old: Target, option: str, kept_of: Callable[[Target, str], Target]) -> Target:
    """Return the target of the options; those that are not given stay as in `old`, whose kind is empty for a new target.

    `option` names the input that receives the tick or the change. `kept_of` returns what a target of another kind keeps.
    """
    if old.kind and option not in options and options.keys().isdisjoint(TargetOptions.__annotations__):
        return old
    names = named_targets(options) or ({old.kind: old.name} if old.kind else {})
    if len(names) != 1:
        wrong = f", not {' and '.join(names)} together" if names else ""
        raise InvalidInput(f"Name one target to start: a task, a workflow or a function{wrong}.")
    ((kind, name),) = names.items()
    base = old if kind == old.kind else kept_of(old, kind)
    flow, version = options.get("flow", base.flow), options.get("version", base.version)
    inputs = options.get("inputs", base.inputs)
    given_as = options.get(option) or base.given_as
    timeout, deadline = options.get("timeout"), options.get("deadline")
    fairness_key = options.get("fairness_key", base.fairness_key)
    if kind != WORKFLOW and flow is not None:
        raise InvalidInput("Only a workflow has a flow.")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise InvalidInput(f"Inputs must be a dict (a JSON object), not {type(inputs).__name__}.")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or not 0 < version <= MAX_COUNT):
        raise InvalidInput(f"version must be a whole number from 1 to {MAX_COUNT}, not {shown(version)}.")
    check_priority(options.get("priority", base.priority))
    return msgspec.structs.replace(
        base,
        kind=kind,
        name=check_name(name, f"{kind} name"),
        flow=None if flow is None else check_key(flow, "flow"),
        version=version,
        inputs=dict(inputs or {}),
        given_as=None if given_as is None else check_key(given_as, "name of an input"),
        task_list=check_name(options.get("task_list", base.task_list), "task list"),
        priority=options.get("priority", base.priority),
        retry=as_policy(options["retry"]) if "retry" in options else base.retry,
        timeout_for=base.timeout_for if timeout is None else milliseconds(timeout, "timeout", positive=True),
        deadline_for=base.deadline_for if deadline is None else milliseconds(deadline, "deadline", positive=True),
        fairness_key=None if fairness_key is None else check_key(fairness_key, "fairness key"),
        tags=decode_tags(check_tags(options["tags"])) if "tags" in options else base.tags,
    )
