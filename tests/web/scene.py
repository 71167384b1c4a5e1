"""A store in which everything that the dashboard shows is there: a shop in the middle of a busy day.

`python -m tests.web.scene` serves it, to look around.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.goals.scene import GATE, NOT_OK, READINESS, RUN, SCHEDULE, play, play_all, take
from tests.limits import BOUND

from treadle import Context, Engine, FunctionContext, NonRetryable, RetryPolicy
from treadle.interfaces.http.server import HttpOptions, HttpServer
from treadle.interfaces.web.site import add_pages
from treadle.kernel.store.process import SystemClock
from treadle.model.approvals import ApprovalRequest
from treadle.model.external import ExternalProductionFailure, ExternalProductionHandle
from treadle.model.outcomes import AwaitingApproval
from treadle.model.records import HandlerRegistration
from treadle.model.tasks import Server
from treadle.model.usage import Usage
from treadle.testing import StubExternalSpecialist

EXAMPLES = Path(__file__).parents[2] / "examples"
ITEMS = 24
TOPOLOGY = """
name: shop
types:
  TICKET:
    handler: patch.write
    budget: 30m
    max_workorders: 3
    gates: [{use: regex, name: says-ok, pattern: ok}]
"""

Say = Callable[[str], str]


class ShiftedClock(SystemClock):
    """The machine's clock, set back: what is made first is old when all is there."""

    def __init__(self, back_for: int) -> None:
        self.back_for = back_for

    def now(self) -> int:
        """The wall clock, in milliseconds."""
        return super().now() - self.back_for


@dataclass
class Scene:
    """The engine, who may look at it, and the ids that pages have in their paths."""

    engine: Engine
    folder: Path
    say: Say
    """Every text that a user can choose freely goes through it."""
    secret: str = ""
    """Of a token that may do everything."""
    reader: str = ""
    """Of a token that may only look."""
    ids: dict[str, str] = field(default_factory=dict)

    def key(self, text: str) -> str:
        """For what must be short and printable."""
        return "".join(each for each in self.say(text) if each.isprintable())[:480]

    @property
    def paths(self) -> dict[str, str]:
        """Every page, by a name for its picture."""
        of = self.ids
        return {
            "overview": "/",
            "runs": "/runs",
            "runs-search": f"/runs?search=shop&workflow={of['workflow']}",
            "runs-bulk": "/runs/bulk?action=cancel&state=running",
            "run": f"/runs/{of['run']}",
            "run-big": f"/runs/{of['big']}",
            "run-failed": f"/runs/{of['failed']}",
            "run-steps": f"/runs/{of['run']}?view=steps",
            "run-source": f"/runs/{of['failed']}?view=source",
            "run-logs": f"/runs/{of['run']}?view=logs",
            "run-transitions": f"/runs/{of['run']}?view=transitions",
            "run-values": f"/runs/{of['llm']}?view=values",
            "run-function": f"/runs/{of['function']}",
            "run-waiting": f"/runs/{of['waiting']}",
            "trace": f"/traces/{of['run']}",
            "trace-function": f"/traces/{of['function']}",
            "step": f"/runs/{of['run']}/steps/Checkout.stock",
            "flows": "/flows",
            "flow": "/flows/checkout",
            "flow-start": "/flows/checkout/start",
            "function-start": "/functions/trip.Book/start",
            "editor": "/editor?flow=checkout",
            "tasks": "/tasks",
            "task": f"/tasks/{of['task']}",
            "task-running": f"/tasks/{of['running']}",
            "task-dead": f"/tasks/{of['dead']}",
            "alerts": "/alerts",
            "lists": "/lists",
            "list": "/lists/default",
            "list-paused": "/lists/night",
            "dead-letters": "/dead-letters",
            "dead-group": f"/dead-letters?fingerprint={of['fingerprint']}",
            "dead-bulk": "/dead-letters/retry?name=mail.Send",
            "approvals": "/approvals",
            "approvals-decided": "/approvals?state=approved",
            "approval": f"/approvals/{of['approval']}",
            "approval-decided": f"/approvals/{of['decided']}",
            "effects": "/effects",
            "external-jobs": "/external-jobs",
            "external-job": f"/external-jobs/{of['job']}",
            "schedules": "/schedules",
            "schedule": "/schedules/nightly",
            "schedule-backfill": "/schedules/nightly?since=2026-01-01T00:00&until=2026-01-04T00:00",
            "task-new": "/tasks/new",
            "schedule-new": "/schedules/new?cron=0+3+*+*+*&zone=Europe/Berlin&name=weekly",
            "watchers": "/watchers",
            "watcher": "/watchers/incoming",
            "objectives": "/objectives",
            "objective": f"/objectives/{of['objective']}",
            "objective-blocked": f"/objectives/{of['blocked']}",
            "handlers": "/handlers",
            "handler-new": "/handlers/new",
            "handler": "/handlers/billing.Charge",
            "servers": "/servers?every",
            "server": f"/servers/{of['server']}",
            "events": "/events",
            "audit": "/audit",
            "find": "/find?q=shop",
            "find-nothing": "/find?q=nothing+like+this",
            "metrics": "/metrics/work",
            "settings": "/settings",
            "settings-retention": "/settings/retention",
            "settings-store": "/settings/store",
            "login": "/login",
            "go": f"/go/{of['approval']}",
            "trouble": "/runs/01935b8e-7c3a-7000-8000-000000000000",
        }


@asynccontextmanager
async def set_scene(folder: Path, say: Say = str, *, busy: bool = False) -> AsyncIterator[Scene]:
    """The scene, filled; all of it happened within the last three hours. `busy`: there was work in each minute of the last."""
    clock = ShiftedClock(3 * 3_600_000)
    engine = Engine("memory://", clock=clock)
    (folder / "topology.yaml").write_text(TOPOLOGY)
    engine.goals.use_topology(folder / "topology.yaml")
    scene = Scene(engine, folder, say)
    add_handlers(scene)
    async with engine:
        for hours_back, fill in ((3, add_goals), (2, add_runs), (1, add_queue), (0.4, add_people), (0.1, add_rest)):
            clock.back_for = round(hours_back * 3_600_000)
            await fill(scene)
        if busy:
            await add_hour(scene, clock)
        clock.back_for = 0
        await engine.alerts.create("failures", when="run_failed", to="https://ops.example.org/hook", within=86_400, every=3600)
        await engine.alerts.silence("failures", 86_400)
        async with engine.worker(name=say("loom-1"), concurrency=16, task_lists=["default", "mail", "night"], grace=0):
            await add_present(scene)
            await until(lambda: _fires(engine))
            yield scene


async def _fires(engine: Engine) -> bool:
    return bool((await engine.alerts.list(firing=True)).alerts)


def add_handlers(scene: Scene) -> None:
    """Register the handlers of the shop."""
    engine, say, key = scene.engine, scene.say, scene.key

    @engine.handler("shop.Reserve")
    async def reserve(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        ctx.log(say("Looked at the shelf"), lines=len(payload["lines"]))
        ctx.log(say("Stock is getting low"), "warning", sku="pen", left=7)
        await asyncio.sleep(0.02)  # durations that pages show
        return {"reservation": say("res-7f3a"), "total": sum(each["qty"] * each["price"] for each in payload["lines"])}

    @engine.handler("shop.Charge", retry=RetryPolicy.of(3, first=0.05))
    async def charge(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        if payload["card"].startswith("bad"):
            raise NonRetryable(say("card declined"), "declined")
        if payload["card"].startswith("slow") and ctx.attempt == 1:
            ctx.log(say("The bank did not answer in time"), "error")
            raise ConnectionError(say("the bank is busy"))
        await asyncio.sleep(0.03)  # durations that pages show
        return {"receipt": say("12.80 EUR on visa")}

    @engine.handler("shop.Ship")
    async def ship(payload: dict[str, Any]) -> dict[str, Any]:
        if "Nowhere" in payload["address"]:
            raise ValueError(say("no such address: Nowhere 1"))
        return {"parcel": say("parcel 4711")}

    @engine.handler("shop.Release")
    async def release(payload: dict[str, Any]) -> dict[str, Any]:
        return {"released": True}

    @engine.handler("sales.Turnover")
    async def turnover(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        ctx.log(say(f"Asked {payload['shop']}"))
        return {"amount": 17.5 * len(payload["shop"])}

    @engine.handler("mail.Send", retry=0)
    async def send(payload: dict[str, Any]) -> dict[str, Any]:
        match payload.get("n", 0) % 3:
            case 0:
                raise TimeoutError(say(f"mail.example.org did not answer within {payload['n'] + 2} s"))
            case 1:
                raise NonRetryable(say("the mailbox is full"), "mailbox_full")
        return {"id": say("<msg-1@example.org>")}

    @engine.handler("report.Build", progress_every=3600)
    async def build(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
        ctx.progress(0.4, say("2 of 5 chapters"))
        if payload.get("forever"):
            await asyncio.Event().wait()
        return {"pages": 12}

    @engine.handler("refund.Pay")
    async def refund(payload: dict[str, Any], ctx: Context) -> Any:
        if ctx.approval_decision is None:
            return AwaitingApproval(
                ApprovalRequest.of(
                    say(f"Refund {payload['amount']} EUR to {payload['name']}?"),
                    context={"amount": payload["amount"], "customer": say(payload["name"]), "why": say("the parcel was wet")},
                    requested_by=key("support"),
                    edits=True,
                    expires=3 * 86_400,
                )
            )
        return {"refunded": payload["amount"]}

    @engine.handler("patch.write")
    async def patch(payload: dict[str, Any]) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def look_up(order: dict[str, Any]) -> dict[str, Any]:
        return {"order": say(order["id"]), "total": 310}

    async def book(what: str) -> str:
        return say(f"{what} booked")

    async def fail() -> str:
        raise ValueError(say("no car left in Rome"))

    @engine.function("order.Review")
    async def review(payload: dict[str, Any], ctx: FunctionContext) -> dict[str, Any]:
        found = await ctx.step(look_up, payload, name="look_up")
        ctx.log(say("A big order: somebody must look at it"))
        said = await ctx.approval(
            say(f"Ship order {payload['id']} on account?"),
            context={"total": found["total"], "customer": say("Grace Hopper")},
            deciders=[key("sales")],
            quorum=2,
            expires=86_400,
        )
        return {"by": said["by"]}

    @engine.function("trip.Book")
    async def trip(payload: dict[str, Any], ctx: FunctionContext) -> dict[str, Any]:
        booked = await ctx.gather(*(ctx.step(book, what, name=f"book_{what}") for what in ("flight", "hotel")))
        if payload.get("wait"):
            await ctx.wait_for("answer", timeout=86_400)
        if payload.get("fail"):
            await ctx.step(fail, name="book_car")
        return {"booked": booked}

    farm = [ExternalProductionHandle("farm/77", 3600, say(f"frame {n * 30} of 240"), n / 8) for n in range(1, 6)]
    engine.specialist(
        "render.Farm",
        StubExternalSpecialist(
            [*farm, ConnectionError(say("the farm did not answer"))],
            start_outcome=ExternalProductionHandle("farm/77", 0.05, say("queued behind 3 others"), 0.0),
        ),
    )
    engine.specialist(
        "render.Lost",
        StubExternalSpecialist(
            [ExternalProductionFailure(say("the scene file is broken"), "render_failed")],
            external_job_id="farm/78",
            initial_polling_interval_seconds=0.05,
        ),
    )


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for the engine to get there."""
    async with asyncio.timeout(BOUND):
        while not await holds():  # noqa: ASYNC110 - it is the store that changes
            await asyncio.sleep(0.02)


async def add_goals(scene: Scene) -> None:
    """Objectives of every status; one was tried and judged."""
    objectives, say, key = scene.engine.goals.objectives, scene.say, scene.key
    criteria = [say("The tests pass"), say("The greeting is polite")]
    made = [
        await objectives.add(say(title), actor=key("ada"), acceptance_criteria=criteria, importance=n % 5, prompt=say("Be brief."))
        for n, title in enumerate(
            (
                "The receipt must name the customer",
                "Parcels that come back are booked",
                "A shop that is silent is asked again",
                "Write the release notes",
                "Prices with more than two digits",
            )
        )
    ]
    for each in made[:2]:
        await objectives.approve(each.objective_id, actor=key("ada"))
    await play_all(scene.engine, READINESS)
    await play_all(scene.engine, SCHEDULE)
    written = {"title": say("Patch"), "content": say("it is ok"), "notes": [say("changed one line")]}
    await play(scene.engine, RUN, written)
    passed = {"gates": [{"gate": "says-ok", "result": "PASS", "reason": say("it says ok")}]}
    await play(scene.engine, GATE, passed)
    await play(scene.engine, RUN, {"content": say("it is not")})
    await play(scene.engine, GATE, NOT_OK)
    await objectives.approve(made[2].objective_id, actor=key("ada"))
    await objectives.block(made[2].objective_id, actor=key("ada"), reason=say("legal has to look at it first"))
    await objectives.approve(made[3].objective_id, actor=key("ada"))
    await take(scene.engine, RUN)
    states = {each.objective_id: (await objectives.get(each.objective_id)).status for each in made}
    scene.ids["objective"] = next(each for each, status in states.items() if status == "DONE")
    scene.ids["blocked"] = made[2].objective_id


async def add_runs(scene: Scene) -> None:
    """Runs of all states and kinds, a wide one among them."""
    engine, say, key = scene.engine, scene.say, scene.key
    checkout, regions = ((EXAMPLES / name / "flow.afl").read_text() for name in ("checkout", "regions"))
    commented = f"// {re.sub(r'[^ -~]', ' ', say('The flow of the shop'))}\n{checkout}"
    await engine.kernel.flows.publish("checkout", [("checkout.afl", re.sub(r" +sys.log.*", "", checkout))], actor=key("ada"))
    await engine.kernel.flows.publish("checkout", [("checkout.afl", commented)], actor=key("grace"))
    await engine.kernel.flows.publish("regions", [("regions.afl", regions)], actor=key("ada"))
    lines = [{"sku": say("pen"), "qty": 4, "price": 1.2}, {"sku": say("book"), "qty": 1, "price": 8.0}]
    given = {"lines": lines, "card": "visa-1", "address": say("Main St 1, Ulm")}
    started: dict[str, Any] = {}
    async with engine.worker(name=say("loom-0"), grace=0):
        for name, more in (("run", {"card": "slow-1"}), ("second", {}), ("declined", {"card": "bad-1"}), ("llm", {})):
            options = {"budget": 2.5} if name == "llm" else {"idempotency_key": key(f"order of {name}")}
            started[name] = await engine.start_run("checkout", "shop.Checkout", given | more, actor=key("ada"), **options)
        shops = [{"name": say(f"Region {n}"), "shops": [say(f"shop {n}-{each}") for each in range(ITEMS // 4)]} for n in range(4)]
        started["big"] = await engine.start_run("regions", "sales.Report", {"regions": shops})
        started["function"] = await engine.start_function("trip.Book", {"city": say("Rome")}, actor=key("grace"))
        started["failed_function"] = await engine.start_function("trip.Book", {"fail": True})
        names = list(started)
        for name in names:
            try:
                await engine.run_result(started[name], timeout=BOUND)
            except Exception as error:
                assert name == "failed_function", (name, error)  # noqa: PT017
        flow = re.sub(r"\} catch \{ yield Checkout.*", "}", checkout)
        started["failed"] = await engine.start_run([("checkout.afl", flow)], "shop.Checkout", given | {"address": say("Nowhere 1")})
        await until(lambda: _is(engine, started["failed"].id, "failed"))
    for name, card in (("canceled", "visa-2"), ("paused", "visa-3"), ("fresh", "visa-4")):
        started[name] = await engine.start_run("checkout", "shop.Checkout", given | {"card": card}, task_list="night")
    await engine.runs.cancel(started["canceled"].id, actor=key("grace"), reason=say("the customer changed her mind"))
    await engine.runs.pause(started["paused"].id, actor=key("grace"))
    scene.ids |= {name: run.id for name, run in started.items()} | {"workflow": "shop.Checkout"}
    task = (await engine.kernel.reads.list_tasks(kind="handler", name="shop.Charge", limit=1))[0]
    scene.ids["task"] = task.id
    for n in range(1, 4):
        usage = Usage(
            id=engine.kernel.ids.new_id(), run_id=started["llm"].id, step_id=None, task_id=task.id, attempt=1, request_no=n,
            model="claude-sonnet-4-5", reserved_micros=500_000,
        )  # fmt: skip
        await engine.kernel.store.usage.reserve(usage, None)
        await engine.kernel.store.usage.settle(_settled(usage, n))


async def _is(engine: Engine, run_id: str, state: str) -> bool:
    return (await engine.kernel.run_reads.get_run(run_id)).state == state


def _settled(usage: Usage, n: int) -> Usage:
    return Usage(
        **{name: getattr(usage, name) for name in usage.__struct_fields__}
        | {"cost_micros": 210_000 * n, "input_tokens": 4200 * n, "output_tokens": 380 * n, "cache_read_tokens": 1800}
    )


async def add_queue(scene: Scene) -> None:
    """Dead letters in groups, lists with rules, tasks that wait."""
    engine, say, key = scene.engine, scene.say, scene.key
    for task_list in ("night", "mail"):
        for n in range(5):
            await engine.enqueue("report.Build", {"title": say(f"Sales of week {n}")}, task_list=task_list, priority=n % 3)
    await engine.kernel.lists.pause("night", actor=key("ada"))
    await engine.kernel.lists.drain("mail", actor=key("ada"))
    await engine.kernel.lists.limit_key(key("customer:42"), 3, actor=key("ada"))
    await engine.kernel.lists.limit_rate("default", "mail.Send", 40, actor=key("ada"))
    async with engine.worker(name=say("loom-0"), grace=0):
        sent = [await engine.enqueue("mail.Send", {"n": n, "to": say("ada@example.org")}) for n in range(14)]
        for each in sent:
            await until(lambda each=each: _finished(engine, each.id))  # type: ignore[misc]
    scene.ids["dead"] = sent[0].id
    scene.ids["fingerprint"] = (await engine.kernel.reads.get_task(sent[0])).fingerprint or ""
    await engine.enqueue("shop.Audit", {"note": say("nobody serves this")}, delay=3 * 3600)
    held = await engine.enqueue("report.Build", {"title": say("Later")})
    await engine.pause(held, actor=key("ada"))


async def _finished(engine: Engine, task_id: str) -> bool:
    return (await engine.kernel.reads.get_task(task_id)).finished


async def add_people(scene: Scene) -> None:
    """Approvals that wait and that were decided; a function that waits for one, and one for a signal."""
    engine, say, key = scene.engine, scene.say, scene.key
    async with engine.worker(name=say("loom-0"), grace=0):
        for name, amount in (("Ada", 18), ("Alan", 120), ("Edsger", 7), ("Barbara", 64)):
            await engine.enqueue("refund.Pay", {"name": name, "amount": amount})
        scene.ids["waiting"] = (await engine.start_function("order.Review", {"id": "A-17"}, actor=key("ada"))).id
        scene.ids["signal"] = (await engine.start_function("trip.Book", {"wait": True})).id
        await until(lambda: _asked(engine, 5))
        refunds = [each for each in (await engine.approvals.list()).approvals if each.edits]
        scene.ids["decided"] = refunds[0].id
        await engine.approvals.decide(
            refunds[0].id, "approve", actor=key("grace"), reason=say("a good customer"), edits={"amount": 17}
        )
        await engine.approvals.decide(refunds[1].id, "deny", actor=key("grace"), reason=say("the photo shows another parcel"))
        scene.ids["approval"] = refunds[2].id


async def _asked(engine: Engine, count: int) -> bool:
    return len((await engine.approvals.list()).approvals) >= count


async def add_rest(scene: Scene) -> None:
    """Schedules, watchers, registrations, servers, tokens, retention rules."""
    engine, say, key = scene.engine, scene.say, scene.key
    inputs = {"title": say("Sales"), "n": 1}
    await engine.schedules.create(
        "nightly", cron="0 3 * * *", zone="Europe/Berlin", task="report.Build", inputs=inputs, actor=key("ada")
    )
    await engine.schedules.create("hourly", every=3600, workflow="shop.Checkout", flow="checkout", inputs=inputs)
    await engine.schedules.create("yearly", cron="@yearly", function="trip.Book", paused=True)
    await engine.schedules.run_now("nightly", actor=key("ada"))
    inbox = scene.folder / re.sub(r"[/\0]", "", say("inbox"))[:80]
    inbox.mkdir()
    for name in ("orders-1.csv", "orders-2.csv", "returns.csv"):
        (inbox / re.sub(r"[/\0]", "", say(name))[:80]).write_text("sku;qty\npen;4\n")
    await engine.watchers.create("incoming", directory=str(inbox), task="report.Build", inputs=inputs, actor=key("ada"))
    await engine.watchers.create("rates", url="https://rates.example.org/eur.json", task="report.Build", paused=True)
    await engine.kernel.store.operators.save_handler(
        engine.kernel.settings.namespace,
        HandlerRegistration(
            "billing.Charge", "file:///srv/handlers/charge.py", requirements=["httpx>=0.28"], metadata={"owner": say("payments")}
        ),
    )
    now = engine.kernel.clock.now()
    for n, (name, state, age) in enumerate((("loom-2", "running", 240_000), ("loom-3", "stopped", 60_000))):
        server = Server(
            id=engine.kernel.ids.new_id(), name=say(name), host=say("box-7"), pid=4242 + n, version="1.0.0", state=state,
            handlers=["mail.Send", "shop.*"], task_lists=["default", "mail"], concurrency=32, handled=1811, failed=7, running=2,
            started_at=now - 7_200_000, heartbeat_at=now - age, counts={"mail.Send": [1804, 7]},
        )  # fmt: skip
        await engine.kernel.store.servers.save(server)
        scene.ids["server"] = server.id
    async with engine.worker(name=say("loom-0"), grace=0):
        await engine.enqueue("render.Farm", {"scene": say("castle.blend")})
        await engine.enqueue("render.Lost", {"scene": say("bridge.blend")})
        await until(lambda: _polled(engine))
        await until(lambda: _seen(engine))
    scene.secret = (await engine.kernel.tokens.create("ada", ["admin"])).secret
    scene.reader = (await engine.kernel.tokens.create("wall-screen", ["read"])).secret
    await engine.kernel.tokens.create("night-shift", ["read", "work"], task_lists=["night"], expires=86_400, actor=key("ada"))
    await engine.kernel.tokens.revoke((await engine.kernel.tokens.create("old-laptop", ["read"])).id, actor=key("ada"))


async def _polled(engine: Engine) -> bool:
    from treadle.engine.operations import Operations
    from treadle.model.access import OPEN

    jobs = (await Operations(engine, OPEN).external_jobs.list(every=True)).jobs
    return len(jobs) == 2 and all(job.polls >= 1 or job.state == "failed" for job in jobs)


async def _seen(engine: Engine) -> bool:
    return bool((await engine.watchers.seen("incoming")).seen)


async def add_hour(scene: Scene, clock: ShiftedClock) -> None:
    """Mails that went out, minute by minute, a few of them not."""
    async with scene.engine.worker(name=scene.say("loom-0"), grace=0):
        for minute in range(60, 0, -1):
            clock.back_for = minute * 60_000
            count = 9 + minute * minute % 17
            sent = [await scene.engine.enqueue("mail.Send", {"n": 1 if n == minute % 29 else 2}) for n in range(count)]
            for each in sent:
                await until(lambda each=each: _finished(scene.engine, each.id))  # type: ignore[misc]


async def add_present(scene: Scene) -> None:
    """Keep producing activity while somebody views the pages."""
    engine = scene.engine
    scene.ids["running"] = (await engine.enqueue("report.Build", {"forever": True, "title": scene.say("The long one")})).id
    await until(lambda: _runs(engine, scene.ids["running"]))
    from treadle.engine.operations import Operations
    from treadle.model.access import OPEN

    jobs = (await Operations(engine, OPEN).external_jobs.list(every=True)).jobs
    scene.ids["job"] = next(job.id for job in jobs if job.declared_render_type_ref == "render.Farm")


async def _runs(engine: Engine, task_id: str) -> bool:
    return (await engine.kernel.reads.get_task(task_id)).shown_state == "running"


async def serve() -> None:
    """Serve the scene until it is interrupted."""
    with TemporaryDirectory() as folder:
        async with (
            set_scene(Path(folder), busy=True) as scene,
            HttpServer(scene.engine, HttpOptions(port=0), more=(add_pages,)) as server,
        ):
            print(f"{server.url}/login  with the token {scene.secret}", flush=True)
            for name, path in scene.paths.items():
                print(f"{name:20} {server.url}{path}", flush=True)
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
