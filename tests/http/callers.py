"""Every call of the contract with arguments that would act, every kind of caller, and the rows that a refused call must not change.

`tests/http/test_refusals.py` uses them on a server in its process, `make attack` on real ones.
"""

from __future__ import annotations

import types
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import apsw
import asyncpg
import msgspec

from treadle import Engine
from treadle.api.contract import PREFIX, ApiRecord, Call, Doc, Parameter
from treadle.api.dispatch import Issue
from treadle.api.flows import SourceText
from treadle.engine.operations import Operations
from treadle.interfaces.http.access import COOKIE
from treadle.model.access import OPEN, Scope

ISSUE = {
    "id": 1,
    "number": 1,
    "title": "t",
    "repository": {
        "id": 5,
        "name": "loom",
        "full_name": "weavers/loom",
        "owner": {"login": "weavers"},
        "clone_url": "git@example.org:weavers/loom.git",
        "default_branch": "main",
    },
}
FLOW = """namespace shop {
    event facet Price() => (total: Long)
    workflow Buy() => (total: Long) andThen {
        p = Price()
        yield Buy(total = p.total)
    }
}"""
CALLERS = [
    "nobody",
    "a wrong token",
    "a session without its CSRF token",
    "a page of another origin",
    *(f"{scope} for one list" for scope in Scope if scope is not Scope.ADMIN),
    *Scope,
]


HEARTBEAT = "dispatch.Issue"
"""In the row of the server that holds jobs, which changes without a call."""

COMMITS = "seqs ('commit"
"""At the beginning of the rows that count commits of SQLite, also those of heartbeats."""

GIVEN = ("task_list", "directory", "task", "cron", "everything", "decision", "wait_for")
"""Optional parameters that are sent, too."""


@dataclass
class Rows:
    """All rows of all tables but heartbeats, read again only after a commit."""

    version: Callable[[], Awaitable[int]]
    """A number that every commit changes."""
    read: Callable[[], Awaitable[list[str]]]
    seen: tuple[int, list[str]] = (-1, [])

    async def dump(self) -> list[str]:
        version = await self.version()
        if version != self.seen[0]:
            self.seen = version, await self.read()
        return self.seen[1]

    @asynccontextmanager
    async def unchanged(self, what: str) -> AsyncIterator[list[bool]]:
        """Yield a list for whether the block was refused; fail if it was and the rows have changed."""
        refused: list[bool] = []
        before = await self.dump()
        yield refused
        after = await self.dump() if any(refused) else before
        assert after == before, f"{what} was refused, but the store has changed: {set(before) ^ set(after)}"


def sqlite_rows(line: apsw.Connection) -> Rows:
    async def version() -> int:
        return int(line.execute("pragma data_version").fetchall()[0][0])

    async def read() -> list[str]:
        tables = line.execute("select name from sqlite_master where type = 'table' order by 1").fetchall()
        rows = [f"{name} {row}" for (name,) in tables for row in line.execute(f'select * from "{name}"')]
        return [each for each in rows if HEARTBEAT not in each and not each.startswith(COMMITS)]

    return Rows(version, read)


def postgres_rows(line: asyncpg.Connection) -> Rows:
    async def version() -> int:
        return int(await line.fetchval("select pg_snapshot_xmax(pg_current_snapshot())::text"))

    async def read() -> list[str]:
        tables = await line.fetch("select tablename from pg_tables where schemaname = current_schema() order by 1")
        rows = [str(row) for (name,) in tables for row in await line.fetch(f'select * from "{name}" as t order by t::text')]
        return [each for each in rows if HEARTBEAT not in each]

    return Rows(version, read)


async def populate(engine: Engine, folder: Path) -> dict[str, Any]:
    """Make one of everything; return arguments of calls by the names of their parameters."""
    api = Operations(engine, OPEN)
    await api.flows.publish("shop", [SourceText("shop.afl", FLOW)])
    run = await api.runs.start("shop", task_list="other")
    task = await api.tasks.enqueue("x", {}, task_list="other")
    worker = await api.work.register("w", ["x"], task_lists=["other"])
    (claimed,) = (await api.work.claim(worker.worker_id)).tasks
    job = await api.dispatch.enqueue(msgspec.convert(ISSUE, Issue))
    await api.dispatch.dequeue("worker-1")
    objective = await api.objectives.add("do it")
    await api.schedules.create("nightly", cron="0 3 * * *", task="x")
    await api.watchers.create("in", directory=str(folder), task="x")
    await api.alerts.create("nightly", when="worker_lost", to="https://ops.example.org/hook")
    await api.lists.pause("other")
    await api.tokens.create("spare", ["read"])
    return {
        "run_id": run.id,
        "runner_id": run.id,
        "workflow_id": run.id,
        "task_id": task.id,
        "any_id": task.id,
        "ids": [task.id],
        "worker_id": worker.worker_id,
        "claim_version": claimed.claim_version,
        "job_id": job.id,
        "objective_id": objective.objective_id,
        "flow": "shop",
        "source": FLOW,
        "task_list": "other",
        "task_lists": ["other"],
        "tasks": [{"name": "x", "task_list": "mine"}, {"name": "x", "task_list": "other"}],
        "directory": str(folder),
        "task": "x",
        "cron": "0 3 * * *",
        "everything": True,
        "issue": ISSUE,
        "when": "worker_lost",
        "to": "https://ops.example.org/hook",
        "lasting": 60,
        "scopes": ["read"],
        "token": "spare",
        "name": "nightly",
        "wait_for": 0.0,
    }


def arguments(ids: dict[str, Any], parameters: tuple[Parameter, ...] | list[Parameter]) -> dict[str, Any]:
    """Arguments that a caller with enough permissions could send, in a list that tokens for one list may not use."""
    return {
        each.name: ids[each.name] if each.name in ids else _example(each.hint, each.doc)
        for each in parameters
        if each.required or each.name in GIVEN
    }


def _example(hint: Any, doc: Doc | None = None) -> Any:
    """A value of the type: the documented example, if there is one."""
    if doc is not None and doc.example is not None:
        return doc.example
    if get_origin(hint) in (Union, types.UnionType):
        return _example(next(each for each in get_args(hint) if each is not types.NoneType))
    if hasattr(hint, "__metadata__"):
        return _example(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if isinstance(hint, type) and issubclass(hint, ApiRecord):
        return {name: _example(kind) for name, kind in get_type_hints(hint).items()}
    found = get_origin(hint) or hint
    if found is dict:
        return {}
    return (
        {str: "x", int: 1, float: 1.0, bool: True}.get(found) if found in (str, int, float, bool) else [_example(get_args(hint)[0])]
    )


async def headers_of(engine: Engine, who: str) -> dict[str, str]:
    """The headers of a caller of that kind."""
    tokens, name = engine.kernel.tokens, who.replace(" ", "-")
    if who == "nobody":
        return {}
    if who == "a wrong token":
        return {"Authorization": "Bearer tdl_wrong"}
    if who in ("a session without its CSRF token", "a page of another origin"):
        opened = await engine.kernel.sessions.open((await tokens.create(name, [Scope.ADMIN])).secret)
        page = {"X-CSRF-Token": opened.csrf, "Origin": "http://evil.example"} if who == "a page of another origin" else {}
        return {"Cookie": f"{COOKIE}={opened.cookie}", **page}
    scope, _, lists = who.partition(" ")
    made = await tokens.create(name, [Scope(scope)], task_lists=["mine"] if lists else [])
    return {"Authorization": f"Bearer {made.secret}"}


def request_of(call: Call, ids: dict[str, Any]) -> dict[str, Any]:
    """A request, as keywords of `httpx.AsyncClient.request`."""
    others = arguments(ids, call.others)
    if call.id == "dispatch_update_status":
        others |= {"worker_id": "worker-1", "status": "completed"}
    keyed = {"Idempotency-Key": f"key of {call.id}"} if call.route.creates or call.keyed else {}
    return {
        "method": call.route.method,
        "url": PREFIX + call.route.path.format(**arguments(ids, call.path)),
        "headers": keyed,
        "params" if call.in_query else "json": others,
    }
