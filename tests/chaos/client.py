"""The client process, which sends every submission: `python -m tests.chaos.client`. It uses the store in TREADLE_STORE.

Each submission is sent until it is acknowledged, under its key, also by the next process if this one is killed: the file of
acknowledgements, a line `KEY ID` each, says where to go on. A submission that was acknowledged twice must have the same id.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from tests.chaos.crew import SOURCES
from tests.chaos.submissions import Submission, draw_submissions

from treadle import Engine, TaskSpec
from treadle.model.errors import NotFound, Refused, StoreError

T = TypeVar("T")

AGAIN = 0.1
"""Seconds after which what was not answered is sent again."""


class Sender:
    """Sends submissions by the hundred, and waits while the store has more than enough to do."""

    def __init__(self, engine: Engine, acks: Path, backlog: int) -> None:
        self._engine, self._backlog = engine, backlog
        self._acks = acks.open("a", buffering=1)
        self._deciding: list[asyncio.Task[None]] = []

    async def send(self, submissions: Sequence[Submission]) -> None:
        """All of these; they are acknowledged when this returns."""
        await self._room()
        tasks = [submission for submission in submissions if submission.kind == "task"]
        others = [submission for submission in submissions if submission.kind != "task"]
        await asyncio.gather(self._enqueue(tasks), *(self._start(submission) for submission in others))

    async def _room(self) -> None:
        while sum(depth.ready for depth in await self._insist(self._engine.kernel.store.tasks.list_depths)) > self._backlog:  # noqa: ASYNC110
            await asyncio.sleep(AGAIN)

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until it is answered: what the store did when it did not say so, it does not do again."""
        while True:
            try:
                return await ask()
            except StoreError:
                await asyncio.sleep(AGAIN)
            except NotFound as error:
                if error.code != "function_not_found":  # no worker has registered the function yet
                    raise
                await asyncio.sleep(AGAIN)

    async def _enqueue(self, submissions: Sequence[Submission]) -> None:
        specs = [
            TaskSpec(name=submission.name, payload=submission.payload, idempotency_key=submission.key) for submission in submissions
        ]
        for submission, made in zip(submissions, await self._insist(lambda: self._engine.enqueue_many(specs)), strict=True):
            self._acknowledge(submission, made.id)

    async def _start(self, submission: Submission) -> None:
        engine = self._engine
        if submission.kind == "objective":
            made = await self._insist(
                lambda: engine.goals.objectives.add(submission.name, actor="ada", key=submission.key, metadata=submission.payload)
            )
            with suppress(NotFound):  # it was acknowledged and is lost, as the judge will find
                await self._insist(lambda: engine.goals.objectives.approve(made.objective_id, actor="ada"))
            self._acknowledge(submission, made.objective_id)
            return
        if submission.kind == "flow":
            run = await self._insist(
                lambda: engine.start_run(SOURCES, submission.name, submission.payload, idempotency_key=submission.key)
            )
        else:
            run = await self._insist(
                lambda: engine.start_function(submission.name, submission.payload, idempotency_key=submission.key)
            )
        if submission.told is not None:
            with suppress(NotFound):
                await self._insist(lambda: engine.signal(run, "told", submission.told, idempotency_key=submission.key))
        if submission.asks:
            self._deciding.append(asyncio.create_task(self._approve(submission, run.id)))
        else:
            self._acknowledge(submission, run.id)

    async def _approve(self, submission: Submission, run_id: str) -> None:
        """Wait for the question of the run and approve it; acknowledged once the decision is."""
        engine = self._engine
        while await self._insist(lambda: engine.kernel.store.runs.find(run_id)) is not None:  # or it is lost
            for asked in (await self._insist(lambda: engine.approvals.list(every=True, run_id=run_id))).approvals:
                with suppress(Refused, NotFound):  # by the same request, which was not answered; or it is lost
                    await self._insist(lambda asked=asked: engine.approvals.decide(asked.id, "approve", actor="ada"))  # type: ignore[misc]
                self._acknowledge(submission, run_id)
                return
            await asyncio.sleep(AGAIN)
        self._acknowledge(submission, run_id)

    async def finish(self) -> None:
        """Wait for the last decisions."""
        await asyncio.gather(*self._deciding)

    def _acknowledge(self, submission: Submission, work_id: str) -> None:
        self._acks.write(f"{submission.key} {work_id}\n")


def read_acks(path: Path) -> dict[str, set[str]]:
    """The ids under which each submission was acknowledged; a line that a dying process left unfinished says nothing."""
    acks: dict[str, set[str]] = {}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        key, _, work_id = line.partition(" ")
        if line.endswith("\n") and work_id.strip():
            acks.setdefault(key, set()).add(work_id.strip())
    return acks


async def send_all(options: argparse.Namespace) -> None:
    """Send what was not acknowledged yet."""
    known = read_acks(options.acks)
    left = [submission for submission in draw_submissions(options.seed, options.count) if submission.key not in known]
    while True:
        engine = Engine(emit=lambda event: None)
        try:
            await engine.open()
            break
        except StoreError:
            await engine.close()
            await asyncio.sleep(AGAIN)
    sender = Sender(engine, options.acks, options.backlog)
    for first in range(0, len(left), options.chunk):
        await sender.send(left[first : first + options.chunk])
    await sender.finish()
    print(json.dumps({"event": "all sent"}), flush=True)
    await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--acks", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--chunk", type=int, default=100)
    parser.add_argument("--backlog", type=int, default=500)
    asyncio.run(send_all(parser.parse_args()))


if __name__ == "__main__":
    main()
