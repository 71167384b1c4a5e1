"""Every operation by which an operator changes something leaves an entry in the log, with its actor, on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engines import make_engine, url_of
from tests.limits import BOUND
from tests.mcp.transports import in_request_context

from treadle import ApprovalRequest, AwaitingApproval, Context, Engine, ExternalPollingLoop, ExternalProductionHandle
from treadle.api.events import Event
from treadle.api.facade import Api, all_calls
from treadle.api.flows import SourceText
from treadle.engine.operations import Operations
from treadle.interfaces.http.app import make_app
from treadle.interfaces.web.site import add_pages
from treadle.model.access import Access, Scope
from treadle.model.errors import InvalidInput, NotFound, Refused

WORK_SCOPES = {Scope.READ, Scope.ENQUEUE, Scope.WORK}
"""Scopes of operations that change nothing, create work (which names its creator), or do it."""

CHANGES_NOTHING = {
    "alerts_test": "sends a message",
    "flows_dry_run": "stores nothing",
    "handlers_test": "calls a handler and stores nothing",
    "store_verify": "reads",
}
FLOW = [
    SourceText(
        "a.afl", "namespace a { event facet F() => (n: Long) workflow W() => (n: Long) andThen { f = F() yield W(n = f.n) } }"
    )
]
ADA = Access("ada", frozenset({Scope.ADMIN}))
HOUR = timedelta(hours=1)


class Farm:
    """A service whose jobs never end."""

    async def start(self, payload: Any) -> Any:
        return ExternalProductionHandle(f"farm/{payload['n']}", 3600)

    async def poll(self, external_job_id: str) -> Any:
        return ExternalProductionHandle(external_job_id, 3600)


class Scene:
    """Work in all the states that operations need; `api` are the operations of an operator named ada."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.api = Operations(engine, ADA)
        self.other = Operations(engine, Access("bob", frozenset({Scope.ADMIN})))

    async def task(self) -> str:
        return (await self.engine.enqueue("later")).id

    async def paused_task(self) -> str:
        task_id = await self.task()
        await self.other.tasks.pause(task_id)
        return task_id

    async def failed_task(self, name: str = "fail") -> str:
        task_id = (await self.engine.enqueue(name, {})).id
        async with self.engine.worker(), asyncio.timeout(BOUND):
            while (await self.other.tasks.get(task_id)).finished_at is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return task_id

    async def approval(self) -> str:
        task = await self.engine.enqueue("ask", {})
        async with self.engine.worker(), asyncio.timeout(BOUND):
            while not (found := (await self.other.approvals.list(task_id=task.id)).approvals):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return found[0].id

    async def job(self) -> str:
        task = await self.engine.enqueue("render", {"n": 1})
        await ExternalPollingLoop(self.engine).tick()
        return task.id

    async def run(self, state: str = "running") -> str:
        run = await self.other.runs.start_from_source(FLOW, "a.W")
        if state == "paused":
            await self.other.runs.pause(run.id)
        if state == "failed":
            await self.other.steps.fail_step(run.id, "W.f", "broken")
        return run.id

    async def adopted(self) -> str:
        return (await self.other.functions.start("fn", {}, version=1)).id

    async def canceled(self) -> str:
        run_id = await self.adopted()
        await self.other.runs.cancel(run_id)
        return run_id

    async def schedule(self, name: str, *, paused: bool = False) -> str:
        return (await self.other.schedules.create(name, cron="0 * * * *", task="later", paused=paused)).name

    async def watcher(self, name: str, *, paused: bool = False) -> str:
        return (await self.other.watchers.create(name, directory="/srv/in", task="later", paused=paused)).name

    async def rule(self, name: str) -> str:
        return (await self.other.alerts.create(name, when="problem", to="https://ops.example.org/hook?key=secret")).name

    async def handler(self, name: str) -> str:
        return (await self.other.handlers.register(name, "billing")).facet_name

    async def objective(self, status: str = "NEW") -> str:
        objective_id = (await self.other.objectives.add(f"it works {status}")).objective_id
        if status != "NEW":
            await self.other.objectives.approve(objective_id)
        if status == "BLOCKED":
            await self.other.objectives.block(objective_id, reason="wait")
        return objective_id

    async def dispatched(self, *, failed: bool = False) -> str:
        owner = {"login": "weavers"}
        repository = {"id": 5, "name": "l", "full_name": "w/l", "owner": owner, "clone_url": "git@x", "default_branch": "main"}
        from treadle.dispatch import coordinator_of

        number = 1 + failed
        document = {"id": number, "number": number, "title": "T", "repository": repository}
        job = await coordinator_of(self.engine).submit(document)
        if failed:
            dequeued = (await self.other.dispatch.dequeue("w-1")).job
            assert dequeued is not None
            await self.other.dispatch.update_status(dequeued.id, "w-1", "failed", error="no")
            return dequeued.id
        return job.id


NOW = datetime.now(UTC)  # noqa: TID251 - any time in the past
OPERATIONS: dict[str, Callable[[Scene], Awaitable[Any]]] = {
    "alerts_create": lambda s: s.api.alerts.create("a1", when="problem", to="https://ops.example.org/hook?key=secret"),
    "alerts_edit": lambda s: _on(s.rule("a2"), lambda name: s.api.alerts.edit(name, every=90)),
    "alerts_silence": lambda s: _on(s.rule("a3"), lambda name: s.api.alerts.silence(name, 60)),
    "alerts_remove": lambda s: _on(s.rule("a4"), s.api.alerts.remove),
    "approvals_approve": lambda s: _on(s.approval(), s.api.approvals.approve),
    "approvals_deny": lambda s: _on(s.approval(), s.api.approvals.deny),
    "approvals_decide_many": lambda s: _on(s.approval(), lambda one: s.api.approvals.decide_many([one], "approve")),
    "dead_letters_retry": lambda s: _on(s.failed_task(), lambda one: s.api.dead_letters.retry(ids=[one])),
    "dead_letters_discard": lambda s: _on(s.failed_task(), lambda one: s.api.dead_letters.discard(ids=[one])),
    "dispatch_cancel": lambda s: _on(s.dispatched(), s.api.dispatch.cancel),
    "dispatch_retry": lambda s: _on(s.dispatched(failed=True), s.api.dispatch.retry),
    "external_jobs_rebuild": lambda s: s.api.external_jobs.rebuild(),
    "external_jobs_poll_now": lambda s: _on(s.job(), s.api.external_jobs.poll_now),
    "external_jobs_cancel": lambda s: _on(s.job(), s.api.external_jobs.cancel),
    "flows_publish": lambda s: s.api.flows.publish("a", FLOW),
    "functions_adopt": lambda s: _on(s.adopted(), lambda run: s.api.functions.adopt(run, 2)),
    "handlers_register": lambda s: s.api.handlers.register("h1", "billing"),
    "handlers_edit": lambda s: _on(s.handler("h2"), lambda name: s.api.handlers.edit(name, version="2")),
    "handlers_remove": lambda s: _on(s.handler("h3"), s.api.handlers.remove),
    "lists_pause": lambda s: s.api.lists.pause("default"),
    "lists_resume": lambda s: s.api.lists.resume("default"),
    "lists_drain": lambda s: _on(s.task(), lambda _: s.api.lists.drain("mail")),
    "lists_set_policy": lambda s: s.api.lists.set_policy("default", "ignore"),
    "lists_limit_rate": lambda s: s.api.lists.limit_rate("default", "later", 5.0),
    "lists_limit_backlog": lambda s: s.api.lists.limit_backlog("default", "later", 5000),
    "lists_limit_key": lambda s: s.api.lists.limit_key("customer:1", 3),
    "lists_limit_key_rate": lambda s: s.api.lists.limit_key_rate("customer:2", 3.0),
    "lists_limit_handler": lambda s: s.api.lists.limit_handler("later", 3),
    "objectives_add": lambda s: s.api.objectives.add("it works"),
    "objectives_approve": lambda s: _on(s.objective(), s.api.objectives.approve),
    "objectives_block": lambda s: _on(s.objective("TODO"), lambda one: s.api.objectives.block(one, reason="wait")),
    "objectives_unblock": lambda s: _on(s.objective("BLOCKED"), s.api.objectives.unblock),
    "objectives_edit": lambda s: _on(s.objective(), lambda one: s.api.objectives.edit(one, title="it works well")),
    "runs_start_from_source": lambda s: s.api.runs.start_from_source(FLOW, "a.W"),
    "runs_bulk": lambda s: _on(s.run(), lambda _: s.api.runs.bulk("pause", workflow="a.W")),
    "runs_pause": lambda s: _on(s.run(), s.api.runs.pause),
    "runs_resume": lambda s: _on(s.run("paused"), s.api.runs.resume),
    "runs_reschedule": lambda s: _on(s.adopted(), lambda run: s.api.runs.reschedule(run, delay=60)),
    "runs_cancel": lambda s: _on(s.run(), s.api.runs.cancel),
    "runs_retry": lambda s: _on(s.run("failed"), s.api.runs.retry),
    "runs_reopen": lambda s: _on(s.canceled(), s.api.runs.reopen),
    "runs_rerun": lambda s: _on(s.run("failed"), s.api.runs.rerun),
    "runs_fork": lambda s: _on(s.run("failed"), lambda run: s.api.runs.fork(run, "W.f")),
    "schedules_create": lambda s: s.api.schedules.create("s1", every=3600, task="later", paused=True),
    "schedules_edit": lambda s: _on(s.schedule("s2"), lambda name: s.api.schedules.edit(name, every=7200)),
    "schedules_pause": lambda s: _on(s.schedule("s3"), s.api.schedules.pause),
    "schedules_resume": lambda s: _on(s.schedule("s4", paused=True), s.api.schedules.resume),
    "schedules_remove": lambda s: _on(s.schedule("s5"), s.api.schedules.remove),
    "schedules_run_now": lambda s: _on(s.schedule("s6"), s.api.schedules.run_now),
    "schedules_backfill": lambda s: _on(s.schedule("s7"), lambda name: s.api.schedules.backfill(name, NOW - 3 * HOUR, NOW - HOUR)),
    "steps_continue_step": lambda s: _on(s.run(), lambda run: s.api.steps.continue_step(run, "W.f", {"n": 1})),
    "steps_fail_step": lambda s: _on(s.run(), lambda run: s.api.steps.fail_step(run, "W.f", "broken")),
    "store_keep": lambda s: s.api.store.keep("default", completed=60),
    "store_prune": lambda s: s.api.store.prune(older_than=86_400),
    "store_prune_tree": lambda s: _on(s.failed_task(), s.api.store.prune_tree),
    "tasks_cancel": lambda s: _on(s.task(), s.api.tasks.cancel),
    "tasks_retry": lambda s: _on(s.failed_task(), s.api.tasks.retry),
    "tasks_pause": lambda s: _on(s.task(), s.api.tasks.pause),
    "tasks_resume": lambda s: _on(s.paused_task(), s.api.tasks.resume),
    "tokens_create": lambda s: s.api.tokens.create("ci", ["read"]),
    "tokens_revoke": lambda s: _on(s.other.tokens.create("cd", ["read"]), lambda token: s.api.tokens.revoke(token.id)),
    "watchers_create": lambda s: s.api.watchers.create("w1", directory="/srv/in", task="later"),
    "watchers_edit": lambda s: _on(s.watcher("w2"), lambda name: s.api.watchers.edit(name, every=60)),
    "watchers_pause": lambda s: _on(s.watcher("w3"), s.api.watchers.pause),
    "watchers_resume": lambda s: _on(s.watcher("w4", paused=True), s.api.watchers.resume),
    "watchers_remove": lambda s: _on(s.watcher("w5"), s.api.watchers.remove),
    "watchers_look": lambda s: _on(s.watcher("w6"), s.api.watchers.look),
}
"""Each operation that changes something, as ada performs it."""


async def _on(prepared: Awaitable[Any], operate: Callable[[Any], Awaitable[Any]]) -> Any:
    return await operate(await prepared)


@pytest.fixture(params=["sqlite", "postgresql"])
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    engine = make_engine(url_of(request.param, request, tmp_path))
    engine.specialist("render", Farm())

    @engine.handler("fail")
    async def fail(payload: Any) -> None:
        raise RuntimeError("no luck")

    @engine.handler("ask")
    async def ask(payload: Any, ctx: Context) -> Any:
        return AwaitingApproval(ApprovalRequest.of("Really?"))

    for version in (1, 2):

        @engine.function("fn", version=version)
        async def fn(payload: Any, ctx: Any) -> None:
            return None

    async with engine:
        yield Scene(engine)


def test_every_operation_that_changes_something_is_tried_here():
    changing = {call.id for call in all_calls() if call.route.method != "GET" and call.route.scope not in WORK_SCOPES}
    assert changing == OPERATIONS.keys() | CHANGES_NOTHING.keys()


async def by_ada(scene: Scene, after_seq: int = 0) -> list[Event]:
    return (await scene.other.events.list(after_seq=after_seq, actor="ada", limit=1000)).events


async def test_every_operation_leaves_an_entry_with_its_actor(scene: Scene):
    await scene.engine.enqueue("later", task_list="mail")
    missing = {}
    for name, operate in OPERATIONS.items():
        seq = await scene.engine.kernel.store.log.find_last_seq()
        try:
            await operate(scene)
        except Exception as error:
            missing[name] = repr(error)
            continue
        if not await by_ada(scene, seq):
            missing[name] = "no entry"
    assert missing == {}
    assert not (await scene.engine.kernel.verify()).problems


NOT_IN_AUDIT = {"runs_start_from_source", "runs_rerun", "runs_fork", "watchers_look"}
"""Operations that create work, which names its creator, and one that only makes the engine's task due."""


async def test_the_audit_has_every_operation_newest_first(scene: Scene):
    await scene.engine.enqueue("later", task_list="mail")
    missing = set()
    for name, operate in OPERATIONS.items():
        seq = await scene.engine.kernel.store.log.find_last_seq()
        await operate(scene)
        if not [change for change in (await scene.other.events.audit(actor="ada")).changes if change.seq > seq]:
            missing.add(name)
    assert missing == NOT_IN_AUDIT
    page = await scene.other.events.audit(limit=1000)
    assert [change.seq for change in page.changes] == sorted({change.seq for change in page.changes}, reverse=True)
    assert {change.actor for change in page.changes} == {"ada", "bob"}
    pages, before = [], None
    while not pages or before is not None:
        part = await scene.other.events.audit(limit=20, before=before)
        pages, before = pages + part.changes, part.next_before
    assert pages == page.changes
    lists = [change for change in pages if change.operation.startswith("lists.")]
    assert (await scene.other.events.audit(operation="lists", limit=1000)).changes == lists
    assert (await scene.other.events.audit(actor="eve")).changes == []
    with pytest.raises(InvalidInput):
        await scene.other.events.audit(before="seven")


UNDONE: dict[str, Callable[[Api], Awaitable[Any]]] = {
    "lists.pause": lambda api: api.lists.pause("mail"),
    "lists.resume": lambda api: api.lists.resume("mail"),
    "lists.drain": lambda api: api.lists.drain("mail"),
    "lists.set_policy": lambda api: api.lists.set_policy("mail", "ignore"),
    "lists.limit_key": lambda api: api.lists.limit_key("customer:1", 3),
    "lists.limit_key_rate": lambda api: api.lists.limit_key_rate("customer:1", 3.0, burst=9),
    "lists.limit_rate": lambda api: api.lists.limit_rate("mail", "later", 5.0, burst=9),
    "lists.limit_backlog": lambda api: api.lists.limit_backlog("mail", "later", 5000),
    "schedules.pause": lambda api: api.schedules.pause("nightly"),
    "schedules.resume": lambda api: api.schedules.resume("nightly"),
    "watchers.pause": lambda api: api.watchers.pause("inbox"),
    "watchers.resume": lambda api: api.watchers.resume("inbox"),
}


async def test_the_undo_of_a_change_restores_the_values_before_it(scene: Scene):
    await scene.engine.enqueue("later", task_list="mail")
    await scene.schedule("nightly")
    await scene.watcher("inbox")
    api = scene.api
    for round_limit in (None, 2):  # limits are first set, then changed
        await api.lists.limit_key("customer:1", round_limit)
        await api.lists.limit_key_rate("customer:1", round_limit and 1.0, burst=round_limit and 9)
        await api.lists.limit_rate("mail", "later", round_limit and 1.0, burst=round_limit and 9)
        for name, change in UNDONE.items():
            if name.endswith(".resume"):
                await UNDONE[name.replace("resume", "pause")](api)
            await change(api)
            (entry,) = (await api.events.audit(limit=1)).changes
            assert (entry.operation, entry.undo is None) == (name, False)
            assert entry.undo is not None
            await attrgetter(entry.undo.operation)(api)(**entry.undo.arguments)
            (undone,) = (await api.events.audit(limit=1)).changes
            assert undone.after is not None
            assert (undone.before, undone.after.items() & (entry.before or {}).items()) == (
                entry.after,
                (entry.before or {}).items(),
            )
            if name.endswith(".resume"):
                await attrgetter(name)(api)(*{"lists": ["mail"], "schedules": ["nightly"], "watchers": ["inbox"]}[name[:-7]])


async def test_a_change_without_an_exact_inverse_has_no_undo(scene: Scene):
    await scene.engine.enqueue("later", task_list="mail")
    await scene.api.lists.drain("mail")
    await scene.api.lists.pause("mail")
    await scene.api.lists.resume("mail")
    await scene.api.tokens.create("ci", ["read"])
    assert [(change.operation, change.undo) for change in (await scene.api.events.audit(limit=2)).changes] == [
        ("tokens.create", None),
        ("lists.resume", None),
    ]


def entry_of(events: list[Event], operation: str) -> dict[str, Any]:
    (entry,) = [event.data for event in events if event.entity == "operation" and event.data["operation"] == operation]
    return entry


async def test_an_entry_has_the_values_before_and_after(scene: Scene):
    await scene.engine.enqueue("later")
    api = scene.api
    await api.lists.pause("default")
    await api.lists.limit_key("customer:1", 3)
    await api.lists.limit_rate("default", "later", 5.0)
    await api.store.keep("default", completed=60)
    await api.handlers.register("h", "billing")
    await api.handlers.edit("h", version="2")
    await api.flows.publish("a", FLOW)
    await api.flows.publish("a", FLOW)
    await api.schedules.create("nightly", cron="0 3 * * *", task="later")
    await api.schedules.edit("nightly", cron="0 4 * * *")
    await api.alerts.create("ops", when="problem", to="https://ops.example.org/hook?key=secret")
    events = await by_ada(scene)
    assert entry_of(events, "lists.pause") == {
        "operation": "lists.pause",
        "subject": "default",
        "before": {"paused": False},
        "after": {"paused": True},
    }
    assert entry_of(events, "lists.limit_key")["after"] == {"max_running": 3}
    rate = entry_of(events, "lists.limit_rate")
    assert (rate["subject"], rate["before"], rate["after"]) == (
        "default/later",
        {"rate": None, "burst": None},
        {"rate": 5.0, "burst": 5},
    )
    assert entry_of(events, "store.keep")["after"] == {"completed": 60.0}
    assert (entry_of(events, "handlers.edit")["before"], entry_of(events, "handlers.edit")["after"]) == (
        {"version": "1.0.0"},
        {"version": "2"},
    )
    assert entry_of(events, "flows.publish")["after"]["version"] == 1  # the second one changed nothing
    created, edited = [event for event in events if event.entity == "schedule"]
    assert (created.transition, created.data["after"]["when"]["cron"]) == ("create", "0 3 * * *")
    assert (edited.transition, edited.data["before"]["when"]["cron"], edited.data["after"]["when"]["cron"]) == (
        "edit",
        "0 3 * * *",
        "0 4 * * *",
    )
    assert "secret" not in str([event.data for event in events])


EDITS: dict[str, tuple[Callable[[Scene], Awaitable[Any]], Any, Any]] = {
    "dead_letters_retry all": (
        lambda s: _on(s.failed_task("fail"), lambda _: s.api.dead_letters.retry(name="fail", payload={"n": 3})),
        None,
        {"payload": {"n": 3}},
    ),
    "alerts_edit": (OPERATIONS["alerts_edit"], {"every_for": 15_000}, {"every_for": 90_000}),
    "dead_letters_retry": (
        lambda s: _on(s.failed_task(), lambda one: s.api.dead_letters.retry(ids=[one], payload={"n": 2})),
        {"payload": {}},
        {"payload": {"n": 2}},
    ),
    "handlers_edit": (OPERATIONS["handlers_edit"], {"version": "1.0.0"}, {"version": "2"}),
    "handlers_register again": (
        lambda s: _on(s.handler("h9"), lambda name: s.api.handlers.register(name, "invoices")),
        {"module_uri": "billing"},
        {"module_uri": "invoices"},
    ),
    "lists_drain": (lambda s: s.api.lists.drain("mail"), {"accepting": True}, {"accepting": False}),
    "lists_limit_backlog": (OPERATIONS["lists_limit_backlog"], {"backlog_limit": None}, {"backlog_limit": 5000}),
    "lists_limit_key_rate": (OPERATIONS["lists_limit_key_rate"], {"rate": None, "burst": None}, {"rate": 3.0, "burst": 3}),
    "lists_set_policy": (OPERATIONS["lists_set_policy"], {"no_handler": "wait"}, {"no_handler": "ignore"}),
    "limit_key of a handler": (
        lambda s: s.engine.kernel.lists.set_handler_key("later", "db", actor="ada"),
        {"limit_key": None},
        {"limit_key": "db"},
    ),
    "objectives_edit": (OPERATIONS["objectives_edit"], {"title": "it works NEW"}, {"title": "it works well"}),
    "tasks_retry": (
        lambda s: _on(s.failed_task(), lambda one: s.api.tasks.retry(one, payload={"n": 2})),
        {"payload": {}},
        {"payload": {"n": 2}},
    ),
    "watchers_edit": (OPERATIONS["watchers_edit"], {"every_for": 30_000}, {"every_for": 60_000}),
}
"""Edits, with the values that each finds and leaves."""


async def test_every_edit_logs_the_values_that_it_changes(scene: Scene):
    await scene.engine.enqueue("later", task_list="mail")
    logged = {}
    for name, (edit, _, _) in EDITS.items():
        seq = await scene.engine.kernel.store.log.find_last_seq()
        await edit(scene)
        logged[name] = [
            (event.data.get("before"), event.data["after"]) for event in await by_ada(scene, seq) if "after" in (event.data or {})
        ]
    assert logged == {name: [(before, after)] for name, (_, before, after) in EDITS.items()}
    assert not (await scene.engine.kernel.verify()).problems


async def test_a_refused_change_leaves_no_entry(scene: Scene):
    with pytest.raises(NotFound):
        await scene.api.handlers.remove("nobody")
    with pytest.raises(NotFound):
        await scene.api.lists.pause("nowhere")
    await scene.schedule("nightly")
    with pytest.raises(Refused):
        await scene.api.schedules.create("nightly", every=60, task="later")
    assert not await by_ada(scene)


async def test_the_actor_is_the_caller_of_each_interface(scene: Scene):
    engine = scene.engine
    secret = (await scene.other.tokens.create("ci", ["admin"])).secret
    http = httpx.AsyncClient(
        transport=httpx.ASGITransport(make_app(engine, more=(add_pages,))),
        base_url="http://127.0.0.1",
        headers={"Authorization": f"Bearer {secret}"},
    )
    actors = {}
    async with http, in_request_context(engine, actor="mcp:ada") as client:
        changes: dict[str, Callable[[], Awaitable[Any]]] = {
            "http": lambda: http.put("/v1/limits/key", json={"key": "customer:1", "max_running": 3}),
            "dashboard": lambda: http.post("/limits", data={"key": "customer:1", "max_running": "4"}),
            "mcp": lambda: client.call_tool(
                "tool_call", {"name": "limit_set", "arguments": {"key": "customer:1", "max_running": 5}}
            ),
            "python": lambda: engine.kernel.lists.limit_key("customer:1", 6),
        }
        for name, change in changes.items():
            seq = await engine.kernel.store.log.find_last_seq()
            await change()
            events = (await scene.other.events.list(after_seq=seq)).events
            actors[name] = [(event.actor, event.data["after"]) for event in events if event.entity == "operation"]
    assert actors == {
        "http": [("ci", {"max_running": 3})],
        "dashboard": [("ci", {"max_running": 4})],
        "mcp": [("mcp:ada", {"max_running": 5})],
        "python": [("operator", {"max_running": 6})],
    }
