"""A server without a socket for targets: an engine in memory with a little of everything, and a clock that stands still.

A request is given to the application and its answer is taken from it, in the same thread. Waits are cut short by
advancing the clock. The state that requests leave is discarded with the whole stage after `RENEWED_AFTER` of them.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette

from treadle import ExternalPollingLoop, ExternalProductionHandle
from treadle.engine import Engine
from treadle.interfaces.http.app import make_app
from treadle.interfaces.web.site import add_pages
from treadle.model.access import Scope
from treadle.settings import Settings
from treadle.testing import ManualClock

SECRET = "a secret between us"
SETTINGS = Settings(
    store="memory://", github_secret=SECRET, github_labels=("agent",), public_url="https://work.example.org", payload_limit=65_536
)
RENEWED_AFTER = 500
TURNS = 300
"""Turns of the loop after which a request that has no answer yet is taken to wait for time to pass."""
ADVANCES = 200

FLOW = """
namespace shop {
  event facet Charge(order: String) => (receipt: String)
  workflow Buy(order: String = "o-1") => (receipt: String) andThen {
    paid = Charge(order = $.order)
    yield Buy(receipt = paid.receipt)
  }
}
"""


@dataclass(frozen=True, slots=True)
class Said:
    """An answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Endless:
    """A service with a job that never ends."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    async def start(self, given: dict[str, Any], ctx: Any) -> ExternalProductionHandle:
        self.urls.append(ctx.callback_url)
        return ExternalProductionHandle(f"job-{len(self.urls)}", 3600.0)

    async def poll(self, external_job_id: str) -> ExternalProductionHandle:
        return ExternalProductionHandle(external_job_id, 3600.0)


@dataclass
class Stage:
    """The server and its content."""

    engine: Engine
    clock: ManualClock
    app: Starlette
    service: Endless
    names: dict[str, str] = field(default_factory=dict)
    """Values for `{task}` and the other placeholders in requests."""
    played: int = 0

    async def ask(self, method: str, path: str, headers: Mapping[str, str] = {}, body: bytes = b"") -> Said:
        """The answer, or an AssertionError when none ever comes."""
        raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        route, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": _unquoted(route),
            "raw_path": route.encode("latin-1", "replace"),
            "query_string": query.encode("latin-1", "replace"),
            "root_path": "",
            "headers": [(b"host", b"127.0.0.1"), *raw],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 80),
        }
        messages = [{"type": "http.request", "body": body, "more_body": False}]
        begun = asyncio.Event()
        status, out, parts = 0, {}, []

        async def receive() -> dict[str, Any]:
            if messages:
                return messages.pop(0)
            await begun.wait()  # the client disconnects once the response has begun, so that streams end
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status, out
            if message["type"] == "http.response.start":
                status = message["status"]
                out = {name.decode("latin-1"): value.decode("latin-1") for name, value in message["headers"]}
            else:
                parts.append(message.get("body", b""))
                begun.set()

        answering = asyncio.ensure_future(self.app(scope, receive, send))
        for turn in range(TURNS * ADVANCES):
            if answering.done():
                break
            if turn % TURNS == TURNS - 1:
                self.clock.advance(20)
                await asyncio.sleep(0.001)  # there are threads, too
            await asyncio.sleep(0)
        if not answering.done():
            answering.cancel()
            await asyncio.wait([answering])
            raise AssertionError(f"{method} {route} is never answered")
        answering.result()
        return Said(status, out, b"".join(parts))

    async def job(self) -> str:
        """A job of the service that goes on: the path and query of its callback."""
        await self.engine.enqueue("farm.Render")
        await ExternalPollingLoop(self.engine).tick()
        return self.service.urls[-1].removeprefix(SETTINGS.public_url)


def _unquoted(route: str) -> str:
    from urllib.parse import unquote

    return unquote(route)


class Theatre:
    """The stage of this process, its loop, and its renewal."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stage: Stage | None = None

    def play(self, act: Any) -> Any:
        """Run the act (an async function of the stage) and return its result."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            logging.getLogger("treadle").setLevel(logging.CRITICAL)
        if self._stage is not None and self._stage.played >= RENEWED_AFTER:
            self._loop.run_until_complete(self._stage.engine.__aexit__(None, None, None))
            self._stage = None
        if self._stage is None:
            self._stage = self._loop.run_until_complete(_set_up())
        self._stage.played += 1
        return self._loop.run_until_complete(act(self._stage))

    def close(self) -> None:
        """Take everything down."""
        if self._loop is not None:
            if self._stage is not None:
                self._loop.run_until_complete(self._stage.engine.__aexit__(None, None, None))
            self._loop.close()
        self._loop = self._stage = None


async def _set_up() -> Stage:
    clock, service = ManualClock(), Endless()
    engine = Engine(settings=SETTINGS, clock=clock)
    engine.specialist("farm.Render", service)
    await engine.__aenter__()
    stage = Stage(engine, clock, make_app(engine, open_access=True, more=(add_pages,)), service)
    task = await engine.enqueue("billing.Charge", {"amount": 7})
    stage.names["task"] = task.id

    async def post(path: str, **said: Any) -> dict[str, Any]:
        answer = await stage.ask("POST", path, {"Content-Type": "application/json"}, json.dumps(said).encode())
        assert answer.status < 300, answer.body
        made: dict[str, Any] = answer.json()
        return made

    await post("/v1/flows/shop/versions", sources=[{"name": "shop.afl", "text": FLOW}])
    stage.names["run"] = (await post("/v1/runs", workflow="shop.Buy", flow="shop"))["id"]
    await post("/v1/schedules", name="nightly", cron="30 2 * * *", task="report.Make")
    stage.names["objective"] = (await post("/v1/objectives", title="Greet"))["objective_id"]
    stage.names["job"] = (await stage.job()).split("/")[3]
    secret = (await engine.kernel.tokens.create("fuzz", [Scope.ADMIN])).secret
    stage.names["token"] = secret
    return stage


THEATRE = Theatre()
