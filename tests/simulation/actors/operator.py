"""An operator with random but legal actions; once the faults end, it lets everything continue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.simulation.submissions.submission import Submission

from treadle import Engine
from treadle.kernel.functions.steps import is_after
from treadle.kernel.store.queries import RunFilter
from treadle.model.errors import TreadleError
from treadle.model.states import BlockReason
from treadle.testing.simulation import Process

if TYPE_CHECKING:
    from tests.simulation.history import History


class Operator:
    """One per history. Its actions may arrive twice or not at all, and it knows only the responses."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._rng = history.rng
        every = (
            self._pause_something,
            self._cancel_something,
            self._retry_something,
            self._hold_the_list,
            self._poll,
            self._slow_down,
            self._limit,
            self._drain,
            self._handle_dead_letters,
            self._do_again,
        )
        named = [act for act in every if act.__name__.removeprefix("_") in history.acts]
        some = named or self._rng.sample(every, self._rng.choice((1, 3, 6)))  # a few things often say more than a bit of all
        self._acts = (*(() if named else (self._let_go_on,)), *some, *((self._prune,) * 3 if history.prunes else ()))

    async def play(self, process: Process) -> None:
        """One thing after another."""
        history = self._history
        engine = history.engine(process)
        async with engine:
            while True:
                await asyncio.sleep(1 + 4 * self._rng.random())
                if not history.operated:
                    continue
                try:
                    act = self._rng.choice(self._acts) if history.simulation.faults.on else self._let_go_on
                    await act(engine, process)
                except TreadleError as error:
                    process.trace(f"operator: {type(error).__name__}")

    def _some_submission(self) -> Submission | None:
        sent = [
            submission
            for submission in self._history.submissions
            if submission.id is not None and submission.kind in ("task", "run")
        ]
        return self._rng.choice(sent) if sent else None

    # single things

    async def _pause_something(self, engine: Engine, process: Process) -> None:
        if (submission := self._some_submission()) is not None and submission.id is not None:
            process.trace(f"pauses {submission.key}")
            await (engine.runs.pause(submission.id) if submission.kind == "run" else engine.pause(submission.id))

    async def _cancel_something(self, engine: Engine, process: Process) -> None:
        if (
            (self._history.acts or self._rng.random() < 0.3)
            and (submission := self._some_submission()) is not None
            and submission.id is not None
        ):
            process.trace(f"cancels {submission.key}")
            submission.may = (*submission.may, "canceled")
            await (engine.runs.cancel(submission.id) if submission.kind == "run" else engine.cancel(submission.id))

    async def _retry_something(self, engine: Engine, process: Process) -> None:
        if (submission := self._some_submission()) is not None and submission.id is not None:
            process.trace(f"retries {submission.key}")
            submission.retried = True
            await (engine.runs.retry(submission.id) if submission.kind == "run" else engine.retry(submission.id))

    async def _poll(self, engine: Engine, process: Process) -> None:
        for job in (await engine.kernel.external_jobs.list()).jobs:
            process.trace(f"polls {job.id[-6:]}")
            await engine.kernel.external_jobs.poll_now(job.id, actor="operator")

    async def _do_again(self, engine: Engine, process: Process) -> None:
        """Rerun a run from the start or from one of its steps; the new run has to end, with any result."""
        submission = self._some_submission()
        if submission is None or submission.id is None or submission.kind != "run" or "tells" in submission.options:
            return  # the new run would wait for a signal that never comes
        steps = await engine.kernel.store.runs.list_steps(submission.id, None, 100)
        given = await engine.kernel.runs.inputs(await engine.kernel.runs.get_run(submission.id))
        again = {"key": f"{submission.key}+{self._history.simulation.loop.time():.3f}"} if "key" in given else {}
        if steps and self._rng.random() < 0.5:
            step = self._rng.choice(steps)
            process.trace(f"forks {submission.key} at {step.name}")
            submission.retried = True  # steps that it keeps may hand on the old key, and then the fork has a job of that key too
            if await self._keeps_effect(engine, submission, step.id):
                self._history.kept_effects.add(f"{again['key']}/f")
            await engine.runs.fork(submission.id, step.id, inputs=again)
        else:
            process.trace(f"runs {submission.key} again")
            await engine.runs.rerun(submission.id, inputs=given | again)

    async def _keeps_effect(self, engine: Engine, submission: Submission, step_id: str) -> bool:
        """Whether a fork at that step has the effect of the old run, and must not make it again."""
        recorded = (
            {each.id: each for each in await engine.kernel.run_services.functions.recorded(submission.id or "")}
            if submission.effects
            else {}
        )
        chosen = recorded.get(step_id)
        return chosen is not None and any(
            each.kind == "effect" and each.state == "completed" and each is not chosen and not is_after(each.place, chosen.place)
            for each in recorded.values()
        )

    # many things

    async def _hold_the_list(self, engine: Engine, process: Process) -> None:
        process.trace("pauses the list")
        await engine.kernel.lists.pause("default")

    async def _drain(self, engine: Engine, process: Process) -> None:
        process.trace("drains the list")
        await engine.kernel.lists.drain("default")

    async def _slow_down(self, engine: Engine, process: Process) -> None:
        rate = self._rng.choice((None, 0.5, 5))
        process.trace(f"rate of work: {rate}")
        await engine.kernel.lists.limit_rate("default", "work", rate)

    async def _limit(self, engine: Engine, process: Process) -> None:
        most = self._rng.choice((None, 1, 1, 4))
        process.trace(f"limits: {most}")
        await engine.kernel.lists.limit_key("few", most)
        await engine.kernel.lists.limit_handler(self._rng.choice(("work", "charge", "sim.Double")), most)

    async def _handle_dead_letters(self, engine: Engine, process: Process) -> None:
        """Retry or discard dead letters."""
        discards = self._rng.random() < 0.3
        for submission in self._history.submissions:
            submission.retried = True
            if discards:
                submission.may = (*submission.may, "canceled")
        process.trace("discards letters" if discards else "retries letters")
        letters, after = engine.kernel.dead_letters, None
        while True:
            changed = await (letters.discard if discards else letters.retry)(everything=True, after=after)
            if (after := changed.next_after) is None:
                return

    async def _prune(self, engine: Engine, process: Process) -> None:
        report = await engine.kernel.retention.prune()
        process.trace(f"prunes {report.trees} trees, {report.tasks} tasks, {report.runs} runs")

    async def _let_go_on(self, engine: Engine, process: Process) -> None:
        await engine.kernel.lists.resume("default")
        await engine.kernel.lists.limit_rate("default", "work", None)
        for task in await engine.kernel.reads.list_tasks(states=("paused",), kind=None):
            if task.blocked_by & BlockReason.TASK_PAUSED:
                process.trace(f"resumes {task.id[-6:]}")
                await engine.resume(task.id)
        for run in await engine.kernel.store.runs.list_matching(RunFilter(states=("paused",)), 100):
            process.trace(f"resumes run {run.id[-6:]}")
            await engine.runs.resume(run.id)
