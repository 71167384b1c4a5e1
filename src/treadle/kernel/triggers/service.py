"""Base of schedules, watchers and alert rules: records that have a task of their own while they are active.

Every operator's change replaces that task in the same unit as the record: it takes effect immediately, and a worker that
holds the old task is fenced off.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from treadle.kernel.queue.service import PATIENCE
from treadle.kernel.store.committer import Committer
from treadle.kernel.store.crashpoints import reach
from treadle.kernel.store.lookups import check_limit, every_record, find_by_name_or_id
from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import Rules
from treadle.kernel.store.records import ChangeRecord, PutItems, PutRecord, RecordFilter
from treadle.kernel.store.units import Finish, Row, Seen, Unit, Verdict
from treadle.kernel.triggers.target import Prepared, Starters
from treadle.model.errors import (
    AlertRuleNotFound,
    IllegalMove,
    Refused,
    ScheduleNotFound,
    StoreError,
    UnreadableValue,
    WatcherNotFound,
)
from treadle.model.ids import Ids, parse_id
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.records import UNREADABLE, Record
from treadle.model.schedules import ScheduleBody
from treadle.model.states import Machine, TaskState
from treadle.model.stored import Stored
from treadle.model.tasks import Move, NewTask, Task
from treadle.model.values import encode
from treadle.model.watchers import WatcherBody

B = TypeVar("B", bound=Stored)

ACTIVE, PAUSED = "active", "paused"

_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Recovery:
    """The state of one schedule or watcher at start-up, and the action that follows."""

    entity: str
    id: str
    name: str
    due_at: int | None
    missed: int
    fires: tuple[int, ...]
    text: str


class Triggers(ABC, Generic[B]):
    """The live records of one entity in one namespace; `B` is the type of their bodies."""

    machine: ClassVar[Machine]
    not_found: ClassVar[type[ScheduleNotFound | WatcherNotFound | AlertRuleNotFound]]
    exists: ClassVar[type[Refused]]

    def __init__(
        self,
        store: Store,
        committer: Committer,
        ids: Ids,
        starters: Starters,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        patience: float = PATIENCE,
    ) -> None:
        self._store = store
        self._committer = committer
        self._ids = ids
        self._starters = starters
        self._namespace = namespace
        self._patience = patience

    @abstractmethod
    def next_task(self, record_id: str, body: B, now: int) -> NewTask:
        """Return the task for the next due action, with its delay."""

    @abstractmethod
    def load(self, record: Record) -> B:
        """Decode the body of a record."""

    @abstractmethod
    def save(self, body: B) -> str:
        """Encode the body of a record."""

    @abstractmethod
    def placeholder(self, problem: dict[str, Any]) -> B:
        """Return the body that is displayed in place of one that cannot be read."""

    def load_shown(self, record: Record) -> tuple[str, B]:
        """Return the displayed state and the body; `unreadable` and a placeholder if the body cannot be read."""
        try:
            return record.state, self.load(record)
        except UnreadableValue as error:
            state = record.state if record.state in self.machine.final else UNREADABLE
            return state, self.placeholder({"code": error.code, "message": str(error)})

    def is_late(self, record_id: str, body: B, task: Task) -> bool:
        """Return whether the live task is due later than it should be."""
        return False

    async def follow(self, record: Record, state: str, actor: str) -> tuple[Row, ...]:
        """Return further rows of an operator's move to that state."""
        return ()

    async def repair(self) -> list[str]:
        """Give a new task to active records whose task was canceled or is due too late; return their names. Idempotent."""
        repaired = []
        for record in await self._list_active():
            body = self.load(record)
            task = None if record.task_id is None else await self._store.tasks.find(record.task_id)
            if task is not None and not task.finished and not self.is_late(record.id, body, task):
                continue
            guard, settlement = replacing(task, "repair", f"The {record.entity} {record.name} has another task.")
            new = self.next_task(record.id, body, await self._store.now())
            change = ChangeRecord(record.id, record.version, record.body, task_id=new.id)
            answer = await self._committer.submit(Unit(guard, settlement, (new,), rows=(change,)), self._patience)
            if answer.verdict is Verdict.DONE:
                repaired.append(record.name or record.id)
        return repaired

    async def _list_active(self) -> list[Record]:
        which = RecordFilter(self.machine.entity, self._namespace, states=(ACTIVE,), live=True)
        return [record async for record in every_record(self._store, which) if self._readable(record)]

    def _readable(self, record: Record) -> bool:
        """Return whether this process can read the body; if not, a process with its codec handles the record."""
        try:
            self.load(record)
        except UnreadableValue:
            return False
        return True

    async def list_moves(self, name: str) -> list[Move]:
        """Return its moves, oldest first."""
        return await self._store.log.list_moves((await self._get_record(name)).id)

    async def _page(self, ended: bool, limit: int, before_id: str | None) -> list[Record]:
        """Return a page of records, newest first: the live ones, with `ended` also those that have ended."""
        check_limit(limit)
        before_id = None if before_id is None else parse_id(before_id, "cursor")
        which = RecordFilter(self.machine.entity, self._namespace, live=None if ended else True, before_id=before_id)
        return await self._store.records.list_matching(which, limit)

    async def _get_record(self, name: str, *, exact: bool = False) -> Record:
        """Return the live record of that name, or the record of that id; see `find_by_name_or_id`."""
        record = await find_by_name_or_id(self._store, self._namespace, self.machine.entity, name, exact=exact)
        if record is None:
            raise self.not_found(name)
        return record

    async def _put(self, name: str, body: B, *, paused: bool, actor: str, items: tuple[tuple[str, str | None], ...] = ()) -> str:
        """Store a new record with its items, and its task unless it begins paused; return its id."""
        record_id, text = self._ids.new_id(), self.save(body)
        tasks = () if paused else (self.next_task(record_id, body, await self._store.now()),)
        record = Record(
            id=record_id,
            namespace=self._namespace,
            entity=self.machine.entity,
            name=name,
            state=ACTIVE,
            body=text,
            task_id=tasks[0].id if tasks else None,
        )
        rows: tuple[Row, ...] = (PutRecord(record), *((PutItems(record_id, items),) if items else ()))
        if paused:
            rows = (*rows, ChangeRecord(record_id, 0, text, "pause", ACTIVE, PAUSED, actor=actor))
        reach("operate.before_commit")
        answer = await self._committer.submit(Unit(tasks=tasks, rows=rows), self._patience)
        reach("operate.after_commit")
        if name in answer.existing:
            what = self.machine.entity.replace("_", " ")
            raise self.exists(f"Another {what} has the name {name} already; remove it first, or choose another name.")
        return record_id

    async def _operate(self, name: str, move: str, actor: str, decide: Callable[[B, int], B], unless: str | None = None) -> Record:
        """Make an operator's move on the record and replace its task, guarded by the version that was read."""
        entity = self.machine.entity

        async def attempt() -> Record:
            record = await self._get_record(name, exact=move == "remove")
            if record.state == unless:
                return record
            state = self.machine.target(record.state, move)
            if state is None:
                raise IllegalMove(entity, record.name or record.id, record.state, move, self.machine.possible(record.state))
            now = await self._store.now()
            if state in self.machine.final and not self._readable(record):
                text, tasks = record.body, []  # it is kept as it was found
            else:
                body = decide(self.load_shown(record)[1] if move == "edit" else self.load(record), now)
                text, tasks = self.save(body), [self.next_task(record.id, body, now)] if state == ACTIVE else []
            change = ChangeRecord(
                record.id,
                record.version,
                text,
                move,
                record.state,
                state,
                ended=state in self.machine.final,
                actor=actor,
                task_id=tasks[0].id if tasks else None,
            )
            task = None if record.task_id is None else await self._store.tasks.find(record.task_id)
            guard, settlement = replacing(task, actor, f"The {entity} {record.name}: {move} by {actor}.")
            rows = (change, *await self.follow(record, state, actor))
            await self._committer.commit(Unit(guard, settlement, tuple(tasks), rows=rows), self._patience)
            return await self._get_record(record.id)

        return await self._committer.transact(attempt, f"{move} the {entity} {name}")


def is_placeholder(body: ScheduleBody | WatcherBody) -> bool:
    """Return whether the body stands for one that cannot be read."""
    return not body.target.kind


def replacing(task: Task | None, actor: str, reason: str) -> tuple[Seen | None, Finish | None]:
    """Return the guard and settlement of a unit that replaces this task, if it is live."""
    if task is None or task.finished:
        return None, None
    error = encode({"code": "canceled", "message": reason})
    finish = Finish("cancel", TaskState.CANCELED, error=error, error_code="canceled", actor=actor)
    return Seen.of(task), finish


async def forget(store: Store, task: Task) -> None:
    """Remove the finished task of a turn without changes, and its moves, immediately."""
    try:
        await store.retention.prune_trees(Rules(task.namespace, 0, 0), [task.root_id], _PAGE)
    except StoreError:
        pass  # retention prunes it later


def unit_of(prepared: list[Prepared], rows: tuple[Row, ...], tasks: tuple[NewTask, ...] = (), **more: Any) -> Unit:
    """Return a unit that starts the prepared work, with further rows and tasks."""
    new = (*(task for each in prepared for task in each.tasks), *tasks)
    return Unit(tasks=new, rows=(*(row for each in prepared for row in each.rows), *rows), **more)
