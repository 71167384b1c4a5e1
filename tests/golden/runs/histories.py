"""Histories of runs as JSON: what a store has of a run that stopped somewhere, to be put into an empty store later.

A history holds the flow, the run's row, its transitions, its steps (documents and inboxes as they are stored), its live tasks, the
big values, and the outputs that the run must come to when `answer` answers its handlers. It is made by `regenerate.py`.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from tests.runs.driver import Hands

from treadle.kernel.store.ports import Store
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import PutBlob, PutFlow, PutInbox, PutRun, PutSteps, RunTransition, Unit
from treadle.model.names import QueueKey
from treadle.model.runs import Flow, Run, Step
from treadle.model.tasks import NewTask

History = dict[str, Any]
LIVE = ("pending", "running", "paused", "awaiting_external", "awaiting_approval")


def answer(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    """The fixed results of the handlers in all golden flows."""
    match name:
        case "g.Number":
            return {"out": payload["n"] * 10}
        case "g.Text":
            return {"text": payload["text"] + "!"}
        case _:
            raise ValueError(f"{name} is not available")


async def dump(hands: Hands, run_id: str, about: str) -> History:
    """Everything of a run."""
    store = hands.engine.kernel.store
    run = await store.runs.find(run_id)
    assert run is not None
    flow = await store.runs.find_flow(run.flow_id)
    steps = await store.runs.list_steps(run_id, None, 10_000)
    tasks = await store.tasks.list_matching(TaskFilter(states=LIVE, run_id=run_id), 10_000)
    texts = (
        [step.document for step in steps] + [task.payload for task in tasks] + [run.inputs, *(step.inbox or "" for step in steps)]
    )
    digests = sorted({part.split('"')[0] for text in texts for part in text.replace("\\", "").split('"@blob":"')[1:]})
    return {
        "about": about,
        "flow": msgspec.to_builtins(flow),
        "run": msgspec.to_builtins(run),
        "transitions": [
            [transition.transition, transition.from_state, transition.to_state, transition.data]
            for transition in await store.log.list_transitions(run_id)
        ],
        "steps": [msgspec.to_builtins(step) for step in steps],
        "tasks": [
            {
                "id": task.id,
                "queue": [task.namespace, task.kind, task.task_list, task.name],
                "payload": task.payload,
                "priority": task.priority,
                "blocked_by": task.blocked_by,
                "step_id": task.step_id,
                "timeout_for": task.timeout_for,
            }
            for task in sorted(tasks, key=lambda task: task.id)
        ],
        "blobs": await store.runs.find_blobs(digests),
    }


async def load(store: Store, history: History) -> Run:
    """Put a history into a store that does not know it; what was claimed when it was made is ready now."""
    run = msgspec.convert(history["run"], Run)
    begun = msgspec.structs.replace(run, state="pending", transitions=0, outputs=None, error=None, failed_step_id=None)
    steps = tuple(msgspec.convert(step, Step) for step in history["steps"])
    rows = [
        PutFlow(msgspec.convert(history["flow"], Flow)),
        PutRun(begun),
        *(PutBlob(digest, value, run.root_id) for digest, value in history["blobs"].items()),
        PutSteps(run.id, steps, 0),
        *(PutInbox(step.id, step.inbox) for step in steps if step.inbox is not None),
    ]
    for transition, from_state, to_state, data in history["transitions"]:
        ends = {"error": run.error, "failed_step_id": run.failed_step_id} if to_state == "failed" else {}
        rows.append(RunTransition(run.id, transition, from_state, to_state, data=data, **ends))
    tasks = tuple(
        NewTask(
            id=task["id"],
            queue=QueueKey(*task["queue"]),
            payload=task["payload"],
            priority=task["priority"],
            blocked_by=task["blocked_by"],
            timeout_for=task["timeout_for"],
            run_id=run.id,
            step_id=task["step_id"],
            flow_id=run.flow_id,
            root_id=run.root_id,
            trace_id=run.trace_id,
        )
        for task in history["tasks"]
    )
    (answered,) = await store.commit([Unit(tasks=tasks, rows=tuple(rows))])
    assert answered.verdict == "done"
    return run


async def go_on(hands: Hands, run_id: str) -> dict[str, Any]:
    """Do what an operator and workers would: resume or retry it, and answer until nothing is ready; the outputs."""
    run = await hands.engine.kernel.runs.get_run(run_id)
    if run.state == "paused":
        await hands.engine.runs.resume(run_id)
    elif run.state == "failed":
        await hands.engine.runs.retry(run_id)
    await hands.work(answer)
    outputs = await hands.engine.run_result(run_id)
    await hands.nothing_is_left(run_id)
    return outputs


def text_of(history: History) -> str:
    return json.dumps(history, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
