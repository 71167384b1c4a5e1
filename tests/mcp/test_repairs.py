"""An operator with nothing but MCP repairs ten kinds of fault, by following the calls that `why` and `system_status` recommend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcp import Client
from tests.limits import BOUND
from tests.mcp.transports import over_stdio, told

from treadle import Engine

HANDS = """
from pathlib import Path

from treadle import (
    ApprovalRequest, AwaitingApproval, Engine, ExternalProductionFailure, ExternalProductionHandle, RenderEvent, Specialist
)

engine = Engine()


@engine.handler("shop.Price", retry=0)
async def price(payload):
    return {"total": 10.0 * payload["count"]}


@engine.handler("mail.Send", retry=0)
async def send(payload):
    if Path("outage").exists():
        raise RuntimeError("the mail server is down")
    return {"sent": True}


@engine.handler("shop.Confirm")
async def confirm(payload, ctx):
    if ctx.approval_decision is None:
        return AwaitingApproval(ApprovalRequest.of("Buy?", context=payload))
    return {"by": ctx.approval_decision["by"]}


class Farm(Specialist):
    jobs = 0

    async def start(self, payload):
        self.jobs += 1
        return ExternalProductionHandle(f"job-{self.jobs}", 0.05, "working")

    async def poll(self, external_job_id):
        if external_job_id == "job-1":
            return ExternalProductionFailure("the farm does not know job-1", "external_job_lost")
        return RenderEvent({"url": "a.png"})


engine.specialist("film.Render", Farm())


async def done(value):
    return value


@engine.function("trip", version=1)
async def changed(payload, ctx):
    await ctx.step(done, 1, name="another")
    return await ctx.wait_for("go")


@engine.function("trip", version=2)
async def fitting(payload, ctx):
    await ctx.step(done, 1, name="one")
    return await ctx.wait_for("go")
"""


FEED = "namespace feed { workflow Take(item: Json) => (ok: Boolean) andThen { yield Take(ok = true) } }"


@dataclass
class Session:
    """The operator's session, and the engine with which a test plants faults."""

    client: Client
    engine: Engine
    folder: Path

    async def call(self, tool: str, /, **given: Any) -> dict[str, Any]:
        return told(await self.client.call_tool(tool, given))

    async def follow(self, answer: dict[str, Any], number: int = 0, /, **supplied: Any) -> dict[str, Any]:
        """Make a recommended call, with what it says is missing."""
        assert "`treadle " not in str(answer)
        action = answer["actions"][number]
        for each in action.get("missing", ()):  # one of several, if it names them
            assert {*each.rpartition(".")[2].split("|")} & {*supplied}, (each, supplied)
        arguments = action["arguments"]
        if action["tool"] == "tool_call":
            return await self.call("tool_call", **arguments | {"arguments": arguments["arguments"] | supplied})
        return await self.call(action["tool"], **arguments | supplied)

    async def problem(self, code: str) -> dict[str, Any]:
        """The problem of that code, once the system has it."""
        found: list[dict[str, Any]] = []

        async def named() -> bool:
            found[:] = [each for each in (await self.call("system_status"))["problems"] if each["code"] == code]
            return bool(found)

        await until(named)
        return found[0]

    async def result(self, task_id: str) -> Any:
        return (await self.call("task_result", task_id=task_id, wait_for=50))["result"]


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(BOUND):
        while not await holds():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@asynccontextmanager
async def session_in(folder: Path) -> AsyncIterator[Session]:
    (folder / "hands.py").write_text(HANDS)
    store = f"sqlite:///{folder}/treadle.db"
    engine = Engine(store)

    async def done(value: int) -> int:
        return value

    @engine.function("trip", version=1)
    async def recorded(payload: dict[str, Any], ctx: Any) -> Any:
        await ctx.step(done, 1, name="one")
        return await ctx.wait_for("go")

    async with engine:
        await plant_function(engine)
        async with over_stdio(folder, "--store", store, "--handlers", "hands.py", "--work") as client:
            yield Session(client, engine, folder)


async def plant_function(engine: Engine) -> None:
    """Let an older deployment record the first step of a run."""
    async with engine.worker(grace=0):
        run = await engine.start("trip", {}, version=1, idempotency_key="trip")

        async def waits() -> bool:
            return (await engine.kernel.run_reads.why(run.id)).code == "suspended"

        await until(waits)


async def list_without_worker(to: Session) -> None:
    task = await to.engine.enqueue("shop.Price", {"count": 1}, task_list="gpu")
    reason = await to.call("why", id=task.id)
    assert reason["code"] == "no_worker"
    await to.follow(reason)
    assert await to.result(task.id) == {"total": 10.0}


async def paused_list(to: Session) -> None:
    await to.engine.kernel.lists.pause("default")
    task = await to.engine.enqueue("shop.Price", {"count": 2})
    reason = await to.call("why", id=task.id)
    assert reason["code"] == "list_paused"
    await to.follow(reason)
    assert await to.result(task.id) == {"total": 20.0}


async def bad_payload(to: Session) -> None:
    task = await to.engine.enqueue("shop.Price", {"cuont": 3})
    assert await to.result(task.id) is None
    reason = await to.call("why", id=task.id)
    assert (reason["code"], "count" in reason["text"]) == ("finished_failed", True)
    await to.follow(reason, 1, payload={"count": 3})
    assert await to.result(task.id) == {"total": 30.0}


async def dead_letter(to: Session) -> None:
    (to.folder / "outage").touch()
    tasks = [await to.engine.enqueue("mail.Send", {}) for _ in range(3)]
    for task in tasks:
        assert await to.result(task.id) is None
    (to.folder / "outage").unlink()
    problem = await to.problem("dead_letters")
    (group,) = (await to.follow(problem))["groups"]
    await to.follow(problem, 1, fingerprint=group["fingerprint"])
    for task in tasks:
        assert await to.result(task.id) == {"sent": True}


async def approval(to: Session) -> None:
    task = await to.engine.enqueue("shop.Confirm", {})

    async def asked() -> bool:
        return (await to.call("why", id=task.id))["code"] == "approval"

    await until(asked)
    await to.follow(await to.call("why", id=task.id))
    assert (await to.result(task.id))["by"].startswith("mcp:")


async def rate_limit(to: Session) -> None:
    await to.engine.kernel.lists.limit_rate("default", "shop.Price", 1 / 86_400, burst=1)
    tasks = [await to.engine.enqueue("shop.Price", {"count": 1}) for _ in range(2)]
    assert await to.result(tasks[0].id) == {"total": 10.0}
    reason = await to.call("why", id=tasks[1].id)
    assert reason["code"] == "rate"
    await to.follow(reason, rate=1000)
    assert await to.result(tasks[1].id) == {"total": 10.0}


async def paused_schedule(to: Session) -> None:
    past = datetime(2026, 1, 1, tzinfo=UTC)
    made = await to.engine.schedules.create("once", at=past, catch_up="all", task="shop.Price", inputs={"count": 1}, paused=True)
    reason = await to.call("why", id="once")
    assert reason["code"] == "paused"
    assert (await to.problem("schedule_paused"))["actions"] == reason["actions"]
    await to.follow(reason)

    async def fired() -> bool:
        return bool((await to.call("schedule_show", name=made.id))["fired"])

    await until(fired)
    (firing,) = (await to.call("schedule_show", name=made.id))["recent"]
    assert await to.result(firing["id"]) == {"total": 10.0}


async def failing_watcher(to: Session) -> None:
    folder = to.folder / "incoming"
    folder.mkdir()
    (folder / "a.csv").write_text("1")
    await to.engine.kernel.flows.publish("feed", [("feed.afl", FEED)])
    target = {"flow": "feed", "workflow": "feed.Take"}
    await to.engine.watchers.create("incoming", directory=str(folder), existing="new", settle=0, **target)  # type: ignore[arg-type]
    problem = await to.problem("watcher_failing")
    assert "It takes item" in (await to.follow(problem))["error"]["message"]
    await to.follow(problem, 1, change_as="item")
    await to.follow(problem, 2)

    async def fired() -> bool:
        return bool((await to.call("watcher_show", name="incoming"))["fired"])

    await until(fired)
    (change,) = (await to.call("watcher_show", name="incoming"))["recent"]
    assert (await to.call("run_outputs", run_id=change["id"], wait_for=50))["outputs"] == {"ok": True}


async def lost_external_job(to: Session) -> None:
    task = await to.engine.enqueue("film.Render", {})
    assert await to.result(task.id) is None
    reason = await to.call("why", id=task.id)
    assert "does not know job-1" in reason["text"]
    await to.follow(reason)
    assert await to.result(task.id) == {"url": "a.png"}


async def nondeterministic_function(to: Session) -> None:
    (run,) = (await to.call("run_list", workflow="trip"))["runs"]
    await to.call("run_signal", run_id=run["id"], name="go", payload="home")  # the other deployment takes it over

    async def noticed() -> bool:
        return "nondeterministic" in (await to.call("why", id=run["id"]))["text"]

    await until(noticed)
    reason = await to.call("why", id=run["id"])
    versions = [each["version"] for each in (await to.call("function_list"))["functions"] if each["name"] == "trip"]
    await to.follow(reason, version=versions[-1])
    assert (await to.call("run_outputs", run_id=run["id"], wait_for=50))["outputs"] == {"result": "home"}


FAULTS = (
    list_without_worker,
    paused_list,
    bad_payload,
    dead_letter,
    approval,
    rate_limit,
    paused_schedule,
    failing_watcher,
    lost_external_job,
    nondeterministic_function,
)


async def test_a_session_repairs_every_kind_of_fault(tmp_path: Path):
    async with session_in(tmp_path) as session:
        for fault in FAULTS:
            await fault(session)
        assert (await session.call("system_status"))["problems"] == []
