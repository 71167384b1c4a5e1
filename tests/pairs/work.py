"""The kinds of work of a history: what servers offer, how a client submits it, and who else takes part."""

from __future__ import annotations

import asyncio
import sqlite3
import warnings
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.functions.blocking import as_sync
from tests.pairs.agents import poll
from tests.pairs.case import REPEATING, RUNS, Item
from tests.pairs.promises import live_ids
from tests.simulation.files import File, Files
from tests.simulation.submissions.dispatch import CONFIG
from tests.simulation.world import World

from treadle import (
    ApprovalRequest,
    AwaitingApproval,
    Context,
    DeterminismWarning,
    Engine,
    ExternalProductionHandle,
    NonRetryable,
    RetryPolicy,
    Specialist,
    TaskFailed,
)
from treadle.dispatch import AgentCoordinator
from treadle.goals.topology import read_topology
from treadle.model.errors import ClaimLost, Refused, StoreError, TreadleError
from treadle.testing.simulation import Process
from treadle.testing.simulation.process import current_process

if TYPE_CHECKING:
    from tests.pairs.story import Story

UPGRADE_AT = 3.0
"""Seconds after the start at which servers are replaced."""
OFTEN = RetryPolicy.of(100, first=0.2, longest=1, jitter=0.0)
FLOW = """
namespace pair {
  event facet Do(key: String) => (key: String, count: Long, extra: String)
  event facet After(key: String) => (key: String) script "result['twice'] = params['key'] * 2"
  workflow Workflow(key: String) => (key: String) andThen {
    a = Do(key = $.key)
    b = After(key = a.key)
    yield Workflow(key = b.key)
  }
}
"""
NEW_FLOW = FLOW.replace("yield Workflow(key = b.key)", "c = After(key = b.key)\n    yield Workflow(key = c.key)")
GATE = {"use": "regex", "name": "says-key", "pattern": "item"}
TOPOLOGY = read_topology({"name": "pairs", "types": {"TICKET": {"handler": "pair.Do", "gates": [GATE]}}})
NAMES = {"task": "pair.Do", "external": "pair.Press", "approval": "pair.Ask", "remote": "out.Do"}


class Work:
    """The executions of one history."""

    def __init__(self, story: Story) -> None:
        self.story, self.case = story, story.case
        self.world = World(story.simulation)  # type: ignore[arg-type]
        self.files = Files(story.simulation)  # type: ignore[arg-type]
        self.executions: Counter[str] = Counter()
        """By key and namespace."""
        self.ended: Counter[str] = Counter()
        """Executions that were not interrupted."""
        self.attempts: Counter[tuple[str, int]] = Counter()
        """By task and number of the attempt."""
        self._hanging: dict[str, float] = {}
        self.hung_for: list[float] = []
        """Seconds from the start of an execution that hangs, in a process that is not disturbed, to that of the next one."""
        self.versions: dict[str, set[int]] = defaultdict(set)
        """Versions of the code, by the runs of functions that executed it."""
        self.replaced: list[str] = []
        """Work whose unique key was taken by an item."""
        self._running: Counter[str] = Counter()
        self.database = sqlite3.connect(":memory:")
        """The database of transactional steps."""
        self.database.execute("create table records (run_id text)")
        self.database.commit()

    async def execute(self, key: str, namespace: str, ctx: Context | None = None, charge_key: str | None = None) -> dict[str, Any]:
        """Execute one piece of work, in whatever way the case asks for, within the limit of the case."""
        self._running[namespace] += 1
        if self.case.at_once and self._running[namespace] > self.case.at_once and not self.case.fences:
            self.story.simulation.wrong(f"{self._running[namespace]} are executed at a time, with a limit of {self.case.at_once}")
        try:
            return await self._execute(key, namespace, ctx, charge_key)
        finally:
            self._running[namespace] -= 1

    async def _execute(self, key: str, namespace: str, ctx: Context | None, charge_key: str | None) -> dict[str, Any]:
        case, process, loop = self.case, current_process(), self.story.simulation.loop
        assert process is not None
        if not case.records:
            self.story.simulation.faults.began(process)
        who = f"{namespace}/{key}"
        self.executions[who] += 1
        number = self.executions[who]
        if ctx is None:
            await self.world.ask(self.world.charge, who, charge_key)
        else:
            self.attempts[ctx.task_id, ctx.attempt] += 1
            await ctx.effect("charge", lambda: self._charge(who, ctx.idempotency_key), {"key": key})
        if who in self._hanging:
            self.hung_for.append(loop.time() - self._hanging.pop(who))
        if number <= case.hangs:
            if "progress_every" in case.options and ctx is not None:
                ctx.progress(0.1)
            if case.fault not in REPEATING or process is not self.story.simulation.faults.victim:
                self._hanging[who] = loop.time()
            await asyncio.Event().wait()
        for _ in range(5):
            if ctx is not None and "progress_every" in case.options:
                ctx.progress(0.5)
            await asyncio.sleep(case.takes / 5)
        await process.pass_gate()
        self.ended[who] += 1
        if self.ended[who] <= case.dies:
            raise NonRetryable("it is of no use", "spoiled")
        if self.ended[who] <= case.dies + case.raises:
            raise OSError("not yet")
        return {"key": key} | case.returns | ({"content": key} if case.kind == "goal" else {})

    async def _charge(self, who: str, key: str) -> str:
        """Charge at a slow service: a fault hits before the answer."""
        receipt = await self.world.ask(self.world.charge, who, key)
        await asyncio.sleep(0.2 if "progress_every" in self.case.options else 0.5)
        return str(receipt)

    # what servers offer

    def offer(self, engine: Engine, namespace: str, scope: str | None) -> None:
        """Register the handlers, functions and specialists of a server."""
        case = self.case

        if case.kind == "goal":
            engine.goals.topology = TOPOLOGY

        @engine.handler("pair.After", retry=OFTEN)
        async def after(payload: Any) -> Any:
            assert payload["twice"] == payload["key"] * 2
            return {"key": payload["key"]}

        if case.polled:
            pass  # agents handle it
        elif case.payload:

            @engine.handler("pair.Do", retry=OFTEN)
            async def named(settings: dict[str, Any], ctx: Context) -> Any:
                done = await self.execute(settings["key"], namespace, ctx)
                return done | {"colour": settings["colour"]}

        elif case.handler == "batch":

            @engine.handler("pair.Do", batch=2, within=0.3, retry=OFTEN)
            async def do_all(payloads: list[Any], contexts: list[Context]) -> Any:
                pairs = zip(payloads, contexts, strict=True)
                calls = (self.execute(key_of(payload), namespace, ctx) for payload, ctx in pairs)
                return await asyncio.gather(*calls, return_exceptions=True)

        elif case.handler == "sync":

            @engine.handler("pair.Do", retry=OFTEN)
            def do_blocking(payload: Any, ctx: Context) -> Any:
                return self.execute(key_of(payload), namespace, ctx)  # the simulated thread awaits it

        else:

            @engine.handler("pair.Do", retry=OFTEN)
            async def do(payload: Any, ctx: Context) -> Any:
                return await self.execute(key_of(payload), namespace, ctx)

        @engine.handler("pair.Ask")
        async def ask(payload: Any, ctx: Context) -> Any:
            if ctx.approval_decision is None:
                self.story.simulation.faults.began(current_process())  # type: ignore[arg-type]
                return AwaitingApproval(ApprovalRequest.of("May I?", context=payload, expires=600))
            return {"key": payload["key"]}

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeterminismWarning)  # one forgets to await, which is reported here already
            engine.function("pair.Parent")(self._parent)
            function = self._forgetful if case.forgets else self._collecting if case.collects else self._function
            engine.function("pair.Function")(as_sync(function) if case.blocks else function)
            if case.upgrades and self.story.simulation.loop.time() >= UPGRADE_AT:
                function = self._changed
                engine.function("pair.Function", version=2)(as_sync(function) if case.blocks else function)
        engine.specialist("pair.Press", Press(self, namespace), scope=scope)

    async def _function(self, payload: Any, ctx: Any) -> Any:
        self.versions[ctx.run_id].add(1)
        done = await ctx.call("pair.Do", {"key": payload["key"]})
        if self.case.records:
            await ctx.transaction(self.database, self._record, ctx.run_id)
        await ctx.sleep(4 if self.case.upgrades else 0.5)
        return {"key": done["key"]}

    async def _changed(self, payload: Any, ctx: Any) -> Any:
        """Version 2, with a step more."""
        self.versions[ctx.run_id].add(2)
        await ctx.step(_greet, name="new")
        done = await ctx.call("pair.Do", {"key": payload["key"]})
        if self.case.records:
            await ctx.transaction(self.database, self._record, ctx.run_id)
        return {"key": done["key"]}

    async def _collecting(self, payload: Any, ctx: Any) -> Any:
        try:
            done = await ctx.call("pair.Do", {"key": payload["key"]})
        except TaskFailed:
            done = None
        await ctx.sleep(4 if self.case.upgrades else 0.5)
        if done is None:
            raise ValueError("1 of 1 calls failed")
        return {"key": done["key"]}

    async def _parent(self, payload: Any, ctx: Any) -> Any:
        return await (await ctx.start("pair.Function", payload)).result()

    async def _forgetful(self, payload: Any, ctx: Any) -> Any:
        ctx.call("pair.Do", {"key": payload["key"]})
        return {"key": payload["key"]}

    def _record(self, database: sqlite3.Connection, run_id: str) -> None:
        """Insert a row in a transaction, which the fault hits."""
        database.execute("insert into records values (?)", [run_id])
        self.story.simulation.faults.began(current_process(), 0.01)  # type: ignore[arg-type]

    # what clients submit

    async def submit(self, engine: Engine, api: Any, item: Item, number: int) -> str:
        """Submit an item; repeating it is harmless."""
        case, payload = self.case, {"key": item.key}
        if case.upgrades and number % 2:
            await asyncio.sleep(2 * UPGRADE_AT - self.story.simulation.loop.time())
        if case.pad and case.kind != "workflow":
            payload["pad"] = case.pad
        match case.kind:
            case "function" | "parent":
                return await self._submit_function(api, item, payload)
            case "workflow":
                flow = NEW_FLOW if case.upgrades and number % 2 else FLOW
                run = await engine.start_run([("pair.afl", flow)], "pair.Workflow", payload, **self._run_options(item))
                return run.id
            case "schedule":
                at = datetime.fromtimestamp(engine.kernel.core.clock.now() / 1000 + 1, UTC)
                try:
                    await engine.schedules.create(item.key, at=at, task="pair.Do", inputs=payload)
                except TreadleError as error:
                    if error.code != "schedule_exists":
                        raise
                return item.key
            case "watcher":
                self.files.places[f"/{item.key}"] = {"0.csv": File(item.key)}
                options: dict[str, Any] = {"every": 1, "settle": 1, "existing": "new", "inputs": payload}
                try:
                    await engine.watchers.create(item.key, directory=f"/{item.key}", task="pair.Do", **options)
                except TreadleError as error:
                    if error.code != "watcher_exists":
                        raise
                return item.key
            case "goal":
                goal = await engine.goals.objectives.add(f"Do {item.key}", actor="ada", key=item.key, metadata=payload)
                if goal.status == "NEW":
                    await engine.goals.objectives.approve(goal.objective_id, actor="ada")
                return goal.objective_id
            case "agent":
                return await self._submit_issue(engine, item, number)
            case kind:
                options = {"idempotency_key": item.key} | case.options
                for name in ("idempotency_key", "unique_key"):
                    if options.get(name) == "same":
                        options[name] = f"same-{item.key}"
                if case.payload and kind == "task":
                    payload = {"settings": payload | case.payload["settings"]}
                options["scope"] = case.scopes[number % len(case.scopes)]

                async def enqueue(payload: Any, **more: Any) -> str:
                    enqueue = engine.enqueue if case.polled else api.tasks.enqueue  # only Python has retry policies
                    return str((await enqueue(NAMES[kind], payload, **(options | more))).id)

                return await self._submit_with_key(item, payload, enqueue)

    async def _submit_function(self, api: Any, item: Item, payload: dict[str, Any]) -> str:
        async def start(payload: Any, **more: Any) -> str:
            options = self._run_options(item) | more
            return str((await api.functions.start(f"pair.{self.case.kind.title()}", payload, **options)).id)

        return await self._submit_with_key(item, payload, start)

    async def _submit_with_key(self, item: Item, payload: dict[str, Any], submit: Any) -> str:
        """Submit the item, and before or after it other work with the same unique key, if the case has one."""
        conflict, case = self.case.conflict, self.case
        if conflict is None:
            return str(await submit(payload))
        shared: dict[str, Any] = {"unique_key": f"one-{item.key}"}
        if case.kind in RUNS:
            shared["idempotency_key"] = None
            other = shared
        else:
            other = shared | {"idempotency_key": f"other-{item.key}"}
        if conflict == "debounce":
            shared = shared | {"delay": case.options.get("delay", 1), "max_wait": 8}
            other = other | {"delay": 1}
        if conflict == "reject":
            item_id = str(await submit(payload, **shared, on_conflict="return"))
            try:
                await submit(payload, on_conflict=conflict, **other)
            except Refused as error:
                if error.code != "unique_key_taken":
                    raise
                return item_id
            if await live_ids(self.story, replace(item, id=item_id)):
                self.story.simulation.wrong(f"{item.key}: a second live one was accepted")
            return item_id
        earlier = str(await submit({**payload, "key": f"other-{item.key}"}, **other))
        item_id = str(await submit(payload, on_conflict=conflict, **shared))
        if conflict == "replace":
            self.replaced.append(earlier)
        elif item_id != earlier:
            self.story.simulation.wrong(f"{item.key}: the second start is {item_id}, not {earlier}")
        return item_id

    def _run_options(self, item: Item) -> dict[str, Any]:
        return {"idempotency_key": item.key} | self.case.run_options

    async def _submit_issue(self, engine: Engine, item: Item, number: int) -> str:
        repository = {
            "id": 1,
            "name": "loom",
            "full_name": "ada/loom",
            "owner": {"login": "ada"},
            "clone_url": "https://example.org/loom.git",
            "default_branch": "main",
        }
        issue = {"id": number + 1, "number": number + 1, "title": item.key, "body": "", "repository": repository}
        made = await AgentCoordinator(engine, CONFIG).submit(issue, metadata={"key": item.key}, idempotency_key=item.key)
        return made.id

    # who else takes part

    async def approve(self, engine: Engine) -> None:
        """Approve or deny what is asked, every second."""
        while True:
            await asyncio.sleep(1)
            for approval in (await engine.approvals.list()).approvals:
                await (engine.approvals.deny if self.case.denies else engine.approvals.approve)(approval.id, actor="ada")

    async def poll(self, engine: Engine, process: Process) -> None:
        """Poll as an agent."""

        async def execute(payload: dict[str, Any]) -> dict[str, Any]:
            self.attempts[payload["_task_id"], payload["_attempt"]] += 1
            return await self.execute(payload["key"], "default", charge_key=payload["_task_id"])

        await poll(engine, process, execute)

    async def serve_remotely(self, engine: Engine, process: Process) -> None:
        """Register as a remote worker, and do what it claims."""
        remote, lease = engine.kernel.remote_workers, self.story.simulation.lease
        worker = await remote.register(process.name, handlers=["out.*"], concurrency=2, heartbeat_every=2)
        while True:
            for claimed in await remote.claim(worker.id, limit=1, wait_for=2, lease_for=lease):
                task = claimed.task
                claim = (worker.id, task.id, task.claim_version)
                self.attempts[task.id, task.attempt] += 1
                done = await self.execute(claimed.payload["key"], "default", charge_key=task.id)
                await _until_answered(lambda claim=claim, done=done: remote.complete(*claim, done))  # type: ignore[misc]

    async def coordinate(self, engine: Engine, process: Process) -> None:
        """Run a dispatch coordinator."""
        coordinator = AgentCoordinator(engine, CONFIG, machine=process)

        async def solve(job: Any) -> Any:
            return await self.execute(job.metadata["key"], "default", charge_key=job.id)

        await coordinator.run(solve, worker_id=process.shown, grace=0)


def key_of(payload: Any) -> str:
    """The key of the work; objectives have it in their metadata."""
    return str((payload["objective"]["metadata"] if "objective" in payload else payload)["key"])


async def _greet() -> str:
    return "hello"


async def _until_answered(call: Any) -> None:
    while True:
        try:
            await call()
            return
        except ClaimLost:
            return
        except StoreError:
            await asyncio.sleep(0.5)


class Press(Specialist):
    """An external service."""

    def __init__(self, work: Work, namespace: str) -> None:
        self._work, self._namespace = work, namespace

    async def start(self, payload: Any, ctx: Context) -> Any:
        world = self._work.world
        self._work.story.simulation.faults.began(current_process())  # type: ignore[arg-type]
        who = f"{self._namespace}/{payload['key']}"
        self._work.executions[who] += 1
        return ExternalProductionHandle(await world.ask(world.submit, who, ctx.dispatch_token, 1.5), 1.0)

    async def poll(self, external_job_id: str, ctx: Context) -> Any:
        world = self._work.world
        if await world.ask(world.look, external_job_id):
            return {"key": world.jobs[external_job_id].key.partition("/")[2]}
        return ExternalProductionHandle(external_job_id, 1.0)

    async def find(self, token: str) -> Any:
        job_id = await self._work.world.ask(self._work.world.find, token)
        return None if job_id is None else ExternalProductionHandle(job_id, 1.0)

    async def cancel(self, external_job_id: str) -> None:
        await self._work.world.ask(self._work.world.stop, external_job_id)
