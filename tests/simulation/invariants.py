"""What must hold when a history is over, whatever went wrong in it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tests.simulation.auditor import LIVE
from tests.simulation.wishes import Wish

from treadle.evaluator.states import TERMINAL
from treadle.kernel.effects import Effect
from treadle.kernel.entities import RecordFilter
from treadle.kernel.lookups import RunFilter, TaskFilter
from treadle.kernel.ports import Store
from treadle.kernel.schedules import tick_id
from treadle.model.clock import instant
from treadle.model.names import HANDLER, PRUNE
from treadle.model.states import EXTERNAL, SCHEDULE, StepState, TaskState
from treadle.model.tasks import Task
from treadle.model.values import decode
from treadle.testing.simulation import Simulation

if TYPE_CHECKING:
    from tests.simulation.history import History

ENDED_STEPS = (StepState.COMPLETED, StepState.FAILED, *TERMINAL)
GIVEN_UP = "takeovers_exhausted"


async def is_quiet(store: Store, wishes: Sequence[Wish]) -> bool:
    """Whether all wishes were sent and nothing is left to do for them."""
    if any(wish.id is None for wish in wishes):
        return False
    return all(depth.lane.kind == PRUNE for depth in await store.list_depths())


async def check_end(history: History) -> int:
    """Everything that must hold when all is over; how many wishes were given up."""
    simulation, store = history.simulation, history.simulation.store
    observer = simulation.start_process("observer")
    engine = history.engine(observer)
    given_up = 0
    for wish in history.wishes:
        if wish.id is None:
            simulation.wrong(f"{wish.key} could not be sent")
        else:
            given_up += await _check_wish(history, engine, wish)
    for task in await store.list_tasks(TaskFilter(states=LIVE), 1000):
        if task.kind != PRUNE:
            simulation.wrong(
                f"left over: {task.kind} {task.name} {task.id} {task.state} owner={task.owner_id} wake_at={task.wake_at}"
            )
    await _check_records(simulation, engine)
    await _check_twice(simulation, engine, history.wishes)
    for problem in (await engine.verify()).problems:
        simulation.wrong(f"verify: {problem}")
    return given_up


async def _check_records(simulation: Simulation, engine: Any) -> None:
    """Nobody is asked any more, and no outside job is followed; no run had to be repaired."""
    await engine.recovery.recover()  # questions of runs that were canceled while they were asked are closed by a start-up
    for approval in await engine.approvals.list():
        simulation.wrong(f"approval {approval.id} is still pending")
    for record in await simulation.store.list_records(RecordFilter(EXTERNAL.entity, states=("live",)), 100):
        simulation.wrong(f"outside job {record.id} of task {record.task_id} is still followed")
    for run in await simulation.store.list_runs(RunFilter(), 1000):
        if any(move.move == "repair" for move in await simulation.store.list_moves(run.id)):
            simulation.wrong(f"run {run.id} had to be repaired")
        if run.state not in ("completed", "failed", "canceled"):
            simulation.wrong(f"run {run.id} ({run.workflow}) is {run.state}")
        elif run.state == "completed":
            for step in await simulation.store.list_steps(run.id, None, 1000):
                if step.state not in ENDED_STEPS:
                    simulation.wrong(f"run {run.id} is completed, and its step {step.id} is {step.state}")


async def _check_twice(simulation: Simulation, engine: Any, wishes: Sequence[Wish]) -> None:
    """What was asked for again, as no answer came, is there once."""
    tasks = [await engine.open_values(task) for task in await simulation.store.list_tasks(TaskFilter(kind=HANDLER), 10_000)]
    runs = await simulation.store.list_runs(RunFilter(), 10_000)
    keys = Counter(decode(task.payload).get("key") for task in tasks if task.run_id is None and task.name != "tick")
    keys.update(run.idempotency_key for run in runs)
    for wish in wishes:
        if wish.kind in ("task", "run") and keys[wish.key] > 1:
            simulation.wrong(f"{wish.key} is there {keys[wish.key]} times")


async def _check_schedule(simulation: Simulation, engine: Any, wish: Wish) -> None:
    """Each tick once, and none left out. A name is free once its schedule has ended, so that sent late it may be there twice."""
    tasks = [await engine.open_values(task) for task in await simulation.store.list_tasks(TaskFilter(name="tick"), 1000)]
    own = {task.id: decode(task.payload)["tick"] for task in tasks if decode(task.payload)["key"] == wish.key}
    for schedule in await simulation.store.list_records(RecordFilter(SCHEDULE.entity), 100):
        instants = sorted(instant(datetime.fromisoformat(tick)) for tick in own.values())
        ticks = [tick for tick in instants if tick_id(schedule.id, tick) in own]
        for earlier, later in itertools.pairwise(ticks):
            if later - earlier != wish.options["every"] * 1000:
                simulation.wrong(f"{wish.key}: after the tick at {earlier} comes the one at {later}")


async def _check_objective(simulation: Simulation, engine: Any, wish: Wish) -> None:
    trail = await engine.objectives.show(wish.id)
    if trail.objective.status not in wish.may:
        simulation.wrong(f"{wish.key}: the objective {wish.id} is {trail.objective.status}, not {' or '.join(wish.may)}")
    for order in trail.workorders:
        if order.workorder.status != "EXECUTED" or order.run_record is None or order.pause_state is None:
            simulation.wrong(f"{wish.key}: workorder {order.workorder.work_order_id} was not judged")


async def _check_wish(history: History, engine: Any, wish: Wish) -> bool:
    simulation, store, world = history.simulation, history.simulation.store, history.world
    assert wish.id is not None
    if wish.kind == "schedule":
        await _check_schedule(simulation, engine, wish)
        return False
    if wish.kind == "objective":
        await _check_objective(simulation, engine, wish)
        return False
    if wish.kind == "task":
        task = await store.find_task(wish.id)
        if task is None:
            simulation.wrong(f"{wish.key} is lost: there is no task {wish.id}")
            return False
        task = await engine.open_values(task)
        state, result, error = task.state, decode(task.result), task.error
        tasks = [task]
    else:
        run = await store.find_run(wish.id)
        if run is None:
            simulation.wrong(f"{wish.key} is lost: there is no run {wish.id}")
            return False
        state, error = run.state, run.error
        result = (await engine.runs.outputs(run)) if state == "completed" else None
        if result is not None and "waits" in wish.options:
            told = result["result"].pop("told")
            if told not in (("something", "nothing") if wish.options["waits"] else (None,)):
                simulation.wrong(f"{wish.key} was told {told}")
        tasks = await store.list_tasks(TaskFilter(run_id=wish.id), 1000)
        inbox = await store.list_inbox(wish.id, 10)
        if inbox:
            simulation.wrong(f"{wish.key}: {len(inbox)} result(s) left in inboxes of run {wish.id}")
    if state == TaskState.FAILED and any(task.error_code == GIVEN_UP for task in tasks):
        return True
    if state not in wish.may:
        simulation.wrong(f"{wish.key} ({wish.id}) is {state}, not {' or '.join(wish.may)}: {error}")
    elif state == "completed" and wish.expected is not None and result != wish.expected:
        simulation.wrong(f"{wish.key} ({wish.id}) came to {result}, not {wish.expected}")
    if state == "completed":
        await _check_effects(simulation, store, world, wish, tasks)
    return False


async def _check_effects(simulation: Simulation, store: Store, world: Any, wish: Wish, tasks: Sequence[Task]) -> None:
    """Each effect once, or more only where the log says that nobody knew (D23); at a service that deduplicates, once."""
    unknown = 0
    for task in tasks:
        unknown += sum(move.move == "tool_call.unknown" for move in await store.list_moves(task.id))
    for effect in wish.effects:
        made = world.made[effect]
        if not made:
            simulation.wrong(f"{wish.key}: the effect {effect} was never made")
        if len(world.deduped.get(effect, ())) > 1:
            simulation.wrong(f"{wish.key}: the effect {effect} was made under {len(world.deduped[effect])} dedupe keys")
    if wish.kind == "task" and wish.effects:
        await _check_outcomes(simulation, store, wish, tasks[0])
    more = sum(world.made[effect] - 1 for effect in wish.effects)
    if more > unknown:
        simulation.wrong(f"{wish.key}: {more} effect(s) were made again, and the log says {unknown} times that nobody knew")
    for key in wish.jobs if not wish.retried else ():
        jobs = [job for job in world.jobs.values() if job.key == key]
        if len(jobs) != 1:
            simulation.wrong(f"{wish.key}: {len(jobs)} outside jobs instead of one: {jobs}")


async def _check_outcomes(simulation: Simulation, store: Store, wish: Wish, task: Task) -> None:
    """The outcome of each effect is kept: a task that is done leaves nothing unknown (D22)."""
    for number, effect in enumerate(wish.effects):
        request = {"key": wish.key, "number": number}
        keys = Effect.of(task.id, task.step_id, task.root_id, f"charge{number}", request).keys(task.attempt)
        if not any(outcome.status == "succeeded" for outcome in await store.find_outcomes(keys)):
            simulation.wrong(f"{wish.key} is done, and nobody knows whether its effect {effect} was made")
