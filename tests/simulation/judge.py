"""The expected outcome of each wish."""

from __future__ import annotations

import itertools
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tests.simulation.crew.people import GROUPS
from tests.simulation.files import HALF
from tests.simulation.outcome import Found
from tests.simulation.wishes.wish import Wish

from treadle.kernel.effects.decide import Effect
from treadle.kernel.schedules.decide import tick_id
from treadle.kernel.store.records import RecordFilter
from treadle.model.clock import instant
from treadle.model.states import SCHEDULE, TaskState
from treadle.model.values import decode
from treadle.testing.simulation import Fault

if TYPE_CHECKING:
    from tests.simulation.history import History

GIVEN_UP = "takeovers_exhausted"


async def judge(history: History, wish: Wish) -> bool:
    """Say what is wrong with it; whether it was given up, as its workers were lost too often."""
    assert wish.id is not None
    match wish.kind:
        case "schedule":
            await _judge_schedule(history, wish)
        case "objective":
            await _judge_objective(history, wish)
        case "watch":
            await _judge_watcher(history, wish)
        case "run":
            return await _judge_end(history, wish, await _last_of_chain(history, wish.id))
        case _:
            return await _judge_end(history, wish, await history.archive.find_task(wish.id))
    return False


async def _last_of_chain(history: History, run_id: str) -> Found | None:
    """The run, or the last of those that went on for it."""
    found = await history.archive.find_run(run_id)
    while found is not None and isinstance(found.result, dict) and "continued_as" in found.result:
        found = await history.archive.find_run(found.result["continued_as"])
    return found


async def _judge_end(history: History, wish: Wish, found: Found | None) -> bool:
    simulation = history.simulation
    if found is None:
        simulation.wrong(f"{wish.key} is lost: there is no {wish.kind} {wish.id}")
        return False
    result = found.result
    if result is not None and "waits" in wish.options:
        told = result["result"].pop("told")
        if told not in (("something", "nothing") if wish.options["waits"] else (None,)):
            simulation.wrong(f"{wish.key} was told {told}")
    if found.inbox and found.state != "canceled":
        simulation.wrong(f"{wish.key}: {found.inbox} result(s) left in inboxes of run {wish.id}")
    if found.state == TaskState.FAILED and any(task.error_code == GIVEN_UP for task in found.tasks):
        return True
    if found.state == "completed" and isinstance(result, dict) and "by" in result and wish.kind == "task":
        result = _judge_signature(history, wish, found, dict(result))
    if found.state not in wish.may:
        simulation.wrong(f"{wish.key} ({wish.id}) is {found.state}, not {' or '.join(wish.may)}: {found.error}")
    elif found.state == "completed" and wish.expected is not None and result != wish.expected:
        simulation.wrong(f"{wish.key} ({wish.id}) came to {result}, not {wish.expected}")
    if found.state == "completed":
        await _judge_effects(history, wish, found)
    return False


def _judge_signature(history: History, wish: Wish, found: Found, result: dict[str, Any]) -> dict[str, Any]:
    """The reported worker held the claim at that time; the decider was allowed to decide."""
    simulation, task, by = history.simulation, found.tasks[0], result["by"]
    if task.name == "ask":
        return result
    del result["by"]
    if task.name == "vote":
        if len({*by}) < 2 or any(set(GROUPS[who]).isdisjoint({"weavers", "masters"}) for who in by):
            simulation.wrong(f"{wish.key} was approved by {by}")
        return {}
    holder = history.auditor.holder_of(task.id, task.claim_version) if isinstance(by, str) else task.claim_version
    if by != holder:
        simulation.wrong(f"{wish.key} was ended by {by}, and {holder} held it")
    return result


async def _judge_effects(history: History, wish: Wish, found: Found) -> None:
    """Each effect once, or more only where the log says that nobody knew (D23); at a service that deduplicates, once."""
    simulation, world = history.simulation, history.world
    for effect in wish.effects:
        if not world.made[effect]:
            simulation.wrong(f"{wish.key}: the effect {effect} was never made")
        if len(world.deduped.get(effect, ())) > 1:
            simulation.wrong(f"{wish.key}: the effect {effect} was made under {len(world.deduped[effect])} dedupe keys")
    more = sum(world.made[effect] - 1 for effect in wish.effects)
    if more > found.unknown:
        simulation.wrong(f"{wish.key}: {more} effect(s) were made again, and the log says {found.unknown} times that nobody knew")
    if wish.kind == "task" and wish.effects and not history.prunes:
        await _judge_outcomes(history, wish, found)
    for key in wish.jobs if not wish.retried else ():
        jobs = [job for job in world.jobs.values() if job.key == key]
        if len(jobs) != 1:
            simulation.wrong(f"{wish.key}: {len(jobs)} outside jobs instead of one: {jobs}")


async def _judge_outcomes(history: History, wish: Wish, found: Found) -> None:
    """The outcome of each effect is kept: a task that is done leaves nothing unknown (D22)."""
    task = found.tasks[0]
    for number, effect in enumerate(wish.effects):
        request = {"key": wish.key, "number": number}
        keys = Effect.of(task.id, task.step_id, task.root_id, f"charge{number}", request).keys(task.attempt)
        outcomes = await history.simulation.store.find_outcomes(keys)
        if not any(outcome.status == "succeeded" for outcome in outcomes):
            history.simulation.wrong(f"{wish.key} is done, and nobody knows whether its effect {effect} was made")


async def _judge_schedule(history: History, wish: Wish) -> None:
    """Each tick once, and none left out. A name is free once its schedule has ended, so that sent late it may be there twice."""
    payloads = {task.id: decode(task.payload) for task in await history.archive.list_tasks("tick")}
    own = {task_id: payload["tick"] for task_id, payload in payloads.items() if payload["key"] == wish.key}
    for schedule in await history.simulation.store.list_records(RecordFilter(SCHEDULE.entity), 100):
        instants = sorted(instant(datetime.fromisoformat(tick)) for tick in own.values())
        ticks = [tick for tick in instants if tick_id(schedule.id, tick) in own]
        for earlier, later in itertools.pairwise(ticks):
            if later - earlier != wish.options["every"] * 1000:
                history.simulation.wrong(f"{wish.key}: after the tick at {earlier} comes the one at {later}")


async def _judge_objective(history: History, wish: Wish) -> None:
    trail = await history.archive.engine.goals.objectives.show(wish.id or "")
    wrong = history.simulation.wrong
    if trail.objective.status not in wish.may:
        wrong(f"{wish.key}: the objective {wish.id} is {trail.objective.status}, not {' or '.join(wish.may)}")
    for order in trail.workorders:
        if order.workorder.status != "EXECUTED" or order.run_record is None or order.pause_state is None:
            wrong(f"{wish.key}: workorder {order.workorder.work_order_id} was not judged")


async def told_of(history: History, wish: Wish) -> dict[str, list[tuple[str, str | None]]]:
    """By file, what was told of it: (change, content), in no order."""
    told: dict[str, list[tuple[str, str | None]]] = {}
    for task in await history.archive.list_tasks("noticed"):
        change = decode(task.payload)["change"]
        if change["watcher"] == wish.key:
            told.setdefault(change["name"], []).append((change["change"], change["hash"]))
    return told


async def is_told(history: History, wish: Wish) -> bool:
    """Whether the watcher has told of all files as they are now."""
    told = await told_of(history, wish)
    for name, file in history.files.places[f"/{wish.key}"].items():
        known = told.get(name, [])
        if file.content is not None and not any(content == file.content for change, content in known if change != "deleted"):
            return False
        if file.content is None and known and not any(change == "deleted" for change, _ in known):
            return False
    return True


async def _judge_watcher(history: History, wish: Wish) -> None:
    """All that stayed was told of, each version once, and none that was only half written."""
    wrong, told = history.simulation.wrong, await told_of(history, wish)
    if not await is_told(history, wish):
        wrong(f"{wish.key}: not all files were told of: {told}")
    on_time = not history.skewed and Fault.JUMP not in history.simulation.faults.rates
    for name, known in told.items():
        if len(set(known)) < len(known):
            wrong(f"{wish.key}: the same was told twice of {name}: {known}")
        for change, content in known:
            if change != "deleted" and content not in history.files.places[f"/{wish.key}"][name].ever:
                wrong(f"{wish.key}: {name} never was {content}")
            if wish.options["settle"] and on_time and change != "deleted" and (content or "").startswith(HALF):
                wrong(f"{wish.key}: half of {name} was taken for all of it")
