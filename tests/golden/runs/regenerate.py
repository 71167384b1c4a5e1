"""Makes histories of runs that stopped in the middle: `PYTHONPATH=. python tests/golden/runs/regenerate.py NAME ...`.

Without names it makes those that are not there yet. A history that is there is what stores in use have in them: it is never
made anew because code changed, only added to (a new name, here and in a file). If it cannot be resumed any more, the code is
wrong, not the history.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.golden.runs.histories import answer, dump, go_on, text_of
from tests.runs.driver import Hands

from treadle import Engine
from treadle.evaluator import Limits
from treadle.model.names import SCRIPT
from treadle.settings import Settings
from treadle.testing import ManualClock, SeededIds

HERE = Path(__file__).parent
FLOW = [("golden.afl", (HERE / "golden.afl").read_text(encoding="utf-8"))]
Stop = Callable[[Hands], Awaitable[str]]


async def settle(hands: Hands, count: int) -> None:
    for _ in range(count):
        (task,) = await hands.claim(limit=1)
        await hands.settle(task, answer(task.name, await hands.payload(task)))


async def chain(hands: Hands) -> str:
    """The second of three steps waits."""
    run = await hands.engine.start_run(FLOW, "g.Chain", {"n": 1})
    await settle(hands, 1)
    return run.id


async def foreach(hands: Hands) -> str:
    """Items are half made and half done; the list and a text are big."""
    hands.engine.kernel.run_services.advancer.views._limits = Limits(expand=5)
    items = [{"n": number, "pad": "p" * 900} for number in range(12)]
    run = await hands.engine.start_run(FLOW, "g.Each", {"items": items, "text": "t" * 9000})
    await settle(hands, 3)
    return run.id


async def paused(hands: Hands) -> str:
    """A result waits in an inbox, with a held task that will take it in."""
    run = await hands.engine.start_run(FLOW, "g.Chain", {"n": 2})
    (task,) = await hands.claim(limit=1)
    await hands.engine.runs.pause(run.id)
    await hands.settle(task, answer(task.name, await hands.payload(task)))
    return run.id


async def failed(hands: Hands) -> str:
    """A step has failed, and the run with it; its handler has been repaired since."""
    run = await hands.engine.start_run(FLOW, "g.Chain", {"n": 3})
    await settle(hands, 1)
    (task,) = await hands.claim(limit=1)
    await hands.fail(task, "out of order")
    return run.id


async def everything(hands: Hands) -> str:
    """Aliases, a body, a pre-script, a case and a catch, each waiting for something."""
    run = await hands.engine.start_run(FLOW, "g.Everything", {"n": 4})
    for task in await hands.claim():
        if task.name == "g.Broken":
            await hands.fail(task, "g.Broken is not available", "ValueError")
        elif (await hands.payload(task)).get("n") == 4:
            await hands.settle(task, answer(task.name, await hands.payload(task)))
    assert any(task.kind == SCRIPT for task in await hands.live(run.id))
    return run.id


STOPS: dict[str, Stop] = {each.__name__: each for each in (chain, foreach, paused, failed, everything)}


async def make(name: str) -> str:
    clock = ManualClock()
    async with Engine("memory://", settings=Settings(), clock=clock, ids=SeededIds(list(STOPS).index(name), clock)) as engine:
        hands = Hands(engine)
        run_id = await STOPS[name](hands)
        history = await dump(hands, run_id, (STOPS[name].__doc__ or "").strip())
        clock.advance(3600)
        await engine.kernel.store.tasks.wake(1000)
        history["outputs"] = await go_on(hands, run_id)
    return text_of(history)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or [name for name in STOPS if not (HERE / f"{name}.json").exists()]:
        (HERE / f"{wanted}.json").write_text(asyncio.run(make(wanted)), encoding="utf-8")
        print(HERE / f"{wanted}.json")
