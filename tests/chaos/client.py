"""The client process, which sends every wish: `python -m tests.chaos.client`. It uses the store in TREADLE_STORE.

Each wish is sent until it is acknowledged, under its key, also by the next process if this one is killed: the file of
acknowledgements, a line `KEY ID` each, says where to go on. A wish that was acknowledged twice must have the same id.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from tests.chaos.crew import SOURCES
from tests.chaos.wishes import Wish, draw_wishes

from treadle import Engine, TaskSpec
from treadle.model.errors import FunctionNotFound, StoreError

T = TypeVar("T")

AGAIN = 0.1
"""Seconds after which what was not answered is sent again."""


class Sender:
    """Sends wishes by the hundred, and waits while the store has more than enough to do."""

    def __init__(self, engine: Engine, acks: Path, backlog: int) -> None:
        self._engine, self._backlog = engine, backlog
        self._acks = acks.open("a", buffering=1)

    async def send(self, wishes: Sequence[Wish]) -> None:
        """All of these; they are acknowledged when this returns."""
        await self._room()
        tasks = [wish for wish in wishes if wish.kind == "task"]
        others = [wish for wish in wishes if wish.kind != "task"]
        await asyncio.gather(self._enqueue(tasks), *(self._start(wish) for wish in others))

    async def _room(self) -> None:
        while sum(depth.ready for depth in await self._insist(self._engine.kernel.store.list_depths)) > self._backlog:  # noqa: ASYNC110
            await asyncio.sleep(AGAIN)

    async def _insist(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Ask until it is answered: what the store did when it did not say so, it does not do again."""
        while True:
            try:
                return await ask()
            except (StoreError, FunctionNotFound):  # no worker has said yet that it has the function
                await asyncio.sleep(AGAIN)

    async def _enqueue(self, wishes: Sequence[Wish]) -> None:
        specs = [TaskSpec(name=wish.name, payload=wish.payload, idempotency_key=wish.key) for wish in wishes]
        for wish, made in zip(wishes, await self._insist(lambda: self._engine.enqueue_many(specs)), strict=True):
            self._acknowledge(wish, made.id)

    async def _start(self, wish: Wish) -> None:
        engine = self._engine
        if wish.kind == "objective":
            made = await self._insist(
                lambda: engine.goals.objectives.add(wish.name, actor="ada", key=wish.key, metadata=wish.payload)
            )
            await self._insist(lambda: engine.goals.objectives.approve(made.objective_id, actor="ada"))
            self._acknowledge(wish, made.objective_id)
            return
        if wish.kind == "flow":
            run = await self._insist(lambda: engine.start_run(SOURCES, wish.name, wish.payload, idempotency_key=wish.key))
        else:
            run = await self._insist(lambda: engine.start_function(wish.name, wish.payload, idempotency_key=wish.key))
        if wish.told is not None:
            await self._insist(lambda: engine.signal(run, "told", wish.told, idempotency_key=wish.key))
        self._acknowledge(wish, run.id)

    def _acknowledge(self, wish: Wish, work_id: str) -> None:
        self._acks.write(f"{wish.key} {work_id}\n")


def read_acks(path: Path) -> dict[str, set[str]]:
    """The ids under which each wish was acknowledged; a line that a dying process left unfinished says nothing."""
    acks: dict[str, set[str]] = {}
    for line in path.read_text().splitlines(keepends=True) if path.exists() else ():
        key, _, work_id = line.partition(" ")
        if line.endswith("\n") and work_id.strip():
            acks.setdefault(key, set()).add(work_id.strip())
    return acks


async def send_all(options: argparse.Namespace) -> None:
    """Send what was not acknowledged yet."""
    known = read_acks(options.acks)
    left = [wish for wish in draw_wishes(options.seed, options.count) if wish.key not in known]
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
