"""The store calls of a history on SQLite, replayed on PostgreSQL at the same times: the same answers and final tables.

Histories prove the kernel on SQLite's SQL; this carries them over. Numbers that a store gives (`seq`, queue ids) are compared by
what they stand for. Queues whose first tasks are equally old may be taken from in any order, so claims are asked of the queue
that was taken from.
"""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec
from tests.contract.databases import Postgres, is_ready
from tests.simulation.recording import Call, Recording

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import Seen
from treadle.model.names import QueueKey
from treadle_conformance.task_steps import Line

TABLES = (
    "tasks",
    "finished",
    "log",
    "queues",
    "runs",
    "steps",
    "records",
    "record_items",
    "mail",
    "idempotency_outcomes",
    "dedupe",
    "flows",
    "blobs",
    "limits",
    "lists",
    "servers",
)
RENAMED = {"servers": "registered_servers"}
"""Tables of PostgreSQL with other names; `servers` has the columns that older versions know."""
OWN = {"servers": {"session": None}}
"""Columns that only PostgreSQL fills."""
RENEWER_CALLS = ("renew", "list_held", "beat")
NUMBERS = ("seq", "queue_id", "now")
UNORDERED = (
    "servers.touch",
    "runs.load_steps",
    "runs.list_steps",
    "records.find_outcomes",
    "runs.find_many",
    "operators.list_limits",
    "tasks.list_depths",
    "metrics.tally",
)
UNLIKE = (
    *("log.find_last_seq", "log.list_events", "tasks.list_queues", "tasks.queue_ids", "operators.list_queue_rules", "now"),
    *("health.describe", "servers.list_all", "retention.compact"),
    *("beat", "servers.list_sightings"),
)
"""Calls whose answers are numbers that a store gives, or the clock, or tell of sessions, which only PostgreSQL has."""


OF_QUEUES = (
    *("tasks.claim", "tasks.next_token_for", "tasks.list_unpolled", "tasks.list_failing"),
    *("operators.set_rate", "operators.set_backlog_limit"),
)
"""Calls whose first argument is the number of a queue, or several."""


class Replay:
    """One recording, asked of another store."""

    def __init__(self, recording: Recording, database: Postgres, store: Store, line: Line) -> None:
        self._recording, self._database, self._store, self._line = recording, database, store, line
        self._queues: dict[int, QueueKey] = {
            row["id"]: QueueKey(row["namespace"], row["kind"], row["task_list"], row["name"]) for row in recording.tables["queues"]
        }
        self._ids: dict[QueueKey, int] = {}

    async def ask_all(self) -> None:
        for number, call in enumerate(self._recording.calls):
            await self._database.clock.advance(call.at - self._database.clock.now())
            answer = await self._ask(call)
            if call.name not in UNLIKE:
                mine, theirs = self._plain(call.name, call.answer, self._queues), self._plain(call.name, answer, self._named())
                if call.name == "commit" and self._database.loses_answers:
                    mine, theirs = (_repeatable(call.arguments[0], answers) for answers in (mine, theirs))
                elif call.name in ("commit", "tasks.wake"):
                    mine, theirs = await self._without_held(mine, theirs)
                if call.name == "operators.set_list":
                    theirs = await self._without_empty(mine, theirs)
                assert theirs == mine, f"call {number} ({call.name}): {call.arguments} {call.options}: {theirs}, not {mine}"

    async def _without_empty(self, mine: list[QueueKey], theirs: list[QueueKey]) -> list[QueueKey]:
        """The queues without those that PostgreSQL made for a commit that was then refused."""
        used = {task.queue for task in await self._store.tasks.list_matching(TaskFilter(), 1_000)}
        return [queue for queue in theirs if queue in mine or queue in used]

    async def _without_held(self, mine: Any, theirs: Any) -> tuple[Any, Any]:
        """The answers without the queues in which PostgreSQL held a ready task; commits to SQLite hold no rows."""
        for one, other in zip(mine, theirs, strict=True) if isinstance(mine, list) else [(mine, theirs)]:
            queues, reported = one.pop("queues"), other.pop("queues")
            assert {*queues} <= {*reported}
            if extra := {*reported} - {*queues}:
                assert extra <= {
                    task.queue for task in await self._store.tasks.list_matching(TaskFilter(), 1_000) if is_ready(task)
                }
        return mine, theirs

    async def _ask(self, call: Call) -> Any:
        if call.name in RENEWER_CALLS:
            return await getattr(self._line, call.name.removeprefix("list_"))(*call.arguments)
        arguments = call.arguments
        if call.name in OF_QUEUES:
            taken = {task.queue_id for task in call.answer} if call.name == "tasks.claim" else set()
            arguments = (await self._translated(arguments[0], taken), *arguments[1:])
        return await attrgetter(call.name)(self._store)(*arguments, **call.options)

    async def _translated(self, queue_ids: Any, taken: set[int]) -> Any:
        """The queues by the numbers of this store; of a claim that took something, the one from which it did."""
        given = [queue_ids] if isinstance(queue_ids, int) else list(queue_ids)
        queues = [self._queues[queue_id] for queue_id in (taken or given)]
        if any(queue not in self._ids for queue in queues):
            self._ids |= await self._store.tasks.queue_ids(queues)
        found = [self._ids[queue] for queue in queues]
        return found[0] if isinstance(queue_ids, int) else found

    def _named(self) -> dict[int, QueueKey]:
        rows = self._database.rows("queues")
        return {row["id"]: QueueKey(row["namespace"], row["kind"], row["task_list"], row["name"]) for row in rows}

    def _plain(self, name: str, answer: Any, queues: dict[int, QueueKey]) -> Any:
        if name in ("operators.set_list", "operators.set_limit"):
            return sorted(queues[queue_id] for queue_id in answer)
        plain = _plain(answer, queues)
        if name == "retention.find_prunable":
            return {**plain, "roots": sorted(plain["roots"])}
        return sorted(plain, key=repr) if name in (*UNORDERED, "tasks.claim") else plain

    def compare(self) -> None:
        for table in TABLES:
            mine = _rows(self._recording.tables[table], self._queues)
            theirs = _rows(self._database.rows(RENAMED.get(table, table)), self._named())
            assert len(theirs) == len(mine), table
            for one, other in zip(theirs, mine, strict=True):
                assert one | OWN.get(table, {}) == other | OWN.get(table, {}), table


def _plain(value: Any, queues: dict[int, QueueKey]) -> Any:
    """The value without the numbers of its store."""
    if isinstance(value, msgspec.Struct | QueueKey) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        names = value._fields if isinstance(value, QueueKey) else [f.name for f in _fields(value)]
        plain = {name: _plain(getattr(value, name), queues) for name in names if name not in (*NUMBERS, "queue_ids")}
        if "queue_ids" in names:
            plain["queues"] = sorted(queues[queue_id] for queue_id in value.queue_ids)
        return plain
    if isinstance(value, dict):
        return {key: _plain(each, queues) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, queues) for each in value]
    return sorted(value) if isinstance(value, set | frozenset) else value


def _repeatable(units: Any, answers: Any) -> list[Any]:
    """The verdicts on units that may be sent again: an operator's change, sent again, finds the task that it has changed."""
    return [answer["verdict"] for unit, answer in zip(units, answers, strict=True) if not isinstance(unit.guard, Seen)]


def _fields(value: Any) -> Any:
    return msgspec.structs.fields(value) if isinstance(value, msgspec.Struct) else dataclasses.fields(value)


def _rows(rows: list[dict[str, Any]], queues: dict[int, QueueKey]) -> list[Any]:
    plain = []
    for row in rows:
        kept = {
            name: str(value) if isinstance(value, UUID) else int(value) if isinstance(value, bool) else value
            for name, value in row.items()
            if name != "seq"
        }
        if "queue_id" in kept:
            kept["queue_id"] = queues[kept["queue_id"]]
        if isinstance(kept.get("id"), int):
            kept["id"] = queues[kept["id"]]
        plain.append(kept)
    return sorted(plain, key=lambda row: repr(sorted(row.items(), key=lambda item: item[0])))


async def replay(recording: Recording, database: Postgres) -> None:
    """Ask PostgreSQL what the recording asked SQLite: it must give the same answers, and have the same tables in the end."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        store = await database.open_store()
        line = Line(store.servers.lease_connection(), stack.enter_context(ThreadPoolExecutor(1)))
        stack.push_async_callback(line.close)
        again = Replay(recording, database, store, line)
        await again.ask_all()
        again.compare()
