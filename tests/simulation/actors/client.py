"""The client: sends submissions until all are acknowledged; what is not known to be there is sent again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response
from tests.simulation.submissions.submission import Submission
from tests.simulation.wire import Disconnected

from treadle import Engine
from treadle.interfaces.http.routes import once
from treadle.kernel.access.requests import RequestDocument, Requests
from treadle.model.errors import ListDraining, NotFound, RequestInProgress, StoreError
from treadle.testing.simulation import Process

if TYPE_CHECKING:
    from tests.simulation.history import History


class Client:
    """Some of what it wants it asks of a server, with an idempotency key."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._kept: dict[str, float] = {}
        """By key: when the answer to a request was kept."""
        self._made: dict[str, set[str]] = {}

    async def play(self, process: Process) -> None:
        """Submission after submission, and again those that were not answered."""
        history, rng = self._history, self._history.rng
        async with history.engine(process) as engine:
            while left := [submission for submission in history.submissions if submission.id is None]:
                for submission in left:
                    try:
                        submission.id = await (self._ask(submission) if submission.kind == "request" else submission.send(engine))
                        process.trace(f"{submission.key} is {submission.id[-6:]}")
                    except (StoreError, NotFound, ListDraining, Disconnected, RequestInProgress) as error:
                        process.trace(
                            f"{submission.key}: {type(error).__name__}"
                        )  # no server may have said yet that it has the function
                        await asyncio.sleep(0.5)
                    await asyncio.sleep(rng.random() * rng.choice((0.05, 2)))
            await self._ask_again(process)
            await asyncio.Event().wait()

    async def _ask(self, submission: Submission) -> str:
        return await self._history.wire.call(lambda engine: self._answer(engine, submission))

    async def _ask_again(self, process: Process) -> None:
        """Repeat a request; the answer must be one that was returned before."""
        for submission in self._history.submissions:
            if submission.kind != "request" or self._history.rng.random() < 0.3:
                continue
            made = set(self._made[submission.key])
            try:
                again = await self._ask(submission)
            except (StoreError, Disconnected, RequestInProgress, ListDraining):
                continue
            process.trace(f"{submission.key} is {again[-6:]} again")
            if submission.key in self._kept and again not in made:
                self._history.simulation.wrong(f"{submission.key} was answered with {submission.id}, and then with {again}")

    async def _answer(self, engine: Engine, submission: Submission) -> str:
        """Process such a request on a server: once, as far as the server can know."""
        simulation = self._history.simulation
        began = simulation.loop.time()

        async def carry_out(_: Request) -> Response:
            if self._kept.get(submission.key, began) < began:
                simulation.wrong(f"{submission.key} was carried out again, after its answer had been kept")
            made = await engine.enqueue("sync", {"n": 1, "asked": submission.key})
            self._made.setdefault(submission.key, set()).add(made.id)
            return Response(json.dumps(made.id).encode(), 200)

        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": submission.key.encode(), "more_body": False}

        asked = Request({"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}, receive)
        requests = _NotedRequests(engine.kernel.core)
        requests.kept = lambda: self._kept.setdefault(submission.key, simulation.loop.time())
        answer = await once(requests, "ada", "POST /", submission.key, asked, carry_out)
        made: str = json.loads(bytes(answer.body))
        return made


class _NotedRequests(Requests):
    """Says when an answer was kept."""

    kept: Callable[[], object]

    async def _change(self, record_id: str, version: int, document: RequestDocument) -> bool:
        done = await super()._change(record_id, version, document)
        if done and document.status is not None:
            self.kept()
        return done
