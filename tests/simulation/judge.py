"""The expected outcome of each submission."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tests.simulation.crew.people import GROUPS
from tests.simulation.faults import Fault
from tests.simulation.files import HALF
from tests.simulation.outcome import Found
from tests.simulation.submissions.submission import Submission

from treadle.kernel.effects.decide import Effect
from treadle.kernel.schedules.decide import tick_id
from treadle.kernel.store.records import RecordFilter
from treadle.model.clock import instant
from treadle.model.states import SCHEDULE, TaskState
from treadle.model.values import decode

if TYPE_CHECKING:
    from tests.simulation.history import History

GIVEN_UP = "takeovers_exhausted"


async def judge(history: History, submission: Submission) -> bool:
    """Say what is wrong with it; whether it was given up, as its workers were lost too often."""
    assert submission.id is not None
    match submission.kind:
        case "schedule":
            await _judge_schedule(history, submission)
        case "objective":
            await _judge_objective(history, submission)
        case "watch":
            await _judge_watcher(history, submission)
        case "run":
            return await _judge_end(history, submission, await _last_of_chain(history, submission.id))
        case _:
            return await _judge_end(history, submission, await history.archive.find_task(submission.id))
    return False


async def _last_of_chain(history: History, run_id: str) -> Found | None:
    """The run, or the last of those that went on for it."""
    found = await history.archive.find_run(run_id)
    while found is not None and isinstance(found.result, dict) and "continued_as" in found.result:
        found = await history.archive.find_run(found.result["continued_as"])
    return found


async def _judge_end(history: History, submission: Submission, found: Found | None) -> bool:
    simulation = history.simulation
    if found is None:
        simulation.wrong(f"{submission.key} is lost: there is no {submission.kind} {submission.id}")
        return False
    result = found.result
    if result is not None and "waits" in submission.options:
        told = result["result"].pop("told")
        if told not in (("something", "nothing") if submission.options["waits"] else (None,)):
            simulation.wrong(f"{submission.key} was told {told}")
    if found.inbox and found.state != "canceled":
        simulation.wrong(f"{submission.key}: {found.inbox} result(s) left in inboxes of run {submission.id}")
    if found.state == TaskState.FAILED and any(task.error_code == GIVEN_UP for task in found.tasks):
        return True
    if found.state == "completed" and isinstance(result, dict) and "by" in result and submission.kind == "task":
        result = _judge_signature(history, submission, found, dict(result))
    if found.state not in submission.may:
        simulation.wrong(f"{submission.key} ({submission.id}) is {found.state}, not {' or '.join(submission.may)}: {found.error}")
    elif found.state == "completed" and submission.expected is not None and result != submission.expected:
        simulation.wrong(f"{submission.key} ({submission.id}) came to {result}, not {submission.expected}")
    if found.state == "completed":
        await _judge_effects(history, submission, found)
    return False


def _judge_signature(history: History, submission: Submission, found: Found, result: dict[str, Any]) -> dict[str, Any]:
    """The reported worker held the claim at that time; the decider was allowed to decide."""
    simulation, task, by = history.simulation, found.tasks[0], result["by"]
    if task.name == "ask":
        return result
    del result["by"]
    if task.name == "vote":
        if len({*by}) < 2 or any(set(GROUPS[who]).isdisjoint({"weavers", "masters"}) for who in by):
            simulation.wrong(f"{submission.key} was approved by {by}")
        return {}
    holder = history.auditor.holder_of(task.id, task.claim_version) if isinstance(by, str) else task.claim_version
    if by != holder:
        simulation.wrong(f"{submission.key} was ended by {by}, and {holder} held it")
    return result


async def _judge_effects(history: History, submission: Submission, found: Found) -> None:
    """Each effect once, or more only where the log says that nobody knew (D23); at a service that deduplicates, once."""
    simulation, world = history.simulation, history.world
    for effect in submission.effects:
        if not world.made[effect]:
            simulation.wrong(f"{submission.key}: the effect {effect} was never made")
        if len(world.deduped.get(effect, ())) > 1:
            simulation.wrong(f"{submission.key}: the effect {effect} was made under {len(world.deduped[effect])} dedupe keys")
    more = sum(world.made[effect] - 1 for effect in submission.effects)
    if more > found.unknown:
        simulation.wrong(
            f"{submission.key}: {more} effect(s) were made again, and the log says {found.unknown} times that nobody knew"
        )
    if submission.kind == "task" and submission.effects and not history.prunes:
        await _judge_outcomes(history, submission, found)
    for key in submission.jobs if not submission.retried else ():
        jobs = [job for job in world.jobs.values() if job.key == key]
        if len(jobs) != 1:
            simulation.wrong(f"{submission.key}: {len(jobs)} outside jobs instead of one: {jobs}")


async def _judge_outcomes(history: History, submission: Submission, found: Found) -> None:
    """The outcome of each effect is kept: a task that is done leaves nothing unknown (D22)."""
    task = found.tasks[0]
    for number, effect in enumerate(submission.effects):
        request = {"key": submission.key, "number": number}
        keys = Effect.of(task.id, task.step_id, task.root_id, f"charge{number}", request).keys(task.attempt)
        outcomes = await history.simulation.store.records.find_outcomes(keys)
        if not any(outcome.status == "succeeded" for outcome in outcomes):
            history.simulation.wrong(f"{submission.key} is done, and nobody knows whether its effect {effect} was made")
        if any(outcome.status == "unknown" and outcome.unknown_at is None for outcome in outcomes):
            history.simulation.wrong(f"{submission.key} is done, and the log does not say that an attempt at {effect} is unknown")


async def _judge_schedule(history: History, submission: Submission) -> None:
    """Each tick once, and none left out. A name is free once its schedule has ended, so that sent late it may be there twice."""
    payloads = {task.id: decode(task.payload) for task in await history.archive.list_tasks("tick")}
    own = {task_id: payload["tick"] for task_id, payload in payloads.items() if payload["key"] == submission.key}
    for schedule in await history.simulation.store.records.list_matching(RecordFilter(SCHEDULE.entity), 100):
        instants = sorted(instant(datetime.fromisoformat(tick)) for tick in own.values())
        ticks = [tick for tick in instants if tick_id(schedule.id, tick) in own]
        for earlier, later in itertools.pairwise(ticks):
            if later - earlier != submission.options["every"] * 1000:
                history.simulation.wrong(f"{submission.key}: after the tick at {earlier} comes the one at {later}")


async def _judge_objective(history: History, submission: Submission) -> None:
    trail = await history.archive.engine.goals.objectives.show(submission.id or "")
    wrong = history.simulation.wrong
    if trail.objective.status not in submission.may:
        wrong(f"{submission.key}: the objective {submission.id} is {trail.objective.status}, not {' or '.join(submission.may)}")
    for order in trail.workorders:
        if order.workorder.status != "EXECUTED" or order.run_record is None or order.pause_state is None:
            wrong(f"{submission.key}: workorder {order.workorder.work_order_id} was not judged")


async def told_of(history: History, submission: Submission) -> dict[str, list[tuple[str, str | None]]]:
    """By file, what was told of it: (change, content), in no order."""
    told: dict[str, list[tuple[str, str | None]]] = {}
    for task in await history.archive.list_tasks("noticed"):
        change = decode(task.payload)["change"]
        if change["watcher"] == submission.key:
            told.setdefault(change["name"], []).append((change["change"], change["hash"]))
    return told


async def is_told(history: History, submission: Submission) -> bool:
    """Whether the watcher has told of all files as they are now."""
    told = await told_of(history, submission)
    for name, file in history.files.places[f"/{submission.key}"].items():
        known = told.get(name, [])
        if file.content is not None and not any(content == file.content for change, content in known if change != "deleted"):
            return False
        if file.content is None and known and not any(change == "deleted" for change, _ in known):
            return False
    return True


async def _judge_watcher(history: History, submission: Submission) -> None:
    """All that stayed was told of, each version once, and none that was only half written."""
    wrong, told = history.simulation.wrong, await told_of(history, submission)
    if not await is_told(history, submission):
        wrong(f"{submission.key}: not all files were told of: {told}")
    on_time = not history.skewed and Fault.JUMP not in history.simulation.faults.rates
    for name, known in told.items():
        if len(set(known)) < len(known):
            wrong(f"{submission.key}: the same was told twice of {name}: {known}")
        for change, content in known:
            if change != "deleted" and content not in history.files.places[f"/{submission.key}"][name].ever:
                wrong(f"{submission.key}: {name} never was {content}")
            if submission.options["settle"] and on_time and change != "deleted" and (content or "").startswith(HALF):
                wrong(f"{submission.key}: half of {name} was taken for all of it")
