"""Runs: the list with its filters and bulk actions; a run with its timeline, steps, log and transitions; one step."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.datastructures import FormData, QueryParams
from starlette.responses import Response

from treadle.api.contract import option_fields
from treadle.api.flows import FlowGraph
from treadle.api.runs import RunAction, RunDetail, RunFilter, RunPage
from treadle.api.steps import StepDetail
from treadle.api.view import fill
from treadle.engine.operations import Operations
from treadle.interfaces.web.conversation import conversation
from treadle.interfaces.web.flows import graph_data, highlight
from treadle.interfaces.web.forms import arguments_of, text, whole
from treadle.interfaces.web.handlers import server_names
from treadle.interfaces.web.site import Visit, act, action, page
from treadle.interfaces.web.step_tree import step_tree
from treadle.interfaces.web.tasks import shown_streams
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput, InvalidQuery
from treadle.model.runs import TEXT, ActivityKind
from treadle.model.states import RUN, RunState

STATES = tuple(str(state) for state in RunState)
_FILTER = option_fields(RunFilter)
VIEWS = ("steps", "source", "logs", "transitions", "values")
ACTIONS: tuple[RunAction, ...] = ("pause", "resume", "cancel", "retry")
_PAGE, _STEPS, _SHOWN = 50, 200, 10
_AT_ONCE, _PAGES_AT_ONCE = 1000, 5
"""Runs that one call of a bulk action changes, and calls that one request makes."""


_APPROVALS = 5
"""Approvals shown on the page of their run."""


@page("/runs")
async def runs(visit: Visit) -> Response:
    query = visit.query
    which = arguments_of(query, _FILTER)
    wrong = None
    try:
        page = await visit.api.runs.list(state=query.getlist("state"), **which, limit=_PAGE, before=query.get("before") or None)
    except InvalidQuery as error:
        wrong, page, which["where"] = str(error), RunPage([], next_before=None), None
    counts = await visit.api.runs.counts(**which | {"activity": None})
    activities = [
        activity.value for activity in ActivityKind if counts.activities.get(activity) or activity == which.get("activity")
    ]
    return await visit.render(
        "runs.html",
        page=page,
        counts=counts,
        states=STATES,
        activities=activities,
        actions=[action for action in ACTIONS if _possible(action, query.getlist("state"))],
        wrong=wrong,
    )


def _possible(action: RunAction, states: list[str]) -> list[str]:
    """The states, of the given ones or of all, in which the action changes a run."""
    return [state for state in STATES if (RUN.target(state, action) or state) != state and (not states or state in states)]


@page("/runs/bulk")
async def preview(visit: Visit) -> Response:
    """Preview a bulk action."""
    query = visit.query
    action, states, which = _action(query), query.getlist("state"), arguments_of(query, _FILTER)
    would = await visit.api.runs.bulk(action, dry_run=True, state=states, **which)
    possible = _possible(action, states)
    examples = (await visit.api.runs.list(state=possible, **which, limit=_SHOWN)).runs if possible else []
    return await visit.render("runs_bulk.html", action=action, would=would, found=examples)


@action("/runs/bulk")
async def bulk(visit: Visit) -> Response:
    form = await visit.form()
    action, states, which = _action(form), [str(state) for state in form.getlist("state")], arguments_of(form, _FILTER)
    reason, done, refused, before = text(form, "reason"), 0, 0, None
    for _ in range(_PAGES_AT_ONCE):
        acted = await visit.api.runs.bulk(action, state=states, **which, reason=reason, limit=_AT_ONCE, before=before)
        done, refused, before = done + len(acted.done), refused + len(acted.refused), acted.next_before
        if before is None:
            break
    rest = f" {refused} were refused." if refused else ""
    summary = f"{action}: {done} runs.{rest}"
    if before is not None:  # the request is long enough; show the preview of the rest
        again = urlencode([(name, str(value)) for name, value in form.multi_items() if name != "csrf" and value])
        return visit.back(f"{summary} More remain.", to=f"/runs/bulk?{again}")
    return visit.back(summary, to="/runs", bad=bool(refused and not done))


@page("/runs/{run_id}")
async def run(visit: Visit) -> Response:
    run_id, query = visit.path["run_id"], visit.query
    run = await visit.api.runs.get(run_id)
    view = query.get("view", VIEWS[0])
    view = VIEWS[0] if view == "timeline" else view
    is_workflow = run.kind == "workflow"
    drawn = await visit.api.flows.run_graph(run_id) if is_workflow and view in ("steps", "source") else None
    values: dict[str, Any] = {
        "run": run,
        "view": view,
        "views": VIEWS if is_workflow else [name for name in VIEWS if name != "source"],
        "below": query.get("below") or None,
        "graph": None if drawn is None else graph_data(drawn),
        "chosen": None,
    }
    match view:
        case "steps":
            chosen = await _chosen_step(visit, run)
            values |= chosen | {
                "tree": await step_tree(
                    visit.api,
                    run,
                    state=query.getlist("state"),
                    below=values["below"],
                    after=query.get("after") or None,
                    opened=query.getlist("open"),
                    chosen=chosen["chosen"],
                )
            }
        case "source" if drawn is not None:
            values["sources"] = [
                (source.name, highlight(source.text), current_lines(drawn, source.name))
                for source in (await visit.api.flows.get(run.flow_id)).sources
            ]
        case "logs":
            values["logs"] = await visit.api.runs.logs(run_id, before=whole(query, "before"))
        case "transitions":
            values["transitions"] = await visit.api.runs.transitions(run_id)
        case "values":
            values["usage"] = await visit.api.runs.usage(run_id) if run.usage.requests else None
        case _:
            raise InvalidInput(f"There is no view {view!r} of a run.")
    values["servers"] = await server_names(visit.api)
    values["tasks"] = await visit.api.runs.tasks(run_id, limit=_SHOWN) if run.finished_at is None else None
    pending = run.finished_at is None and not visit.api.access.task_lists
    values["approvals"] = (await visit.api.approvals.list(run_id=run_id, limit=_APPROVALS)).approvals if pending else []
    values["saying"] = await _partial_answers(visit.api, run_id) if run.finished_at is None and is_workflow else []
    values["streams"] = await shown_streams(visit.api, run.id)
    return await visit.render("run.html", **values)


async def _chosen_step(visit: Visit, run: RunDetail) -> dict[str, Any]:
    """The step that the query names, or else the one at which the run failed, with what was said in it."""
    name = visit.query.get("step") or (None if visit.query.getlist("state") else run.failed_step_id)
    if not name:
        return {"chosen": None}
    return await _step_values(visit.api, run.id, await visit.api.steps.get(run.id, name), run.usage.requests)


async def _step_values(service: Operations, run_id: str, step: StepDetail, requests: int) -> dict[str, Any]:
    """The step with what was said in it, and the model requests that it made."""
    usage = (await service.runs.usage(run_id)).requests if requests else []
    turns = conversation(step.params, step.returns)
    return {"chosen": step, "turns": turns, "requests": [request for request in usage if request.step_id == step.id]}


@page("/runs/{run_id}/steps/{step:path}")
async def step(visit: Visit) -> Response:
    run_id, name = visit.path["run_id"], visit.path["step"]
    step = await visit.api.steps.get(run_id, name)
    with_fork = "fork" in visit.query and visit.api.access.may(Scope.OPERATE)
    run = await visit.api.runs.get(run_id)
    return await visit.render(
        "step.html",
        run=run,
        **await _step_values(visit.api, run_id, step, run.usage.requests),
        preview=await visit.api.runs.preview_fork(run_id, step.id) if with_fork else None,
        servers=await server_names(visit.api),
    )


_IS_NOW = "{workflow} is now {state}."


def _canceled(run: Any, options: object) -> str:
    return fill(_IS_NOW if run.finished_at else "{workflow} cleans up, and is canceled then.", run)


def _signaled(signal: Any, options: object) -> str:
    outcome = "The run was waiting for it." if signal.awaited else "The run is not waiting for it yet; it is kept."
    return f"Signal {signal.name} sent. {outcome}"


act("/runs/{run_id}/pause", "runs.pause", _IS_NOW)
act("/runs/{run_id}/resume", "runs.resume", _IS_NOW)
act("/runs/{run_id}/retry", "runs.retry", _IS_NOW)
act("/runs/{run_id}/cancel", "runs.cancel", _canceled)
act("/runs/{run_id}/rerun", "runs.rerun", "{workflow} is running again.", to="/runs/{id}")
act("/runs/{run_id}/fork", "runs.fork", lambda run, options: f"Forked from {options['step']}.", to="/runs/{id}")
act("/runs/{run_id}/signal", "runs.signal", _signaled)


async def _partial_answers(service: Operations, run_id: str) -> list[tuple[str, str]]:
    """The steps that wait for a model, by path, with the end of its answer so far."""
    page = await service.steps.list(run_id, state=["running", "pending"], blocks=False, order="stored", limit=_STEPS)
    return [(step.path, str(step.returns[TEXT])) for step in page.steps if isinstance(step.returns, dict) and TEXT in step.returns]


def current_lines(drawn: FlowGraph, source: str) -> set[int]:
    """The lines of the source with active or failed steps."""
    now = ("running", "pending", "paused", "failed")
    return {
        line
        for node in drawn.nodes
        if node.source == source and node.kind != "workflow" and any(node.states.get(state) for state in now) and node.line
        for line in range(node.line, (node.end_line or node.line) + 1)
    }


def _action(asked: QueryParams | FormData) -> RunAction:
    action = str(asked.get("action") or "")
    if action not in ACTIONS:
        raise InvalidInput(f"The bulk actions are {', '.join(ACTIONS)}, not {action!r}.")
    return action
