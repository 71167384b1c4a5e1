"""Invariants that hold when a history is over, whichever faults occurred."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.simulation.auditor import LIVE
from tests.simulation.judge import is_told, judge

from treadle.evaluator.states import TERMINAL
from treadle.kernel.store.queries import RunFilter, TaskFilter
from treadle.kernel.store.records import RecordFilter
from treadle.model.names import UPKEEP, WATCHER
from treadle.model.states import EXTERNAL, StepState
from treadle.model.values import decode

if TYPE_CHECKING:
    from tests.simulation.history import History

ENDED_STEPS = (StepState.COMPLETED, StepState.FAILED, *TERMINAL)


async def is_quiet(history: History) -> bool:
    """Whether all submissions were sent and are done; then removes the watchers that have reported everything."""
    if any(submission.id is None for submission in history.submissions):
        return False
    kinds = {depth.queue.kind for depth in await history.simulation.store.tasks.list_depths()}
    if not kinds <= UPKEEP | {WATCHER}:
        return False
    for submission in history.submissions:
        if submission.kind == "watch" and not (history.files.written and await is_told(history, submission)):
            return False
    if WATCHER in kinds:
        await _remove_watchers(history)
        return False
    return True


async def _remove_watchers(history: History) -> None:
    process = history.simulation.start_process("gardener")
    watchers = history.engine(process).watchers
    for watcher in (await watchers.list()).watchers:
        await watchers.remove(watcher.name)
    process.crash("has removed the watchers")


async def check_end(history: History) -> int:
    """Everything that must hold when all is over; how many submissions were given up."""
    simulation = history.simulation
    given_up = 0
    for submission in history.submissions:
        if submission.id is None:
            simulation.wrong(f"{submission.key} could not be sent")
        else:
            given_up += await judge(history, submission)
    for task in await simulation.store.tasks.list_matching(TaskFilter(states=LIVE), 1000):
        if task.kind not in UPKEEP:
            simulation.wrong(
                f"left over: {task.kind} {task.name} {task.id} {task.state} owner={task.owner_id} wake_at={task.wake_at}"
            )
    await _check_records(history)
    await _check_twice(history)
    await _check_acknowledged(history)
    for problem in (await history.archive.engine.kernel.verify()).problems:
        simulation.wrong(f"verify: {problem}")
    if history.sweeps and not simulation.problems:
        await _check_pruning(history)
    return given_up


async def _check_records(history: History) -> None:
    """Nobody is asked any more, and no external job is followed; no run had to be repaired."""
    simulation, store = history.simulation, history.simulation.store
    engine = history.engine(simulation.start_process("observer"))
    await engine.kernel.recovery.recover()  # questions of runs that were canceled while they were asked are closed by a start-up
    for approval in (await engine.approvals.list()).approvals:
        simulation.wrong(f"approval {approval.id} is still pending")
    for record in await store.records.list_matching(RecordFilter(EXTERNAL.entity, states=("live",)), 100):
        simulation.wrong(f"outside job {record.id} of task {record.task_id} is still followed")
    for run in await store.runs.list_matching(RunFilter(), 1000):
        if any(transition.transition == "repair" for transition in await store.log.list_transitions(run.id)):
            simulation.wrong(f"run {run.id} had to be repaired")
        if run.state not in ("completed", "failed", "canceled"):
            simulation.wrong(f"run {run.id} ({run.workflow}) is {run.state}")
        elif run.state == "completed":
            for step in await store.runs.list_steps(run.id, None, 1000):
                if step.state not in ENDED_STEPS:
                    simulation.wrong(f"run {run.id} is completed, and its step {step.id} is {step.state}")


async def _check_twice(history: History) -> None:
    """A request that was repeated because no answer came took effect once."""
    tasks = await history.archive.list_tasks()
    payloads = [decode(task.payload) for task in tasks if task.run_id is None and task.name not in ("tick", "noticed")]
    keys = Counter(payload.get("key", payload.get("metadata", {}).get("key")) for payload in payloads)
    keys.update(run.key for run in await history.archive.list_runs())
    for submission in history.submissions:
        if submission.kind in ("task", "run") and keys[submission.key] > 1:
            history.simulation.wrong(f"{submission.key} is there {keys[submission.key]} times")


async def _check_acknowledged(history: History) -> None:
    """An acknowledged result is stored; a fork does not repeat the effects that it keeps."""
    for effect in history.kept_effects:
        if history.world.made[effect]:
            history.simulation.wrong(f"the effect {effect} was made by a fork that had it")
    for task_id, result in history.world.acknowledged.items():
        found = await history.archive.find_task(task_id)
        if found is None:
            history.simulation.wrong(f"somebody was told that {task_id} has ended, and it is gone")
        elif found.state != "completed" or found.result != result:
            history.simulation.wrong(f"{task_id} was acknowledged with {result}, and is {found.state} with {found.result}")


async def _check_pruning(history: History) -> None:
    """Ended work is pruned after its retention time with everything that belonged to it; the rest is still consistent."""
    simulation = history.simulation
    engine = history.engine(simulation.start_process("gardener"))
    await engine.kernel.retention.prune(older_than=0)
    tables = ("finished", "runs", "steps", "mail", "blobs", "idempotency_outcomes")
    for table in (*tables, *(() if history.prunes else ("lines",))):  # who stood still may write a line on what is gone by now
        if count := await _count(history, table):
            simulation.wrong(f"{count} row(s) of {table} are left after all was pruned")
    for problem in (await engine.kernel.verify()).problems:
        simulation.wrong(f"verify, after all was pruned: {problem}")


async def _count(history: History, table: str) -> int:
    def read(connection: object) -> int:
        return int(connection.execute(f"select count(*) from {table}").fetchone()[0])  # type: ignore[attr-defined]

    return await history.simulation.store._database.writer.call(read)
