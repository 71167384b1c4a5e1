"""A store with three rows of everything, and ways to damage the stored text of one of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.engines import make_engine
from tests.goals.scene import GATE, OK, READINESS, RUN, SCHEDULE, approved, settle, take, use_topology
from tests.limits import BOUND

from treadle import ApprovalRequest, AwaitingApproval, Context, Engine, ExternalProductionHandle, NonRetryable, RetryPolicy, Waiting
from treadle.api.facade import all_calls
from treadle.engine.operations import Operations
from treadle.kernel.access.requests import StoredAnswer
from treadle.kernel.metrics.decide import Counts, Series, rows_of
from treadle.kernel.metrics.service import KEEP
from treadle.kernel.store.records import PutRecord
from treadle.kernel.store.units import PutMetrics, Unit
from treadle.model.access import OPEN
from treadle.model.alerts import AlertDocument
from treadle.model.records import Record, ThreadItem
from treadle.model.stored import write
from treadle.model.tasks import Server
from treadle.testing import StubExternalSpecialist

FLOW = """
namespace film {
    event facet Render(scene: String) => (url: String)
    event facet Watch(url: String) => (stars: Int)
    workflow Film(scene: String) => (url: String) andThen {
        rendered = Render(scene = $.scene)
        watched = Watch(url = rendered.url)
        yield Film(url = rendered.url)
    }
}
"""
BIG = "x" * 20_000
EACH = range(3)

TEXTS = {
    "tasks": ("progress", "policy", "payload", "checkpoint", "error", "baggage"),
    "finished": ("progress", "policy", "payload", "checkpoint", "result", "error", "baggage"),
    "log": ("data",),
    "servers": ("handlers", "task_lists", "topics", "counts", "error"),
    "lines": ("details",),
    "flows": ("sources", "program"),
    "runs": ("inputs", "outputs", "error", "baggage"),
    "steps": ("document", "inbox", "state"),
    "handler_registrations": ("requirements", "metadata"),
    "records": ("document",),
    "record_items": ("value",),
    "mail": ("document",),
    "idempotency_outcomes": ("response", "details"),
    "blobs": ("value",),
    "stream_chunks": ("entries",),
    "metrics": ("durations", "waits"),
}
"""The columns that hold JSON, or words that a newer version may add to, by table."""

WORDS = {
    "queues": ("namespace", "kind", "task_list", "name", "limit_key"),
    "tasks": (
        "namespace",
        "state",
        "owner_id",
        "scope",
        "trace_id",
        "limit_key",
        "limit_keys",
        "unique_key",
        "activity",
        "fairness_key",
        "created_by",
    ),
    "finished": (
        *("namespace", "state", "transition", "from_state", "actor", "owner_id", "scope", "trace_id", "limit_key", "unique_key"),
        *("fairness_key", "created_by", "limit_keys"),
    ),
    "finished_counts": ("state",),
    "log": ("entity", "transition", "from_state", "to_state", "actor", "trace_id"),
    "servers": (
        *("name", "host", "version", "state", "server_group", "service_name", "process", "session", "evidence", "namespace"),
        "release",
    ),
    "lines": ("level", "message"),
    "lists": ("namespace", "task_list", "no_handler"),
    "limits": ("namespace", "key"),
    "limit_slots": ("namespace", "key"),
    "handler_keys": ("namespace", "name", "key"),
    "dedupe": ("namespace", "key"),
    "flows": ("namespace",),
    "flow_versions": ("namespace", "name", "actor"),
    "runs": ("namespace", "kind", "workflow", "state", "task_list", "idempotency_key", "trace_id", "fairness_key"),
    "steps": ("kind", "name", "facet"),
    "handler_registrations": ("namespace", "facet_name", "module_uri", "entrypoint", "version", "checksum"),
    "records": ("namespace", "entity", "name", "state", "trace_id"),
    "record_items": ("key",),
    "mail": ("name",),
    "idempotency_outcomes": ("idempotency_key", "status", "response_hash"),
    "llm_usage": ("model", "state"),
    "legal_transitions": ("entity", "from_state", "to_state"),
    "blob_uses": ("digest",),
    "seqs": ("name",),
    "tags": ("key", "value", "entity", "namespace"),
    "streams": ("namespace", "name"),
    "stream_chunks": ("name", "kind", "writer", "session"),
    "metrics": ("namespace", "kind", "task_list", "name", "release"),
    "error_texts": ("entity", "namespace", "words"),
}
"""The other columns of text: names, keys, states that the schema checks, and text for people. Ids are not listed."""

GROUPS = {
    "records": "entity",
    "steps": "kind",
    "log": "entity",
    "record_items": "(select entity from records where id = record_id)",
}
"""The expression by which rows of a table have different texts."""

KEYS = {
    "record_items": "record_id",
    "handler_registrations": "facet_name",
    "blobs": "digest",
    "idempotency_outcomes": "idempotency_key",
    "stream_chunks": "owner_id",
    "metrics": "name",
}
"""The column that identifies rows to damage, where it is not `id`."""


def make(url: str, folder: Path) -> Engine:
    engine = make_engine(url)
    use_topology(engine, folder)
    engine.specialist("film.Render", StubExternalSpecialist([ExternalProductionHandle("job", 3600, "on it")] * 99))

    @engine.handler("work")
    async def work(payload: Any, ctx: Context) -> dict[str, Any]:
        ctx.stream("tokens").write(payload["n"])
        return {"done": payload["n"]}

    @engine.handler("fail")
    async def fail(payload: Any, ctx: Context) -> None:
        ctx.log("about to fail", why="test")
        ctx.progress(0.5, "half")
        raise NonRetryable("no luck")

    @engine.handler("nap")
    async def nap(payload: Any, ctx: Context) -> Any:
        if ctx.attempt == 1 and not ctx.checkpoint:
            return Waiting(3600, {"page": 1})
        return {}

    @engine.handler("again")
    async def again(payload: Any, ctx: Context) -> Any:
        ctx.progress(0.5, "half")
        raise RuntimeError("later")

    @engine.handler("ask")
    async def ask(payload: Any) -> Any:
        return AwaitingApproval(ApprovalRequest.of("Go?"))

    @engine.handler("pay")
    async def pay(payload: Any, ctx: Context) -> Any:
        return await ctx.effect("charge", lambda: {"receipt": 1}, {"amount": 1})

    @engine.handler("doubt")
    async def doubt(payload: Any, ctx: Context) -> Any:
        return await ctx.effect("charge", lambda: 1 / 0, {"amount": 1})

    @engine.function("trip")
    async def trip(payload: Any, ctx: Any) -> Any:
        await ctx.step(lambda: {"bags": 2}, name="pack")
        ctx.publish("bags", {"packed": 2})
        await ctx.wait_for("go")
        return {"arrived": True}

    @engine.function("tour", cleanup_timeout=0)
    async def tour(payload: Any, ctx: Any) -> Any:
        if payload["below"]:
            await ctx.start("tour", {"below": payload["below"] - 1})
        return await ctx.wait_for("home")

    @engine.function("short")
    async def short(payload: Any, ctx: Any) -> Any:
        return await ctx.step(lambda: {"ok": 1}, name="one")

    return engine


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(BOUND):
        while not await holds():  # noqa: ASYNC110 - it is the store that changes
            await asyncio.sleep(0.01)


async def checkpointed(_: str | None) -> dict[str, ThreadItem | None]:
    return {"c//0~": ThreadItem(type="json", data="e30=", metadata_type="json", metadata="e30=", checkpoint_id="n")}


async def fill(url: str, folder: Path) -> None:
    """Store three rows of everything."""
    incoming = folder / "incoming"
    incoming.mkdir()
    for n in EACH:
        (incoming / f"{n}.txt").write_text("x")
    async with make(url, folder) as engine:
        naps = [await engine.enqueue("nap", {"n": n}, retry=RetryPolicy(retries=3, first_for=800_000)) for n in EACH]
        for n in EACH:
            await engine.enqueue("ask", {"n": n})
        ends = [await engine.enqueue(name, {"n": n}) for name in ("work", "fail", "pay", "doubt") for n in EACH]
        late = [await engine.enqueue("again", {"n": n}, retry=RetryPolicy(retries=3, first_for=800_000)) for n in EACH]
        films, trips, tours, shorts = [], [], [], []
        for n in EACH:
            films.append(await engine.start_run([("film.afl", FLOW)], "film.Film", {"scene": BIG + str(n)}))
            trips.append(await engine.start_function("trip", {"n": n}))
            tours.append(await engine.start_function("tour", {"below": 2}))
            shorts.append(await engine.start_function("short", {"n": n}))
            await asyncio.sleep(0.002)  # ids begin with the millisecond: so all rows of the first runs have the first ids
        async with engine.worker(), asyncio.timeout(BOUND):
            for each in ends:
                with suppress(Exception):
                    await engine.result(each)
            for run in shorts:
                await engine.run_result(run)

            async def settled() -> bool:
                jobs, approvals = (await engine.kernel.external_jobs.list()).jobs, (await engine.approvals.list()).approvals
                waits = [await engine.kernel.reads.get_task(each) for each in (*naps, *late)]
                packed = [await engine.kernel.run_services.reads.list_steps(run.id) for run in trips]
                below = [await engine.kernel.functions.descendants(run.id) for run in tours]
                started = all(len(each) == 2 for each in below)
                return len(jobs) == len(approvals) == 3 and all(each.wake_at for each in waits) and all(packed) and started

            await until(settled)
        for run in trips:
            await engine.signal(run, "other", {"n": 1})
        for n in EACH:
            await engine.schedules.create(f"schedule{n}", cron="0 3 * * *", task="work")
            await engine.watchers.create(f"watcher{n}", directory=str(incoming), task="work")
            await engine.alerts.create(f"alert{n}", when="run_failed", to="TREADLE_ALERT_TEST")
            secret = (await engine.kernel.tokens.create(f"token{n}", ["read"])).secret
            await engine.kernel.sessions.open(secret)
            begun = await engine.kernel.requests.begin("ann", "POST /v1/tasks", f"key{n}", b"{}")
            await engine.kernel.requests.finish(begun, StoredAnswer(200, b"{}"))
            await Operations(engine, OPEN).handlers.register(f"film.Watch{n}", "missing", metadata={"n": n})
            server = Server(id=engine.kernel.ids.new_id(), name=f"s{n}", host="h", pid=1, version="1", state="running")
            await engine.kernel.store.servers.save(server)
            await engine.kernel.threads.write(f"thread{n}", checkpointed, None, None)
            await engine.enqueue("work", {"n": n}, retry=3)
            await engine.goals.objectives.add(f"new {n}", actor="ada")
        for n in EACH:
            await approved(engine, f"Do {n}")
        roll_up = {
            (await engine.kernel.store.now(), Series("default", "handler", "default", f"earlier{n}")): Counts(
                completed=1, durations={5: 1}, waits={7: 1}
            )
            for n in EACH
        }
        rows = tuple(rows_of(roll_up, 0, KEEP))
        await engine.kernel.committer.submit(Unit(rows=(PutMetrics(0, 0, rows, ()),)), 5)
        for kind, result in ((READINESS, None), (SCHEDULE, None), (RUN, {"text": "ok"}), (GATE, OK)):
            while (task := await take(engine, kind)) is not None:
                await settle(engine, task, result)
        await engine.kernel.run_services.flows.publish("films", [("film.afl", FLOW)])
        assert len(films) == 3
        for n in EACH:
            document = AlertDocument(
                rule_id=engine.kernel.ids.new_id(), rule=f"alert{n}", cause=f"cause{n}", text="It failed.", since=1
            )
            alert = Record(id=engine.kernel.ids.new_id(), entity="alert", state="firing", document=write(document))
            await engine.kernel.committer.submit(Unit(rows=(PutRecord(alert),)), 5)


def damaged(text: str) -> dict[str, str]:
    """Damaged forms of a stored text, by kind of damage."""
    made = {"truncated": text[: max(len(text) // 2, 1)], "empty": "", "list": "[]", "number": "7", "null": "null", "text": '"x"'}
    with suppress(ValueError):
        value = json.loads(text)
        made |= {"mistyped": json.dumps(_mistyped(value)), "newer": json.dumps(_newer(value))}
    return made


def _mistyped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: 7 if isinstance(each, str) else "x" for key, each in value.items()} or {"x": 1}
    return 7 if isinstance(value, str) else [{"x": 1}] if isinstance(value, list) else "x"


def _newer(value: Any) -> Any:
    """Every word is one that this version does not know."""
    if isinstance(value, dict):
        return {key: _newer(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_newer(each) for each in value]
    return "unheard-of" if isinstance(value, str) else value


# --- reads ---

PARAMETERS = {
    "approval_id": "select id from records where entity = 'approval'",
    "task_id": "select id from tasks union all select id from finished",
    "job_id": "select id from records where entity = 'external_production_record'",
    "objective_id": "select id from records where entity = 'objective'",
    "run_id": "select id from runs",
    "facet_name": "select facet_name from handler_registrations",
    "server_id": "select id from servers",
    "step_id": "select id from steps where kind <> 'published'",
    "any_id": "select id from tasks union all select id from runs union all select id from records where entity <> 'session'",
    "task_list": "select distinct task_list from queues",
    "run_id/step": "select cast(run_id as text) || '/' || cast(id as text) from steps where kind <> 'published'",
    "run_id/name": "select cast(run_id as text) || '/bags' from steps where kind = 'published'",
    "member_id": "select id from runs union all select owner_id from streams",
    "member_id/name": "select cast(owner_id as text) || '/' || name from streams",
    "schedules": "select name from records where entity = 'schedule'",
    "watchers": "select name from records where entity = 'watcher'",
    "flows": "select distinct name from flow_versions",
    "functions": "select distinct workflow from runs where kind = 'function'",
    "alerts": "select name from records where entity = 'alert_rule'",
    "tasks": "select distinct name from queues where kind = 'handler'",
}
"""Values of the parameters in paths; for `name`, by group."""


def reads(engine: Engine, ids: dict[str, list[str]]) -> dict[str, Callable[[], Any]]:
    """Every reading call of the contract for every entity, and the checks of the whole store."""
    service = Operations(engine, OPEN)
    found: dict[str, Callable[[], Any]] = {}
    for call in all_calls():
        if call.route.method != "GET" or call.id in ("tasks_result",):
            continue
        method = getattr(getattr(service, call.group), call.name)
        required = [each.name for each in call.signature.parameters.values() if each.default is each.empty]
        names = "/".join(name for name in required if name != "self")
        if not names:
            found[call.id] = method
        for each in ids[call.group if names == "name" else names] if names else ():
            found[f"{call.id} {each}"] = partial(method, *each.split("/"))
    return found | {
        "verify": engine.kernel.verify,
        "verify_page": service.store.verify,
        "rebuild": service.external_jobs.rebuild,
        "recovery": partial(engine.kernel.recovery.recover, dry_run=True),
    }
