"""A refused call changes nothing: every route, tool and form, for every kind of caller, on a store whose bytes are compared.

Arguments come from the contract's own examples, with the ids of real rows, so that a call that were not refused would act.
"""

from __future__ import annotations

import sqlite3
import types
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import httpx
import pytest
from tests.http.conftest import Stage
from tests.mcp.transports import in_request_context

from treadle import Engine
from treadle.api.contract import PREFIX, Call, Doc, Parameter, parameters_of
from treadle.api.facade import all_calls
from treadle.http.access import COOKIE
from treadle.http.app import make_app
from treadle.http.app_state import state_of
from treadle.http.routes import RouteTable
from treadle.kernel.access.login_throttle import FailedLogins
from treadle.mcp.catalog import TOOLS
from treadle.model.access import OPEN, Scope
from treadle.service import Service
from treadle.testing import ManualClock
from treadle.web.site import FLASH_COOKIE, add_pages

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


@dataclass
class World:
    """A server on a file, in which there is one of everything."""

    stage: Stage
    looking: sqlite3.Connection
    ids: dict[str, Any]
    seen: tuple[int, list[str]] = (-1, [])

    @contextmanager
    def unchanged(self, what: str) -> Iterator[list[bool]]:
        """Yield a list for whether the block was refused; fail if it was and the file has changed."""
        refused: list[bool] = []
        before = self.dump()
        yield refused
        assert not any(refused) or self.dump() == before, f"{what} was refused, but the store has changed"

    def dump(self) -> list[str]:
        """All rows of all tables, read again only after a commit; without the heartbeat of the server that holds jobs."""
        (version,) = self.looking.execute("pragma data_version").fetchone()
        if version != self.seen[0]:
            self.seen = (version, [each for each in self.looking.iterdump() if '["dispatch.Issue"]' not in each])
        return self.seen[1]

    def arguments(self, parameters: tuple[Parameter, ...] | list[Parameter]) -> dict[str, Any]:
        """Arguments that a caller with enough permissions could send, in a list that tokens for one list may not use."""
        return {
            each.name: self.ids[each.name] if each.name in self.ids else _example(each.hint, each.doc)
            for each in parameters
            if each.required or each.name in ("task_list", "directory", "task", "cron", "everything", "decision", "wait_for")
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
    if is_dataclass(hint):
        return {name: _example(kind) for name, kind in get_type_hints(hint).items()}
    found = get_origin(hint) or hint
    if found is dict:
        return {}
    return (
        {str: "x", int: 1, float: 1.0, bool: True}.get(found) if found in (str, int, float, bool) else [_example(get_args(hint)[0])]
    )


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock, path = ManualClock(), tmp_path / "treadle.db"
    async with Engine(f"sqlite:///{path}", clock=clock) as engine:
        stage = Stage(engine, clock, make_app(engine, more=[add_pages]))
        state_of(stage.app).callers.logins = FailedLogins(clock, per_address=10**6, overall=10**6)
        api = Service(engine, OPEN)
        await api.flows.publish("shop", [_source()])
        run = await api.runs.start("shop", task_list="other")
        task = await api.tasks.enqueue("x", {}, task_list="other")
        worker = await api.work.register("w", ["x"], task_lists=["other"])
        (claimed,) = (await api.work.claim(worker.worker_id)).tasks
        job = await api.dispatch.enqueue(_issue())
        await api.dispatch.dequeue("worker-1")
        objective = await api.objectives.add("do it")
        await api.schedules.create("nightly", cron="0 3 * * *", task="x")
        await api.watchers.create("in", directory=str(tmp_path), task="x")
        await api.lists.pause("other")
        await api.tokens.create("spare", ["read"])
        ids = {
            "run_id": run.id,
            "runner_id": run.id,
            "workflow_id": run.id,
            "task_id": task.id,
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
            "directory": str(tmp_path),
            "task": "x",
            "cron": "0 3 * * *",
            "everything": True,
            "issue": ISSUE,
            "scopes": ["read"],
            "token": "spare",
            "name": "nightly",
            "wait_for": 0.0,
        }
        with closing(sqlite3.connect(path)) as looking:
            yield World(stage, looking, ids)


def _source() -> Any:
    from treadle.api.flows import SourceText

    return SourceText("shop.afl", FLOW)


def _issue() -> Any:
    import msgspec

    from treadle.api.dispatch import Issue

    return msgspec.convert(ISSUE, Issue)


@asynccontextmanager
async def calling(world: World, who: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that kind."""
    stage, name = world.stage, who.replace(" ", "-")
    headers: dict[str, str] = {}
    if who in ("a session without its CSRF token", "a page of another origin"):
        opened = await stage.engine.kernel.sessions.open(await stage.token(Scope.ADMIN, name=name))
        headers["Cookie"] = f"{COOKIE}={opened.cookie}"
        if who == "a page of another origin":
            headers |= {"X-CSRF-Token": opened.csrf, "Origin": "http://evil.example"}
    elif who == "a wrong token":
        headers["Authorization"] = "Bearer tdl_wrong"
    elif who != "nobody":
        scope, _, lists = who.partition(" ")
        headers["Authorization"] = f"Bearer {await stage.token(Scope(scope), name=name, task_lists=['mine'] if lists else [])}"
    async with stage.client(**headers) as client:
        yield client


def _sent(world: World, call: Call) -> tuple[str, dict[str, Any]]:
    path = PREFIX + call.route.path.format(**world.arguments(call.path))
    others = world.arguments(call.others)
    if call.id == "dispatch_update_status":
        others |= {"worker_id": "worker-1", "status": "completed"}
    return path, {"params": others} if call.in_query else {"json": others}


async def test_a_refused_call_leaves_the_store_as_it_was(world: World):
    for who in CALLERS:
        await _refused_calls(world, who)


async def _refused_calls(world: World, who: str) -> None:
    count = 0
    async with calling(world, who) as client:
        for call in all_calls():
            path, sent = _sent(world, call)
            keyed = {"Idempotency-Key": f"key of {call.id}"} if call.route.creates or call.keyed else {}
            with world.unchanged(f"{who}: {call.id}") as refused:
                answer = await client.request(call.route.method, path, headers=keyed, **sent)
                refused.append(answer.status_code in (401, 403))
            assert answer.status_code < 500, (call.id, answer.text)
            count += refused[0]
    assert (count == 0) is (who == Scope.ADMIN)


@pytest.mark.parametrize("who", [Scope.ENQUEUE, Scope.WORK])
async def test_a_call_that_its_scope_grants_is_answered_even_if_its_caller_may_not_read(world: World, who: Scope):
    """403 after the change was the answer to a job's enqueueing and status: their answers read the job."""
    async with calling(world, who) as client:
        made = await client.post("/v1/dispatch/jobs", json={"issue": ISSUE})
        assert (made.status_code, made.json()["status"]) == (201, "pending")
        if who is Scope.WORK:
            held = (await client.post("/v1/dispatch/dequeue", json={"worker_id": "me"})).json()["job"]["id"]
            done = await client.post(f"/v1/dispatch/jobs/{held}/status", json={"worker_id": "me", "status": "completed"})
            assert (done.status_code, done.json()["status"]) == (200, "completed")
        assert (await client.get(f"/v1/dispatch/jobs/{made.json()['id']}")).status_code == 403


async def test_a_refused_tool_leaves_the_store_as_it_was(world: World):
    for scope in Scope:
        await _refused_tools(world, scope)


async def _refused_tools(world: World, scope: Scope) -> None:
    count = 0
    async with in_request_context(world.stage.engine, scope) as client:
        for tool in TOOLS.values():
            with world.unchanged(f"{scope}: {tool.name}") as refused:
                result = await client.call_tool(tool.name, world.arguments(parameters_of(tool.body)) | _of(tool.name, world))
                refused.append(bool(result.is_error) and result.structured_content["code"] == "forbidden")
            count += refused[0]
    assert (count == 0) is (scope is Scope.ADMIN)


def _of(tool: str, world: World) -> dict[str, Any]:
    return {"afl_execute_workflow": {"source": FLOW}, "flow_publish": {"source": FLOW}}.get(tool, {})


async def test_a_refused_form_leaves_the_store_as_it_was(world: World):
    for scope in (Scope.READ, Scope.APPROVE, Scope.REGISTER, Scope.PUBLISH, Scope.OPERATE):
        await _refused_forms(world, scope)


async def _refused_forms(world: World, scope: Scope) -> None:
    opened = await world.stage.engine.kernel.sessions.open(await world.stage.token(scope, name=scope))
    posts = sorted(
        route.path
        for table in world.stage.app.routes
        if isinstance(table, RouteTable)
        for route in table.routes
        if route.method == "POST" and route.operation is None
    )
    assert len(posts) > 20
    fields = {"csrf": opened.csrf, "title": "x", "task": "x", "workflow": "shop.Buy", "scope": "read", "decision": "approve"}
    given = {each: value for each, value in world.ids.items() if isinstance(value, str)}
    count = 0
    async with world.stage.client(Cookie=f"{COOKIE}={opened.cookie}") as client:
        for path in posts:
            with world.unchanged(f"{scope}: {path}") as refused:
                place = path.format_map(_Names(given))
                answer = await client.post(place, data={**given, **fields})
                flash = answer.cookies.get(FLASH_COOKIE, "")
                said = bytes.fromhex(flash[1:].strip('"')).decode() if flash.startswith("!") else ""
                refused.append("scope" in said)
            count += refused[0]
    assert count


class _Names(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return "x"
