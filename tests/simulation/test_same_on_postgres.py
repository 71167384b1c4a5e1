"""The store calls of a history on SQLite, replayed on PostgreSQL at the same times: the same answers and final tables.

Histories prove the kernel on SQLite's SQL; this carries them over. Numbers that a store gives (`seq`, lane ids) are compared by
what they stand for. Lanes whose first tasks are equally old may be taken from in any order, so claims are asked of the lane
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
import pytest
from tests.contract.databases import Postgres, is_ready
from tests.simulation.recording import Call, Recording, record

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.model.names import Lane
from treadle_conformance.task_steps import Line

TABLES = (
    "tasks",
    "finished",
    "log",
    "lanes",
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
NUMBERS = ("seq", "lane_id", "now")
UNORDERED = (
    "servers.touch",
    "runs.load_steps",
    "runs.list_steps",
    "records.find_outcomes",
    "runs.find_many",
    "operators.list_limits",
    "tasks.list_depths",
)
UNLIKE = (
    *("log.find_last_seq", "log.list_events", "tasks.list_lanes", "tasks.lane_ids", "operators.list_lane_rules", "now"),
    *("health.describe", "servers.list_all", "retention.compact"),
    *("beat", "servers.list_sightings"),
)
"""Calls whose answers are numbers that a store gives, or the clock, or tell of sessions, which only PostgreSQL has."""


class Replay:
    """One recording, asked of another store."""

    def __init__(self, recording: Recording, database: Postgres, store: Store, line: Line) -> None:
        self._recording, self._database, self._store, self._line = recording, database, store, line
        self._lanes: dict[int, Lane] = {
            row["id"]: Lane(row["namespace"], row["kind"], row["task_list"], row["name"]) for row in recording.tables["lanes"]
        }
        self._ids: dict[Lane, int] = {}

    async def ask_all(self) -> None:
        for number, call in enumerate(self._recording.calls):
            await self._database.clock.advance(call.at - self._database.clock.now())
            answer = await self._ask(call)
            if call.name not in UNLIKE:
                mine, theirs = self._plain(call.name, call.answer, self._lanes), self._plain(call.name, answer, self._named())
                if call.name in ("commit", "tasks.wake"):
                    mine, theirs = await self._without_held(mine, theirs)
                if call.name == "operators.set_list":
                    theirs = await self._without_empty(mine, theirs)
                assert theirs == mine, f"call {number} ({call.name}): {call.arguments} {call.options}"

    async def _without_empty(self, mine: list[Lane], theirs: list[Lane]) -> list[Lane]:
        """The lanes without those that PostgreSQL made for a commit that was then refused."""
        used = {task.lane for task in await self._store.tasks.list_matching(TaskFilter(), 1_000)}
        return [lane for lane in theirs if lane in mine or lane in used]

    async def _without_held(self, mine: Any, theirs: Any) -> tuple[Any, Any]:
        """The answers without the lanes in which PostgreSQL held a ready task; commits to SQLite hold no rows."""
        for one, other in zip(mine, theirs, strict=True) if isinstance(mine, list) else [(mine, theirs)]:
            lanes, reported = one.pop("lanes"), other.pop("lanes")
            assert {*lanes} <= {*reported}
            if extra := {*reported} - {*lanes}:
                assert extra <= {task.lane for task in await self._store.tasks.list_matching(TaskFilter(), 1_000) if is_ready(task)}
        return mine, theirs

    async def _ask(self, call: Call) -> Any:
        if call.name in RENEWER_CALLS:
            return await getattr(self._line, call.name.removeprefix("list_"))(*call.arguments)
        arguments = call.arguments
        if call.name in ("tasks.claim", "tasks.next_token_for", "operators.set_rate", "operators.set_backlog_limit"):
            taken = {task.lane_id for task in call.answer} if call.name == "tasks.claim" else set()
            arguments = (await self._translated(arguments[0], taken), *arguments[1:])
        return await attrgetter(call.name)(self._store)(*arguments, **call.options)

    async def _translated(self, lane_ids: Any, taken: set[int]) -> Any:
        """The lanes by the numbers of this store; of a claim that took something, the one from which it did."""
        given = [lane_ids] if isinstance(lane_ids, int) else list(lane_ids)
        lanes = [self._lanes[lane_id] for lane_id in (taken or given)]
        if any(lane not in self._ids for lane in lanes):
            self._ids |= await self._store.tasks.lane_ids(lanes)
        found = [self._ids[lane] for lane in lanes]
        return found[0] if isinstance(lane_ids, int) else found

    def _named(self) -> dict[int, Lane]:
        rows = self._database.rows("lanes")
        return {row["id"]: Lane(row["namespace"], row["kind"], row["task_list"], row["name"]) for row in rows}

    def _plain(self, name: str, answer: Any, lanes: dict[int, Lane]) -> Any:
        if name in ("operators.set_list", "operators.set_limit"):
            return sorted(lanes[lane_id] for lane_id in answer)
        plain = _plain(answer, lanes)
        if name == "retention.find_prunable":
            return {**plain, "roots": sorted(plain["roots"])}
        return sorted(plain, key=repr) if name in (*UNORDERED, "tasks.claim") else plain

    def compare(self) -> None:
        for table in TABLES:
            mine = _rows(self._recording.tables[table], self._lanes)
            theirs = _rows(self._database.rows(RENAMED.get(table, table)), self._named())
            assert len(theirs) == len(mine), table
            for one, other in zip(theirs, mine, strict=True):
                assert one | OWN.get(table, {}) == other | OWN.get(table, {}), table


def _plain(value: Any, lanes: dict[int, Lane]) -> Any:
    """The value without the numbers of its store."""
    if isinstance(value, msgspec.Struct | Lane) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        names = value._fields if isinstance(value, Lane) else [f.name for f in _fields(value)]
        plain = {name: _plain(getattr(value, name), lanes) for name in names if name not in (*NUMBERS, "lane_ids")}
        if "lane_ids" in names:
            plain["lanes"] = sorted(lanes[lane_id] for lane_id in value.lane_ids)
        return plain
    if isinstance(value, dict):
        return {key: _plain(each, lanes) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each, lanes) for each in value]
    return sorted(value) if isinstance(value, set | frozenset) else value


def _fields(value: Any) -> Any:
    return msgspec.structs.fields(value) if isinstance(value, msgspec.Struct) else dataclasses.fields(value)


def _rows(rows: list[dict[str, Any]], lanes: dict[int, Lane]) -> list[Any]:
    plain = []
    for row in rows:
        kept = {
            name: str(value) if isinstance(value, UUID) else int(value) if isinstance(value, bool) else value
            for name, value in row.items()
            if name != "seq"
        }
        if "lane_id" in kept:
            kept["lane_id"] = lanes[kept["lane_id"]]
        if isinstance(kept.get("id"), int):
            kept["id"] = lanes[kept["id"]]
        plain.append(kept)
    return sorted(plain, key=lambda row: repr(sorted(row.items(), key=lambda item: item[0])))


@pytest.mark.parametrize("seed", range(4))
async def test_a_history_goes_the_same_way_on_postgresql(request, tmp_path, seed):
    with ThreadPoolExecutor(1) as apart:  # a history has an event loop of its own
        recording, report = apart.submit(record, seed, TABLES).result()
    assert report.problems == []
    database = Postgres(request, tmp_path)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(database.close)
        store = await database.open_store()
        line = Line(store.servers.lease_connection(), stack.enter_context(ThreadPoolExecutor(1)))
        stack.push_async_callback(line.close)
        replay = Replay(recording, database, store, line)
        await replay.ask_all()
        replay.compare()
