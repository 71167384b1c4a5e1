"""The open database that the parts of `PostgresStore` share, and the sessions on its connections.

Each part implements one port of `treadle.kernel.store.ports`, which documents its methods.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from treadle.kernel.store.process import check_process
from treadle.model.clock import Clock
from treadle.model.errors import InvalidInput, NotOpen, StoreBusy
from treadle.model.names import QueueKey
from treadle.model.tasks import NewTask
from treadle.stores.postgres.connection.address import DatabaseAddress
from treadle.stores.postgres.connection.connect import (
    LISTS,
    Connector,
    Pool,
    PostgresConnection,
    plain,
    row_count,
    sparse,
    texts,
    words,
)
from treadle.stores.postgres.connection.errors import translated
from treadle.stores.rules.units import Inserted, values_of
from treadle.stores.session import FILES
from treadle.stores.statements import Statement, load_shared

if TYPE_CHECKING:
    from treadle.stores.postgres.servers import LivenessLocks

T = TypeVar("T")

_STATEMENTS = load_shared(__package__, *FILES)
_TRIES = 5


class PostgresSession:
    """A `Session` on a connection."""

    def __init__(self, connection: PostgresConnection) -> None:
        self.connection = connection

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        return await self.connection.fetch(_STATEMENTS[name].text, *_bind(_STATEMENTS[name], values))

    async def fetch_as(self, kind: type[T], name: str, /, **values: Any) -> list[T]:
        return [kind(**texts(row)) for row in await self.fetch(name, **values)]

    async def execute(self, name: str, /, **values: Any) -> int:
        return row_count(await self.connection.execute(_STATEMENTS[name].text, *_bind(_STATEMENTS[name], values)))

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        transaction: AbstractAsyncContextManager[Any] = self.connection.transaction()
        return transaction

    def joined(self) -> AbstractAsyncContextManager[Any]:
        return nullcontext() if self.connection.is_in_transaction() else self.transaction()

    async def coordinate(self, name: str, /, **values: Any) -> None:
        await self.connection.execute(_STATEMENTS[name].text, *_bind(_STATEMENTS[name], values))

    async def insert_tasks(self, tasks: Sequence[NewTask], queue_ids: Mapping[QueueKey, int], *, checked: bool = False) -> Inserted:
        """A second live task of a step is an error."""
        inserted = Inserted(tasks)
        to_check = [] if checked else list({queue_ids[task.queue] for task in tasks})
        # Keys in one order, so that two transactions that insert the same keys never wait for each other.
        wanted = sorted(tasks, key=lambda task: (task.unique_key is None, task.queue.namespace, task.unique_key or ""))
        for _ in range(_TRIES):
            values = [values_of(task, queue_ids[task.queue]) for task in wanted]
            if len(values) == 1:
                rows = await self.connection.fetch(_STATEMENTS["insert_task"].text, *values[0], to_check)
            else:
                rows = await self.fetch("insert_tasks", rows=values, queue_ids=to_check)
            inserted.ids.update([row[0] for row in rows])
            if None in inserted.ids:
                return Inserted(shut=True)
            refused = {task.id: task for task in wanted if (task.unique_key or task.step_id) and task.id not in inserted.ids}
            wanted = await self._explain(refused, inserted) if refused else []
            if not wanted:
                return inserted
        raise StoreBusy(
            f"The unique key or step of task {wanted[0].id} changed hands {_TRIES} times while it was inserted; try again."
        )

    async def _explain(self, refused: Mapping[str, NewTask], inserted: Inserted) -> list[NewTask]:
        """Note the holders of the keys of refused tasks; return the tasks with a key that is free again."""
        keys = [(task.id, task.queue.namespace, task.unique_key, task.step_id) for task in refused.values()]
        free = []
        for task_id, exists, holder_id, rival_id in await self.fetch("explain_refusals", rows=keys):
            if exists:
                continue
            if holder_id is not None:
                inserted.holders[task_id] = holder_id
            elif rival_id is not None:
                raise InvalidInput(
                    f"The step {refused[task_id].step_id} has a live task already, {rival_id}; there can be only one."
                )
            else:
                free.append(refused[task_id])
        return free


def _bind(statement: Statement, values: Mapping[str, Any]) -> list[Any]:
    """Return the values of the parameters in order: rows as a column for each, arrays in the form that the statement expects."""
    bound: list[Any] = []
    for parameter in statement.parameters:
        if not parameter.startswith("*"):
            bound.append(values[parameter])
        elif values[parameter[1:]]:
            bound += zip(*values[parameter[1:]], strict=True)
    for position, kind in statement.text_arrays:
        column = bound[position]
        bound[position] = words(column) if kind == "text" or None in column else plain(column)
    return [sparse(list(value)) if isinstance(value, tuple) else value for value in bound]


SessionWork = Callable[[PostgresSession], Coroutine[Any, Any, T]]


class PostgresDatabase:
    """A schema of a PostgreSQL database: the connector, the pools for work and for lists, and the known queues."""

    seqs_in_order = False  # the order of seqs is not the order of commits (D9)

    def __init__(self, address: DatabaseAddress, clock: Clock) -> None:
        self.url = address.shown
        self.address = address
        self.clock = clock
        self.channel = address.channel
        self.connector = Connector(address)
        self.hot: Pool | None = None
        self.reads: Pool | None = None
        self.liveness_locks: LivenessLocks | None = None
        """The sessions of the servers of this process."""
        self.queues: dict[int, QueueKey] = {}
        self.queue_ids: dict[QueueKey, int] = {}
        self.pid = os.getpid()
        """The process that opened it."""
        self.slowed: set[int] = set()
        """Queues that had a rate or were paused when they were last listed; a hint only."""

    @asynccontextmanager
    async def borrow(self, mode: str | None = "hot") -> AsyncIterator[PostgresConnection]:
        """Borrow a connection of a mode.

        `hot`: for statements that touch few rows; `lists`: for lists of partitioned tables, which plans each statement once, for
        any values, so that no condition that decides which index is used, and no bound of a page, may be optional; None: for
        other lists and counts, which plans each statement for its values.
        """
        with translated(self.url):
            pool = self.pool(self.hot if mode == "hot" else self.reads)
            async with pool.connection(LISTS if mode == "lists" else None) as connection:
                yield connection

    async def fetch(self, name: str, /, **values: Any) -> list[Any]:
        """Run a statement on a connection of its mode (`hot` or `lists`; otherwise one for reading)."""
        async with self.borrow(_STATEMENTS[name].mode) as connection:
            return await PostgresSession(connection).fetch(name, **values)

    async def fetch_as(self, kind: type[T], name: str, /, **values: Any) -> list[T]:
        return [kind(**texts(row)) for row in await self.fetch(name, **values)]

    async def execute(self, name: str, /, **values: Any) -> int:
        return await self.read(lambda session: session.execute(name, **values))

    async def read(self, work: SessionWork[T]) -> T:
        async with self.borrow() as connection:
            return await work(PostgresSession(connection))

    async def use(self, work: SessionWork[T]) -> T:
        async with self.borrow(None) as connection:
            return await work(PostgresSession(connection))

    async def write(self, work: SessionWork[T]) -> T:
        async with self.borrow() as connection, connection.transaction():
            return await work(PostgresSession(connection))

    def pool(self, pool: Pool | None) -> Pool:
        """Return the pool; raises `NotOpen` without one."""
        check_process(self.pid)
        if pool is None:
            raise NotOpen
        return pool

    async def list_queues(self) -> dict[int, QueueKey]:
        """List the queues, and remember them and those that need a closer look."""
        rows = await self.read(lambda session: session.fetch("list_queues"))
        self.queues, self.slowed = {row[0]: QueueKey(*row[1:5]) for row in rows}, {row[0] for row in rows if row[5]}
        self.queue_ids = {queue: queue_id for queue_id, queue in self.queues.items()}
        return dict(self.queues)

    async def find_queue_ids(self, queues: Sequence[QueueKey]) -> dict[QueueKey, int]:
        """Return the ids of the queues; create missing queues."""
        missing = {queue for queue in queues if queue not in self.queue_ids}
        if missing:
            await self.list_queues()
            missing = {queue for queue in missing if queue not in self.queue_ids}
        if missing:
            await self.write(lambda session: _insert_queues(session, missing))
            await self.list_queues()
        return {queue: self.queue_ids[queue] for queue in queues}


async def _insert_queues(session: PostgresSession, queues: Collection[QueueKey]) -> None:
    """Create missing queues with the settings of their list."""
    await session.coordinate("lock_lists")
    await session.execute("insert_queues", rows=sorted(queues))
