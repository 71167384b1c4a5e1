"""Ports written once for both stores, over the statements of their own `.sql` files, by name.

A statement has the same name, parameters and columns in both. The ports of `treadle.kernel.store.ports` document the methods.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from treadle.kernel.store.database import ReadPort, unique, uses, writes
from treadle.kernel.store.queries import (
    FinishedCounts,
    LeaseExtension,
    QueueDepth,
    Renewal,
    TaskFilter,
    Touch,
)
from treadle.kernel.store.transfer import NamespaceImport, StoredRow
from treadle.kernel.store.units import Row
from treadle.model.errors import StoreBusy
from treadle.model.lists import Limit, QueueRule, TaskList
from treadle.model.names import QueueKey
from treadle.model.records import HandlerRegistration
from treadle.model.runs import FlowVersion
from treadle.model.states import FINAL_TASK_STATES
from treadle.model.tasks import Server, Task
from treadle.stores import leases, limits
from treadle.stores.rules.encoding import registration_of, server_of
from treadle.stores.rules.namespaces import from_common
from treadle.stores.session import Session
from treadle.stores.writes import write_entry

_TRIES = 20
"""Attempts to publish the next version of a flow while other processes publish it too."""

TableRow = tuple[str, StoredRow]
"""The name of a table and one of its rows."""

_FINAL = frozenset(FINAL_TASK_STATES)
_RULE_COLUMNS = ("rate", "burst", "tokens", "tokens_at", "backlog_limit", "limit_key")


class OperatorPort(ReadPort):
    """The `OperatorStore` of both stores."""

    async def list_lists(self) -> list[TaskList]:
        return await self._database.fetch_as(TaskList, "list_lists")

    async def list_queue_rules(self) -> list[QueueRule]:
        return [queue_rule(*row) for row in await self._database.fetch("list_queue_rules")]

    @uses
    async def set_list(
        self,
        session: Session,
        namespace: str,
        task_list: str,
        *,
        paused: bool | None = None,
        accepting: bool | None = None,
        no_handler: str | None = None,
        entry: tuple[Row, ...] = (),
    ) -> tuple[int, ...]:
        names = {"namespace": namespace, "task_list": task_list}
        async with session.transaction():
            await write_entry(session, entry)
            await session.coordinate("lock_lists")
            await session.execute("set_list", **names, paused=paused, accepting=accepting, no_handler=no_handler)
            queues = {row[0] for row in await session.fetch("mark_list", **names)}
            if paused is not None:
                keys = await session.fetch("recall_list" if paused else "list_waiting_keys", **names)
                queues |= await limits.admit(session, {(namespace, row[0]) for row in keys})
        return tuple(sorted(queues))

    @writes
    async def set_rate(
        self, session: Session, queue_id: int, rate: float | None, burst: int | None, entry: tuple[Row, ...] = ()
    ) -> None:
        await write_entry(session, entry)
        await session.execute("set_rate", queue_id=queue_id, rate=rate, burst=burst)

    @uses
    async def set_limit(
        self, session: Session, namespace: str, key: str, max_running: int | None, entry: tuple[Row, ...] = ()
    ) -> tuple[int, ...]:
        async with session.transaction():
            await write_entry(session, entry)
            await limits.set_limit(session, namespace, key, max_running)
        return tuple(sorted(await limits.apply_limit(session, namespace, key)))

    @uses
    async def set_key_rate(
        self, session: Session, namespace: str, key: str, rate: float | None, burst: int | None, entry: tuple[Row, ...] = ()
    ) -> tuple[int, ...]:
        async with session.transaction():
            await write_entry(session, entry)
            await limits.set_key_rate(session, namespace, key, rate, burst)
        return tuple(sorted(await limits.apply_limit(session, namespace, key)))

    @uses
    async def set_handler_key(
        self, session: Session, namespace: str, name: str, key: str | None, entry: tuple[Row, ...] = ()
    ) -> tuple[int, ...]:
        async with session.transaction():
            await write_entry(session, entry)
            await limits.set_handler_key(session, namespace, name, key)
        return () if key is None else tuple(sorted(await limits.apply_limit(session, namespace, key, name)))

    @writes
    async def set_backlog_limit(
        self, session: Session, queue_id: int, backlog_limit: int | None, entry: tuple[Row, ...] = ()
    ) -> None:
        await write_entry(session, entry)
        await session.execute("set_backlog_limit", queue_id=queue_id, backlog_limit=backlog_limit)

    async def list_limits(self, namespace: str) -> list[Limit]:
        return await self._database.fetch_as(Limit, "list_limits", namespace=namespace)

    async def list_admitted(self, namespace: str, key: str, limit: int) -> list[str]:
        return await self._list_ids("list_admitted", namespace=namespace, key=key, limit=max(limit, 0))

    async def list_handler_keys(self, namespace: str) -> dict[str, str]:
        return dict(await self._database.fetch("list_handler_keys", namespace=namespace))

    @writes
    async def publish_flow(
        self, session: Session, namespace: str, name: str, flow_id: str, actor: str, entry: tuple[Row, ...] = ()
    ) -> FlowVersion:
        values = {"namespace": namespace, "name": name}
        for _ in range(_TRIES):
            if inserted := await session.fetch_as(FlowVersion, "publish_flow", **values, flow_id=flow_id, actor=actor):
                await write_entry(session, entry)
                return inserted[0]
            newest = await session.fetch_as(FlowVersion, "find_flow_version", **values, version=None)
            if newest and newest[0].flow_id == flow_id:
                return newest[0]
        raise StoreBusy(f"Other processes are publishing the flow {name}; try again.")

    async def list_handlers(self, namespace: str) -> list[HandlerRegistration]:
        return [registration_of(row) for row in await self._database.fetch("list_handlers", namespace=namespace)]

    @writes
    async def save_handler(
        self, session: Session, namespace: str, registration: HandlerRegistration, entry: tuple[Row, ...] = ()
    ) -> None:
        await write_entry(session, entry)
        await session.execute(
            "save_handler",
            namespace=namespace,
            facet_name=registration.facet_name,
            module_uri=registration.module_uri,
            entrypoint=registration.entrypoint,
            version=registration.version,
            checksum=registration.checksum,
            timeout_for=registration.timeout_ms,
            requirements=msgspec.json.encode(registration.requirements).decode(),
            metadata=msgspec.json.encode(registration.metadata).decode(),
        )

    @writes
    async def delete_handler(self, session: Session, namespace: str, facet_name: str, entry: tuple[Row, ...] = ()) -> bool:
        if not await session.execute("delete_handler", namespace=namespace, facet_name=facet_name):
            return False
        await write_entry(session, entry)
        return True


def queue_rule(
    queue_id: int, namespace: str, kind: str, task_list: str, name: str, paused: Any, accepting: Any, *rest: Any
) -> QueueRule:
    """Return a row of the queues as a rule; SQLite has numbers for truth values."""
    values = dict(zip(_RULE_COLUMNS, rest, strict=True))
    queue = QueueKey(namespace, kind, task_list, name)
    return QueueRule(queue_id=queue_id, queue=queue, paused=bool(paused), accepting=bool(accepting), **values)


class TaskPort(ReadPort):
    """The part of the `TaskStore` that both stores have in common."""

    async def extend(self, renewals: Sequence[Renewal], lease_for: int) -> dict[str, LeaseExtension]:
        channel = self._database.channel
        return await self._database.write(lambda session: leases.extend(session, channel, renewals, lease_for, within_timeout=True))

    async def expire_leases_of(self, owner_ids: Sequence[str]) -> int:
        return await self._database.execute("expire_leases", owners=owner_ids)

    async def list_unpolled(self, queue_ids: Sequence[int], limit: int) -> list[str]:
        return await self._list_ids("list_unpolled", queue_ids=queue_ids, limit=max(limit, 0))

    async def list_failing(self, queue_ids: Sequence[int], limit: int) -> list[str]:
        return await self._list_ids("list_failing", queue_ids=queue_ids, limit=max(limit, 0))

    async def find(self, task_id: str) -> Task | None:
        return await self._find(Task, "find_tasks", ids=[task_id])

    async def find_many(self, task_ids: Sequence[str], *, ended: bool = False) -> list[Task]:
        tasks = await self._database.fetch_as(Task, "find_finished" if ended else "find_tasks", ids=unique(task_ids))
        return sorted(tasks, key=lambda task: (task.created_at, task.id), reverse=True)

    async def find_unique(self, namespace: str, keys: Sequence[str]) -> dict[str, str]:
        return dict(await self._database.fetch("find_unique", namespace=namespace, keys=keys))

    async def list_matching(self, which: TaskFilter, limit: int) -> list[Task]:
        final = _FINAL.intersection(which.states)
        values = msgspec.structs.asdict(which) | {
            "states": which.states or None,
            "live": len(final) < len(which.states) or not which.states,
            "ended": bool(final) or not which.states,
            "limit": max(limit, 0),
            **await self._place("find_task_created_at", which.before, which.before_id),
        }
        return await self._database.fetch_as(Task, "list_tasks" if which.run_id is None else "list_run_tasks", **values)

    async def list_depths(self) -> list[QueueDepth]:
        return [
            QueueDepth(queue_id, QueueKey(namespace, kind, task_list, name), *counts)
            for queue_id, namespace, kind, task_list, name, *counts in await self._database.fetch("list_depths")
        ]

    async def count_finished(self) -> FinishedCounts:
        return FinishedCounts(dict(await self._database.fetch("count_finished")))


class NamespacePort(ReadPort):
    """The part of the `NamespaceStore` that both stores have in common; rows are read and written by each."""

    def _read(self, session: Any, queue_ids: Mapping[QueueKey, int], namespace: str, shift: int = 0) -> AsyncIterator[TableRow]:
        """Yield the rows of the namespace with their tables; `shift` was added to the numbers of transitions."""
        raise NotImplementedError

    async def _write(self, session: Any, table: str, rows: list[StoredRow]) -> None:
        """Insert rows of a table."""
        raise NotImplementedError

    async def list_names(self) -> list[str]:
        return await self._list_ids("list_namespaces")

    @uses
    async def import_rows(self, session: Session, incoming: NamespaceImport) -> None:
        namespace, header = incoming.namespace, incoming.header
        async with session.transaction():
            queues = await list_queues(session)
            async for table, row in self._read(session, queues, namespace):
                incoming.refuse_row(table, row)
            ((before,),) = await session.fetch("reserve_seqs", count=header.last_seq - header.first_seq + 1)
            shift = before + 1 - header.first_seq
            for table, batch in incoming.batches():
                await self._write(session, table, from_common(batch, namespace, queues, shift))
                queues = await list_queues(session) if table == "queues" else queues
            async for table, row in self._read(session, queues, namespace, shift):
                incoming.check_row(table, row)
            incoming.finish()


async def list_queues(session: Session) -> dict[QueueKey, int]:
    """Return the ids of all queues."""
    return {QueueKey(*row[1:5]): row[0] for row in await session.fetch("list_queues")}


class ServerPort(ReadPort):
    """The part of the `ServerStore` that both stores have in common."""

    async def list_all(self, namespace: str | None = None) -> list[Server]:
        return [server_of(row) for row in await self._database.fetch_as(dict, "list_servers", namespace=namespace)]

    @writes
    async def save(self, session: Session, server: Server) -> None:
        await leases.beat(session, server)

    async def touch(self, touches: Sequence[Touch]) -> list[Server]:
        ordered = sorted(touches, key=lambda touch: touch.server_id)
        rows = [(touch.server_id, touch.state, touch.handled, touch.failed, touch.running) for touch in ordered]
        return await self._touch(rows) if rows else []

    @writes
    async def _touch(self, session: Session, rows: list[tuple[Any, ...]]) -> list[Server]:
        return [server_of(row) for row in await session.fetch_as(dict, "touch_servers", rows=rows)]

    async def end(self, evidence: Mapping[str, str | None]) -> list[str]:
        return await self._end(sorted(evidence.items())) if evidence else []

    @writes
    async def _end(self, session: Session, rows: list[tuple[str, str | None]]) -> list[str]:
        return [row[0] for row in await session.fetch("end_servers", rows=rows)]
