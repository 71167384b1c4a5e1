"""People who answer what they are asked, and tell runs something until they know that it was heard."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.simulation.crew.people import GROUPS
from tests.simulation.submissions.submission import Submission

from treadle import Engine
from treadle.model.errors import IllegalTransition, TreadleError
from treadle.testing.simulation import Process

if TYPE_CHECKING:
    from tests.simulation.history import History


class People:
    """All of them, in one process."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rng = history.rng

    async def play(self, process: Process) -> None:
        """Look around every other second."""
        engine = self._history.engine(process)
        async with engine:
            while True:
                await asyncio.sleep(0.5 + 3 * self._rng.random())
                try:
                    await self._decide(engine, process)
                    for submission in self._history.submissions:
                        if submission.id is not None and submission.options.get("waits") and self._rng.random() < 0.3:
                            await engine.signal(submission.id, "told", "something", idempotency_key=f"told {submission.key}")
                        elif submission.id is not None and "tells" in submission.options:
                            await self._tell(engine, process, submission)
                except TreadleError as error:
                    process.trace(f"people: {type(error).__name__}")

    async def _decide(self, engine: Engine, process: Process) -> None:
        for approval in (await engine.approvals.list()).approvals:
            who = self._rng.choice(tuple(GROUPS) if approval.deciders else ("ada",))
            decision = "approve" if self._rng.random() < 0.8 else "deny"
            try:
                await engine.approvals.decide(approval.id, decision, actor=who, groups=GROUPS[who])
                process.trace(f"{who}: {decision} {approval.id[-6:]}")
            except TreadleError as error:
                process.trace(f"{who}: {getattr(error, 'code', type(error).__name__)}")

    async def _tell(self, engine: Engine, process: Process, submission: Submission) -> None:
        """One thing of several; what was heard is sometimes said again, and must be known then."""
        options, number = submission.options, self._rng.randrange(submission.options["tells"])
        if number in options["told"] and self._rng.random() < 0.7:
            return
        run_id, key = options["told"].get(number) or options.get("at", submission.id), f"{submission.key}/{number}"
        try:
            new = await engine.signal(run_id, "item", key, idempotency_key=key)
        except IllegalTransition:
            options["at"] = await _successor(engine, run_id)
            return
        process.trace(f"tells {key}: {new}")
        if new and number in options["told"]:
            self._history.simulation.wrong(f"{submission.key} was told {key} twice, under one key")
        options["told"][number] = run_id


async def _successor(engine: Engine, run_id: str) -> Any:
    """The run as which a run went on, or itself."""
    outputs = await engine.kernel.runs.outputs(await engine.kernel.runs.get_run(run_id))
    return outputs.get("continued_as", run_id)
