"""The debugging tool: state, error with traceback, attempts, payload, log and next actions of a run, step or task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from treadle.api.contract import Doc
from treadle.api.runs import RunDetail, RunLogLine
from treadle.api.steps import StepDetail
from treadle.api.tasks import TaskDetail, TaskLogLine
from treadle.api.wire import to_builtins
from treadle.interfaces.mcp.answers import LOG_LINE, Fields, Shape, line, shown
from treadle.interfaces.mcp.request_context import RequestContext
from treadle.interfaces.mcp.tool import tool
from treadle.model.errors import NotFound
from treadle.model.values import Json

_LINES, _TRACEBACK = 20, 6_000
_SECRET = re.compile(r"passw|secret|token|api.?key|authorization|credential|private.?key", re.IGNORECASE)


_DIAGNOSIS: Shape = {
    "kind": str,
    "run_id": str | None,
    "step_id": str | None,
    "path": str | None,
    "task_id": str | None,
    "name": str,
    "state": str,
    "why": str,
    "error": Json,
    "traceback": str | None,
    "attempt": int | None,
    "failures": int | None,
    "takeovers": int | None,
    "worker": str | None,
    "payload": Json,
    "expects": dict[str, str] | None,
    "lines": list[LOG_LINE.type(TaskLogLine)],  # type: ignore[misc]
    "next_actions": list[str],
}
"""The facts about a run, step or task, and the tools to call next; of a run, about its failed or first waiting step."""


@tool(answers=_DIAGNOSIS)
async def debug(
    context: RequestContext,
    id: Annotated[str, Doc("Id of a run, step or task")],  # noqa: A002
) -> Fields:
    """Explain a failure or a wait: state, error, traceback, attempts, payload, log, and the tools to call next."""
    try:
        return await _of_run(context, await context.api.runs.get(id))
    except NotFound:
        pass
    try:
        task = await context.api.tasks.get(id)
    except NotFound:
        step = await context.api.steps.find(id)
        return await _of_step(context, "step", await context.api.runs.get(step.run_id), step.step_id)
    if task.run_id is not None and task.step_id is not None:
        return await _of_step(context, "task", await context.api.runs.get(task.run_id), task.step_id)
    return _diagnosis("task", None, None, task, task.lines, task.error, (task.error or {}).get("traceback"), _task_actions(task))


async def _of_run(context: RequestContext, run: RunDetail) -> Fields:
    step_id = run.failed_step_id
    if step_id is None and run.finished_at is None:
        tasks = (await context.api.runs.tasks(run.id, limit=10)).tasks
        step_id = next((task.step_id for task in tasks if task.step_id is not None), None)
    if step_id is not None:
        try:
            return await _of_step(context, "run", run, step_id)
        except NotFound:  # its row is gone
            pass
    lines = (await context.api.runs.logs(run.id, limit=_LINES)).lines
    return _diagnosis("run", run, None, None, lines, run.error, (run.error or {}).get("traceback"), _run_actions(run))


async def _of_step(context: RequestContext, kind: str, run: RunDetail, step_id: str) -> Fields:
    step = await context.api.steps.get(run.id, step_id)
    error = None if step.error is None else {"type": step.error.type, "message": step.error.cause, "path": step.path}
    actions = _step_actions(run, step)
    return _diagnosis(kind, run, step, step.task, step.lines, error or run.error, step.traceback, actions)


def _diagnosis(
    kind: str,
    run: RunDetail | None,
    step: StepDetail | None,
    task: TaskDetail | None,
    lines: Sequence[TaskLogLine | RunLogLine],
    error: Json,
    traceback: str | None,
    actions: list[str],
) -> Fields:
    subject: Any = run if kind == "run" else step if kind == "step" else task or step
    why = run.why if run is not None and kind == "run" else task.why if task is not None else run.why if run is not None else None
    payload = task.payload if task is not None else step.params if step is not None else run.inputs if run is not None else None
    name = subject.workflow if kind == "run" else subject.name if step is None else step.facet or step.name
    return {
        "kind": kind,
        "run_id": None if run is None else run.id,
        "step_id": None if step is None else step.id,
        "path": None if step is None else step.path,
        "task_id": None if task is None else task.id,
        "name": name,
        "state": subject.state,
        "why": "" if why is None else line(why.text, 1_000) or "",
        "error": shown({name: value for name, value in error.items() if name != "traceback"} if isinstance(error, dict) else error),
        "traceback": None if traceback is None else traceback[-_TRACEBACK:],
        "attempt": None if task is None else task.attempt,
        "failures": None if task is None else task.failures,
        "takeovers": None if task is None else task.takeovers,
        "worker": step.worker if step is not None else None if task is None else task.owner_id,
        "payload": shown(_masked(payload)),
        "expects": None if step is None else to_builtins(step.expects),
        "lines": [LOG_LINE.of(log) for log in lines[-_LINES:]],
        "next_actions": actions,
    }


def _masked(value: Json) -> Json:
    """The value without values that are likely secrets."""
    if isinstance(value, list):
        return [_masked(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    return {name: "***" if _SECRET.search(name) and field is not None else _masked(field) for name, field in value.items()}


_RUN_ACTIONS = {
    "failed": "run_retry(run_id={})",
    "paused": "afl_resume_workflow(run_id={})",
    "completed": "run_outputs(run_id={})",
    "canceled": "run_start or afl_execute_workflow: a canceled run does not continue",
}
"""The next call, by the state of a run; for its id."""


_CORRECT_FLOW = "run_start or afl_execute_workflow with a corrected flow: the flow itself fails, so a retry repeats that"


def _run_actions(run: RunDetail) -> list[str]:
    actions = [_RUN_ACTIONS.get(run.state, "run_outputs(run_id={}, wait_for=30)").format(run.id)]
    if run.state not in _RUN_ACTIONS and run.awaited_signals:
        actions.append(f"run_signal(run_id={run.id})")
    return actions


def _step_actions(run: RunDetail, step: StepDetail) -> list[str]:
    if run.state == "paused":
        return _run_actions(run)
    if step.state == "failed" and run.state == "failed":
        fork = f"run_fork(run_id={run.id}, step={step.id}, result=...)"
        if run.kind == "function":
            return [f"run_retry(run_id={run.id})", fork]
        of_handler = step.error is not None and step.error.message.endswith(f"handler failed: {step.error.cause}")
        return [f"afl_retry_step(step_id={step.id})" if of_handler else _CORRECT_FLOW, fork]
    if step.state in ("completed", "failed"):
        return [f"run_fork_preview(run_id={run.id}, step={step.id})", f"run_outputs(run_id={run.id})"]
    if run.finished_at is not None or step.task is None:
        return _run_actions(run)
    actions = _task_actions(step.task)
    if step.task.state in ("pending", "running") and step.expects is not None:
        actions.append(f"afl_continue_step(step_id={step.id}, result=...)")
    return actions


_TASK_ACTIONS = {
    "failed": ("task_retry(task_id={})",),
    "canceled": ("task_retry(task_id={})",),
    "ignored": ("task_retry(task_id={})",),
    "awaiting_approval": ("approval_list", "approval_decide"),
    "awaiting_external": ("external_job_show(job_id={})",),
    "paused": ("task_resume(task_id={})",),
    "completed": ("task_result(task_id={}, wait_for=30)",),
    "running": ("task_result(task_id={}, wait_for=30)",),
}
"""The next call, by the state of a task; for its id."""


def _task_actions(task: TaskDetail) -> list[str]:
    return [action.format(task.id) for action in _TASK_ACTIONS.get(task.state, ("worker_abilities", "why(id={})"))]


TOOLS = (debug,)
