"""Entry points of the processes that these tests start, stop and kill: `python -m tests.crash.child ROLE ...`.

The store is that of TREADLE_STORE. Effects are lines in a file that all processes append to: WHAT TASK ATTEMPT PID.
Events go to stdout, one JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import importlib
import importlib.util
import json
import os
import signal
import sqlite3
import sys
import time
import urllib.request
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psycopg
from tests.functions.blocking import as_sync
from tests.kernels import move_to
from tests.limits import BOUND
from tests.workers import isolated

from treadle import ApprovalRequest, AwaitingApproval, Context, Engine, Specialist, TaskSpec
from treadle.kernel.store.process import SystemClock, arm
from treadle.kernel.telemetry.events import TaskSettled, TaskTaken, TelemetryEvent
from treadle.model.clock import Duration
from treadle.settings import load_settings
from treadle.stores.postgres.connection.address import parse_address
from treadle.workers.signatures import unwrapped


def tell(what: str, **details: Any) -> None:
    sys.stdout.write(json.dumps({"event": what, **details}) + "\n")
    sys.stdout.flush()


def emit(event: TelemetryEvent) -> None:
    if not isinstance(event, TaskTaken | TaskSettled):
        tell(type(event).__name__, **msgspec.structs.asdict(event))


def crash_at(spec: str) -> None:
    """Die at the n-th passing of a named point: `point:n`."""
    point, _, number = spec.partition(":")
    left = int(number or 1)

    def passed(here: str) -> None:
        nonlocal left
        if here == point:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    arm(passed)


def add_handlers(engine: Engine, effects: Path, go: Path) -> None:
    def effect(what: str, ctx: Context) -> None:
        with effects.open("ab", buffering=0) as file:
            file.write(f"{what} {ctx.task_id} {ctx.attempt} {os.getpid()}\n".encode())

    @engine.handler("note")
    async def note(payload: Any, ctx: Context) -> dict[str, Any]:
        effect("note", ctx)
        return {"pid": os.getpid(), "done": "note"}

    @engine.handler("note_batch", batch=3, within=0.05)
    async def note_batch(payloads: list[Any], contexts: list[Context]) -> list[dict[str, Any]]:
        for ctx in contexts:
            effect("note", ctx)
        return [{"pid": os.getpid(), "done": "note"}] * len(payloads)

    @engine.handler("work", retry=5)
    async def work(payload: Any, ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(0.005)  # so that kills hit work in progress
        effect("work", ctx)
        return {"pid": os.getpid()}

    @engine.handler("hang_once")
    async def hang_once(payload: Any, ctx: Context) -> dict[str, Any]:
        """Block forever in the first execution; return in later ones."""
        effect("start", ctx)
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        effect("end", ctx)
        return {"pid": os.getpid()}

    @engine.handler("late_once")
    async def late_once(payload: Any, ctx: Context) -> dict[str, Any]:
        """Finish the first execution only when the test allows it, and keep the event loop busy until then."""
        effect("start", ctx)
        while ctx.attempt == 1 and not go.exists():  # noqa: ASYNC240
            time.sleep(0.01)  # noqa: ASYNC251 - so that nothing comes between the handler's end and its settle
        effect("end", ctx)
        return {"pid": os.getpid()}

    @engine.handler("gated")
    async def gated(payload: Any, ctx: Context) -> dict[str, Any]:
        """Wait until the test allows the end."""
        effect("gated", ctx)
        while not go.exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)
        return {"pid": os.getpid()}

    @engine.handler("hold")
    async def hold(payload: Any, ctx: Context) -> dict[str, Any]:
        """Says when it begins and ends; in between, others have time to do wrong."""
        effect("begin", ctx)
        await asyncio.sleep(payload["seconds"])  # others have time to do wrong
        effect("end", ctx)
        return {"pid": os.getpid()}

    @engine.handler("freeze")
    async def freeze(payload: Any, ctx: Context) -> None:
        """Hold the interpreter lock: no thread of this process runs meanwhile."""
        effect("begin", ctx)
        ctypes.PyDLL(None).usleep(round(payload["seconds"] * 1e6))
        effect("end", ctx)

    @engine.handler("die")
    async def die(payload: Any, ctx: Context) -> None:
        """Kill the worker, until the test allows it to live."""
        effect("begin", ctx)
        if not go.exists():  # noqa: ASYNC240
            os.kill(os.getpid(), signal.SIGKILL)

    @engine.handler("speak")
    async def speak(payload: Any, ctx: Context) -> None:
        """Append entries to a stream, one by one; an effect for each that is stored."""
        tokens = ctx.stream("tokens")
        for number in range(payload["count"]):
            tokens.write([ctx.attempt, number])
            await tokens.flush()
            effect(f"stored-{number}", ctx)
        tokens.write([ctx.attempt, "end"])

    engine.handler("isolated", isolation="process")(isolated.hang_with_a_child)

    @engine.handler("pursue", retry=2)
    async def pursue(payload: Any, ctx: Context) -> dict[str, Any]:
        """Objectives say in their metadata how many of their workorders are to fail."""
        effect("pursue", ctx)
        tries = len(payload["objective"]["workorders"])
        return {"content": "ok" if tries >= payload["objective"]["metadata"].get("failing", 0) else "no"}


def add_functions(engine: Engine, effects: Path) -> None:
    async def effect(what: str, ctx: Any) -> str:
        with effects.open("ab", buffering=0) as file:
            file.write(f"{what} {ctx.run_id} 1 {os.getpid()}\n".encode())
        return what

    @engine.function("ten")
    async def ten(payload: Any, ctx: Any) -> Any:
        """Ten steps of all kinds, each with an effect that can be counted."""
        done = [await ctx.step(effect, f"step{number}", ctx, name=f"step{number}") for number in range(4)]
        await ctx.sleep(0.01)
        done.append((await ctx.call("note"))["done"])
        done += await ctx.gather(*(ctx.step(effect, f"branch{number}", ctx, name="branch") for number in range(3)))
        child = await ctx.start("one", {"of": ctx.run_id})
        done.append(await child.result())
        done.append(await ctx.step(effect, "last", ctx, name="last"))
        return done

    @engine.function("one")
    async def one(payload: Any, ctx: Any) -> Any:
        return await ctx.step(effect, "child", ctx, name="child")

    @engine.function("listen")
    async def listen(payload: Any, ctx: Any) -> Any:
        """An effect for each entry of a stream."""
        entries = ctx.read_stream(payload["task"], "tokens")
        return [await ctx.step(effect, f"heard{entry.value}", ctx) async for entry in entries]

    @engine.function("race")
    async def race(payload: Any, ctx: Any) -> Any:
        await ctx.step(effect, "reserve", ctx, key="reserve")
        try:
            winner = await ctx.first(answer=ctx.wait_for("answer"), job=ctx.call("nobody", {}))
            await ctx.step(effect, "after", ctx, key="after")
            return winner.name
        finally:
            await ctx.step(effect, "release", ctx, key="release")

    def user_database() -> Any:
        """The user's database: a file beside the effects, or the server of the store."""
        address = load_settings().store
        if address.startswith("sqlite:"):
            return sqlite3.connect(effects.with_name("shop.db"), timeout=BOUND)
        store = parse_address(address)
        return psycopg.connect(store.dsn, options=f"-csearch_path={store.schema}_shop")

    async def user_database_async() -> Any:
        store = parse_address(load_settings().store)
        return await psycopg.AsyncConnection.connect(store.dsn, options=f"-csearch_path={store.schema}_shop")

    def add_order(connection: Any, number: int, ctx: Any) -> str:
        connection.execute(f"insert into orders values ({number})")
        with effects.open("ab", buffering=0) as file:
            file.write(f"order{number} {ctx.run_id} 1 {os.getpid()}\n".encode())
        return f"order{number}"

    async def add_order_async(connection: Any, number: int, ctx: Any) -> str:
        await connection.execute(f"insert into orders values ({number})")
        return f"order{number}"

    @engine.function("orders")
    async def orders(payload: Any, ctx: Any) -> Any:
        """Three transactional steps; on a server, the last one has an async driver."""
        done = [await ctx.transaction(user_database, add_order, number, ctx) for number in range(2)]
        if load_settings().store.startswith("sqlite:"):
            return [*done, await ctx.transaction(user_database, add_order, 2, ctx)]
        return [*done, await ctx.transaction(user_database_async, add_order_async, 2, ctx)]

    for name, code in (("ten", ten), ("race", race), ("orders", orders)):
        engine.function(f"{name}_sync")(as_sync(unwrapped(code)))


async def run_function_starter(options: argparse.Namespace) -> None:
    """Start a function, with a key, so that doing it again is safe."""
    engine = Engine(emit=emit)
    add_functions(engine, options.effects)
    async with engine:
        if options.on_conflict:
            keyed: Any = {"unique_key": "only", "on_conflict": options.on_conflict, "delay": 1e6}
            started = await engine.start_function("ten", {"by": os.getpid()}, **keyed)
        else:
            started = await engine.start_function(options.name or "ten", idempotency_key="only")
        tell("started", id=started.id, created=started.created)


def add_payers(engine: Engine) -> None:
    """Handlers with effects at a server that is told the keys; each makes as many as the payload says, one after another."""

    def pay_one(url: str, number: int, ctx: Any) -> Any:
        attempt = ctx.attempt if isinstance(ctx, Context) else 0
        headers = {"Idempotency-Key": ctx.attempt_key, "Dedupe-Key": ctx.dedupe_key, "Attempt": str(attempt)}
        request = urllib.request.Request(f"{url}/step-{number}", b"", headers, method="POST")
        with urllib.request.urlopen(request, timeout=BOUND) as answer:
            return json.load(answer)

    @engine.handler("pay")
    async def pay(payload: Any, ctx: Context) -> dict[str, Any]:
        receipts = []
        for number in range(payload["steps"]):
            work = partial(asyncio.to_thread, pay_one, payload["url"], number, ctx)
            receipts.append(await ctx.effect(f"pay-{number}", work, {"step": number}))
        return {"receipts": receipts}

    @engine.function("pay_together")
    async def pay_together(payload: Any, ctx: Any) -> Any:
        """So many effects, the last two of them at once."""
        steps = [partial(pay_one, payload["url"], number, ctx) for number in range(payload["steps"])]
        effects = [ctx.effect(f"pay-{number}", step, {"step": number}) for number, step in enumerate(steps)]
        paid = [await effect for effect in effects[:-2]]
        paid += await ctx.gather(*effects[-2:])
        return [each["step"] for each in paid]

    @engine.handler("pay_sync")
    def pay_sync(payload: Any, ctx: Context) -> dict[str, Any]:
        pay = [partial(pay_one, payload["url"], number, ctx) for number in range(payload["steps"])]
        return {"receipts": [ctx.effect_blocking(f"pay-{n}", call, {"step": n}) for n, call in enumerate(pay)]}

    @engine.function("pay_all")
    async def pay_all(payload: Any, ctx: Any) -> Any:
        """As many effects as the payload says, each a step of its own."""

        def pay_step(number: int) -> Any:
            headers = {"Idempotency-Key": ctx.attempt_key, "Dedupe-Key": ctx.dedupe_key, "Attempt": "1"}
            request = urllib.request.Request(f"{payload['url']}/step-{number}", b"", headers, method="POST")
            with urllib.request.urlopen(request, timeout=BOUND) as answer:
                return json.load(answer)["step"]

        unknown = payload.get("on_unknown", "repeat")
        return [
            await ctx.effect(f"pay-{number}", partial(pay_step, number), {"step": number}, on_unknown=unknown)
            for number in range(payload["steps"])
        ]


async def run_worker(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await asyncio.gather(*[run_one_worker(options, stop) for _ in range(options.workers)])


class WrongClock(SystemClock):
    """As far off as the test says."""

    def __init__(self, off_by: int) -> None:
        self._off_by = off_by

    def now(self) -> int:
        return super().now() + self._off_by


async def run_one_worker(options: argparse.Namespace, stop: asyncio.Event) -> None:
    settings = replace(load_settings(), poll_interval=options.poll_every)
    clock = WrongClock(options.clock_off_by) if options.clock_off_by else None
    engine = Engine(emit=emit, clock=clock, settings=settings)
    add_handlers(engine, options.effects, options.go)
    add_functions(engine, options.effects)
    add_payers(engine)
    add_askers(engine)
    if options.topology is not None:
        engine.goals.use_topology(options.topology, roles=options.roles)
    if options.farm:
        add_farms(engine, options.farm)
    if options.graphs:
        importlib.import_module("tests.crash.graphs").add_graphs(engine, options.effects, options.graphs)
    lease: Duration = options.lease
    name = options.name or None
    async with engine, engine.worker(lease=lease, grace=options.grace, concurrency=options.concurrency, name=name) as host:
        tell("ready", owner_id=host.owner_id)
        await stop.wait()
    tell("end", handled=host.worker.handled, released=host.worker.released)


async def run_enqueuer(options: argparse.Namespace) -> None:
    """Enqueue tasks one after another, each with a key of its own, so that doing it again is safe.

    With `--on-conflict`, enqueue one that says who enqueued it, under the key of the live one.
    """
    async with Engine(emit=emit) as engine:
        if options.on_conflict:
            keyed: Any = {"unique_key": "only", "on_conflict": options.on_conflict, "delay": 1e6}
            done = await engine.enqueue("note", {"by": os.getpid()}, **keyed)
            tell("enqueued", id=done.id, created=done.created)
            return
        for number in range(options.count):
            done = await engine.enqueue("note", {"n": number}, unique_key=f"key-{number}")
            tell("enqueued", id=done.id)


async def run_filler(options: argparse.Namespace) -> None:
    """Enqueue many at once."""
    async with Engine(emit=emit) as engine:
        await engine.enqueue_many([TaskSpec(name="note", payload={"n": number}) for number in range(options.count)])


def add_askers(engine: Engine) -> None:
    @engine.handler("ask")
    async def ask(payload: Any, ctx: Context) -> Any:
        """Ask first; then say who approved."""
        if ctx.approval_decision is None:
            return AwaitingApproval(ApprovalRequest.of("Go?", **payload))
        return {"by": ctx.approval_decision["by"], "pid": os.getpid()}


def add_farms(engine: Engine, url: str) -> None:
    """The specialist of the example: as it is, without a way to find jobs, and for a farm that makes one job of two submits."""
    example = load_example("render_farm", "handlers")
    farm = example.RenderFarm(url, interval=0.2)

    class Blind(Specialist):
        start, poll = farm.start, farm.poll

    engine.specialist("farm", farm)
    engine.specialist("blind_farm", Blind())
    engine.specialist("deduping_farm", Blind(), idempotent_start=True)


def load_example(name: str, module: str) -> Any:
    path = Path(__file__).parents[2] / "examples" / name / f"{module}.py"
    spec = importlib.util.spec_from_file_location(f"example_{name}_{module}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


async def run_agent(options: argparse.Namespace) -> None:
    """Serve the example of an agent, with its effects in the scene's folder."""
    for service, url in (("ANTHROPIC", options.model), ("OPENAI", f"{options.model}/v1")):
        os.environ |= {f"{service}_API_KEY": "scripted", f"{service}_BASE_URL": url}  # noqa: TID251
    os.chdir(options.effects.parent)
    engine = load_example(options.example, "agent").engine
    async with engine, engine.worker(lease=options.lease, grace=options.grace):
        tell("ready")
        await asyncio.Event().wait()


async def run_decider(options: argparse.Namespace) -> None:
    async with Engine(emit=emit) as engine:
        (pending,) = (await engine.approvals.list()).approvals
        await engine.approvals.decide(pending.id, options.decision, actor="ada")


async def run_operator(options: argparse.Namespace) -> None:
    async with Engine(emit=emit) as engine:
        await engine.cancel(options.task)


async def run_scheduler(options: argparse.Namespace) -> None:
    """Edit the one schedule that there is."""
    async with Engine(emit=emit) as engine:
        await engine.schedules.edit("tidy", every=60)


async def run_asker(options: argparse.Namespace) -> None:
    """Add an objective with a key and approve it, so that doing it again is safe."""
    async with Engine(emit=emit) as engine:
        made = await engine.goals.objectives.add("Do it", actor="ada", key="only")
        tell("added", id=made.objective_id)
        await engine.goals.objectives.approve(made.objective_id, actor="ada")
        tell("approved", id=made.objective_id)


async def run_starter(options: argparse.Namespace) -> None:
    """Start a run, with a key, so that doing it again is safe."""
    async with Engine(emit=emit) as engine:
        source = [("crash.afl", options.flow.read_text())]
        started = await engine.start_run(source, options.workflow, json.loads(options.inputs), idempotency_key="only")
        tell("started", id=started.id, created=started.created)


async def run_gateway(options: argparse.Namespace) -> None:
    """The server side of one remote worker: its claims wait here, and its results are settled here."""
    async with Engine(emit=emit) as engine:
        workers = engine.kernel.remote_workers
        worker = await workers.register("shell", handlers=["note"])
        while True:
            tell("waiting", worker_id=worker.id)
            for claimed in await workers.claim(worker.id, wait_for=30, lease_for=options.lease):
                await workers.complete(worker.id, claimed.task.id, claimed.claim_version, {"pid": os.getpid()})
                tell("completed", id=claimed.task.id, attempt=claimed.attempt)


ROLES = {
    "agent": run_agent,
    "gateway": run_gateway,
    "starter": run_starter,
    "function_starter": run_function_starter,
    "asker": run_asker,
    "worker": run_worker,
    "enqueuer": run_enqueuer,
    "filler": run_filler,
    "operator": run_operator,
    "scheduler": run_scheduler,
    "decider": run_decider,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=ROLES)
    parser.add_argument("--effects", type=Path)
    parser.add_argument("--go", type=Path, default=Path("/nonexistent"))
    parser.add_argument("--clock-off-by", type=int, default=0)
    parser.add_argument("--lease", type=float, default=BOUND)
    parser.add_argument("--grace", type=float, default=BOUND)
    parser.add_argument("--poll-every", type=float, default=5.0)
    parser.add_argument("--concurrency", type=int, default=20)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--kernel", default="")
    parser.add_argument("--crash-at", default="")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--task", default="")
    parser.add_argument("--name", default="")
    parser.add_argument("--on-conflict", default="")
    parser.add_argument("--decision", default="approve")
    parser.add_argument("--farm", default="")
    parser.add_argument("--graphs", default="")
    parser.add_argument("--example", default="")
    parser.add_argument("--model", default="")
    parser.add_argument("--flow", type=Path)
    parser.add_argument("--topology", type=Path)
    parser.add_argument("--role", dest="roles", action="append")
    parser.add_argument("--workflow")
    parser.add_argument("--inputs", default="{}")
    options = parser.parse_args()
    if options.kernel:
        move_to(options.kernel)
    if options.crash_at:
        crash_at(options.crash_at)
    asyncio.run(ROLES[options.role](options))


if __name__ == "__main__":
    main()
