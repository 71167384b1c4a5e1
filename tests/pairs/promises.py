"""The promises that every history must keep, whichever features it has."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
from tests.pairs.case import REPEATING, RUNS, TRIGGERS, Item
from tests.pairs.interfaces import Tools, operations

from treadle import Engine
from treadle.client import Client
from treadle.engine.operations import Operations
from treadle.interfaces.http.app import make_app
from treadle.kernel.store.queries import RunFilter, TaskFilter
from treadle.model.access import OPEN
from treadle.model.names import HANDLER
from treadle.model.tasks import Task
from treadle.model.values import decode
from treadle.testing.simulation import Process

if TYPE_CHECKING:
    from tests.pairs.story import Story

CLAIMS_PER_SECOND = 10
UNEXPLAINED = ("unknown", "stuck")
"""Codes of `why` that explain nothing."""


class Watcher:
    """Looks at every claim, and every second at everything that waits."""

    def __init__(self, story: Story) -> None:
        self.story, self._simulation = story, story.simulation
        self._claims: dict[str, deque[float]] = defaultdict(deque)
        self._receivers: dict[tuple[str, int], str] = {}
        self._owners: dict[str, Process] = {}
        self.seen: set[str] = set()
        """Codes of `why`."""

    def watch(self) -> None:
        """From now on."""
        self._simulation.after.append(self._after)

    async def _after(self, process: Process, name: str, arguments: tuple[Any, ...], answer: Any) -> None:
        if name == "tasks.claim":
            for task in answer:
                self._claimed(process, task)
        elif name == "servers.save":
            self._owners[arguments[0].id] = process
        elif name == "tasks.expire_leases_of":
            for owner_id in arguments[0]:
                if (owner := self._owners.get(owner_id)) is not None and owner.alive:
                    self._simulation.wrong(f"{process.shown} takes the work of {owner.shown}, which is alive")

    def _claimed(self, process: Process, task: Task) -> None:
        """No two receive the same claim, and no task is claimed in a hot loop."""
        claim, now = (task.id, task.claim_version), self._simulation.loop.time()
        if claim in self._receivers:
            self._simulation.wrong(f"claim {claim} was given to {self._receivers[claim]} and to {process.shown}")
        self._receivers[claim] = process.shown
        times = self._claims[task.id]
        times.append(now)
        while times[0] < now - 1:
            times.popleft()
        if len(times) > CLAIMS_PER_SECOND:
            self._simulation.wrong(f"{task.kind} {task.name} was claimed {len(times)} times within a second")

    async def look(self) -> bool:
        """Ask why everything waits; whether all has ended."""
        story, quiet = self.story, True
        for item in story.items:
            if item.id is None or (live := await live_ids(story, item)) is None:
                quiet = False
                continue
            for work_id in live:
                quiet = False
                reason = await Operations(story.observer(item.namespace), OPEN).system.why(work_id)
                self.seen.add(reason.code)
                if not reason.text or reason.code in UNEXPLAINED:
                    self._simulation.wrong(f"why {item.key}: {reason.code}: {reason.text}")
        return quiet and story.done_acts == len(story.case.acts) * len(story.case.namespaces)


async def live_ids(story: Story, item: Item) -> list[str] | None:
    """The ids of the item's work that has not ended; None if there is none of it yet."""
    assert item.id is not None
    store = story.simulation.store
    if story.case.kind in RUNS:
        runs = [await store.runs.find(run_id) for run_id in (item.id, *item.further)]
        return None if runs[0] is None else [run.id for run in runs if run is not None and not run.finished]
    if story.case.kind == "goal":
        trail = await story.observer(item.namespace).goals.objectives.show(item.id)
        return [] if trail.objective.status in ("DONE", "BLOCKED") else [item.id]
    tasks = await tasks_of(story, item)
    return None if not tasks else [task.id for task in tasks if not task.finished]


async def tasks_of(story: Story, item: Item) -> list[Task]:
    """The tasks of the item: one, except in case of an error."""
    store = story.simulation.store
    if story.case.kind not in TRIGGERS:
        task = await store.tasks.find(item.id or "")
        return [] if task is None else [task]
    tasks = await store.tasks.list_matching(TaskFilter(name="pair.Do"), 1000)
    return [task for task in tasks if decode(task.payload).get("key") == item.key]


async def check_end(story: Story) -> None:
    """Check everything that must hold when all is over."""
    case, wrong = story.case, story.simulation.wrong
    for item in story.items:
        await _check_item(story, item)
        for run_id in item.further:
            await _check_item(story, replace(item, id=run_id))
    for work_id in story.work.replaced:
        work = await (story.simulation.store.runs if case.kind in RUNS else story.simulation.store.tasks).find(work_id)
        if work is None or not work.finished:
            wrong(f"{work_id} lives, although its key was taken")
    if story.ended_at > case.ends_within:
        wrong(f"it took {story.ended_at:.0f} s")
    if missing := {code for code in case.reasons if code not in story.watcher.seen}:
        wrong(f"`why` never gave the reasons {sorted(missing)}, only {sorted(story.watcher.seen)}")
    await _check_repetition(story)
    await _check_log(story)
    for namespace in case.namespaces:
        engine = story.observer(namespace)
        await _check_interfaces(story, engine, namespace)
        for problem in (await engine.kernel.verify()).problems:
            wrong(f"verify: {problem}")


async def _check_item(story: Story, item: Item) -> None:
    """Nothing is lost, and nothing is there twice."""
    case, wrong, store = story.case, story.simulation.wrong, story.simulation.store
    engine = story.observer(item.namespace)
    if item.id is None:
        wrong(f"{item.key} could not be submitted")
        return
    result: Any
    if case.kind == "goal":
        trail = await engine.goals.objectives.show(item.id)
        if trail.objective.status != ("DONE" if case.end == "completed" else "BLOCKED"):
            wrong(f"the objective {item.key} is {trail.objective.status}")
        for order in trail.workorders:
            if order.workorder.status != "EXECUTED" or order.run_record is None or order.pause_state is None:
                wrong(f"a workorder of {item.key} was not judged: {order.workorder}")
        return
    if case.kind in RUNS:
        run = await store.runs.find(item.id)
        if run is None:
            wrong(f"{item.key} is lost")
            return
        state, error = run.state, run.error
        result = await engine.kernel.runs.outputs(run) if state == "completed" else None
        if case.kind != "workflow" and state == "completed":
            result = result["result"]
    else:
        tasks = await tasks_of(story, item)
        if len(tasks) != 1:
            wrong(f"{item.key} is there {len(tasks)} times")
            return
        task = await engine.kernel.value_store.unpack_task(tasks[0])
        state, error, result = task.state, task.error, decode(task.result)
    code = json.loads(error).get("code") if error else None
    if state != case.end and not (case.end == "canceled" and state == "completed"):
        wrong(f"{item.key} is {state}, not {case.end}: {error}")
    elif case.error is not None and code != case.error:
        wrong(f"{item.key} failed with {code}, not {case.error}: {error}")
    elif state == "completed":
        expected = {"key": item.key}
        if case.kind not in (*RUNS, "external", "approval"):
            expected |= case.returns
        if case.payload:
            expected |= {"colour": "red"}
        if case.kind == "agent":
            result = {"key": result.get("result", result).get("key")}
        if result != expected:
            wrong(f"{item.key} has the result {result}, not {expected}")


async def _check_repetition(story: Story) -> None:
    """Executions are repeated only where the contract says so, each under its own number, and charge once."""
    case, wrong, work = story.case, story.simulation.wrong, story.work
    again = max(len(item.further) for item in story.items)
    allowed = (1 + again) * (1 + case.hangs) + case.raises + case.dies + case.upgrades + case.reopens + (case.fault in REPEATING)
    for who, count in work.executions.items():
        if count > allowed:
            wrong(f"{who} was executed {count} times, not {allowed}")
    for (task_id, attempt), count in work.attempts.items():
        if count > 1:
            wrong(f"attempt {attempt} of {task_id} was executed {count} times")
    anew = case.reopens or (case.kind in RUNS and case.dies > 0)  # a failed or canceled call of a run starts as another task
    for who, keys in work.world.deduped.items():
        if len(keys) > 1 + anew + again and case.kind != "goal":  # each workorder is work of its own
            wrong(f"{who} was charged under {len(keys)} idempotency keys")
    for (run_id,) in work.database.execute("select run_id from records group by run_id having count(*) > 1"):
        wrong(f"the transaction of the run {run_id} was committed twice")
    if mixed := {run_id: versions for run_id, versions in work.versions.items() if len(versions) > 1}:
        wrong(f"runs were executed in several versions: {mixed}")
    if case.upgrades and case.kind == "function" and {2} not in work.versions.values():
        wrong("no run was started in the new version")
    jobs = [job.key for job in work.world.jobs.values()]
    if len(jobs) != len({*jobs}):
        wrong(f"external jobs were submitted twice: {jobs}")
    limit = case.options.get("progress_every") or case.options.get("timeout")
    for seconds in work.hung_for:
        if limit is not None and seconds > limit + 2:
            wrong(f"a handler hung for {seconds:.1f} s, with a limit of {limit} s")


async def _check_log(story: Story) -> None:
    """Every change by an operator is in the log, with its actor."""
    events = await story.simulation.store.log.list_events(0, 1 << 60, 10_000)
    entries = [event.transition for event in events if event.transition.actor == "ada"]
    if len(entries) < story.changes:
        story.simulation.wrong(f"operators made {story.changes} changes, and the log has {len(entries)}")


async def _check_interfaces(story: Story, engine: Engine, namespace: str) -> None:
    """Python and HTTP say what the store has."""
    transport = httpx.ASGITransport(make_app(engine, open_access=True))
    async with Client("http://127.0.0.1", transport=transport) as client:
        for api in (Operations(engine, OPEN), client):
            await _check_operations(story, api, namespace)
    async with operations(engine, "MCP") as tools:
        await _check_tools(story, tools, namespace)


async def _check_tools(story: Story, tools: Tools, namespace: str) -> None:
    """The tools of MCP show what the store has."""
    wrong, store = story.simulation.wrong, story.simulation.store
    stored = {task.id: task.state for task in await store.tasks.list_matching(TaskFilter(namespace=namespace), 10_000)}
    runs = {run.id: run.state for run in await store.runs.list_matching(RunFilter(namespace=namespace), 1000)}
    listed = {task.id: task.state for task in (await tools.tasks.list(limit=100)).tasks}
    if any(stored.get(task_id) != state for task_id, state in listed.items()):
        wrong(f"the tool lists the tasks {listed}")
    if {run.id: run.state for run in (await tools.runs.list(limit=100)).runs} != runs:
        wrong("the tool lists other runs than the store")
    for task_id in listed:
        if (shown := await tools.tasks.get(task_id)).state != stored[task_id]:
            wrong(f"the task {task_id} is {stored[task_id]}, and the tool shows {shown.state}")


async def _check_operations(story: Story, api: Operations | Client, namespace: str) -> None:
    """Lists, searches and single reads say what the store has."""
    wrong, store = story.simulation.wrong, story.simulation.store
    stored = {
        task.id: task for task in await store.tasks.list_matching(TaskFilter(namespace=namespace), 10_000) if task.kind == HANDLER
    }
    listed: dict[str, str] = {}
    before = None
    while True:
        page = await api.tasks.list(kind=HANDLER, limit=2, before=before)
        listed |= {task.id: task.state for task in page.tasks}
        if (before := page.next_before) is None:
            break
    if listed != {task.id: task.state for task in stored.values()}:
        wrong(f"the list of tasks shows {listed}")
    for state in sorted({task.state for task in stored.values()}):
        by_query = {task.id for task in (await api.tasks.list(kind=HANDLER, where=f"state = {state}", limit=1000)).tasks}
        by_state = {task.id for task in (await api.tasks.list(kind=HANDLER, state=[state], limit=1000)).tasks}
        expected = {task.id for task in stored.values() if task.state == state}
        if not by_query == by_state == expected:
            wrong(f"{len(expected)} tasks are {state}: the query finds {len(by_query)}, the filter {len(by_state)}")
    for task in stored.values():
        shown = await api.tasks.get(task.id)
        if (shown.state, shown.attempt) != (task.state, task.attempt):
            wrong(f"task {task.id} is {task.state}, and shown as {shown.state}")
    runs = {run.id: run.state for run in await store.runs.list_matching(RunFilter(namespace=namespace), 1000)}
    if {run.id: run.state for run in (await api.runs.list(limit=1000)).runs} != runs:
        wrong("the list of runs differs from the store")
    letters = {letter.id for letter in (await api.dead_letters.list(limit=1000)).letters}
    failed = {task.id for task in await store.tasks.list_matching(TaskFilter(namespace=namespace, states=("failed",)), 1000)}
    if not letters <= failed:
        wrong(f"the dead letters {letters - failed} are not failed tasks")
