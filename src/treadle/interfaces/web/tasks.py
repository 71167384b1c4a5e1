"""Tasks: the list with its filters, a form for a new one, and the page of one with its three clocks."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from treadle.api.options import EnqueueOptions
from treadle.api.tasks import TaskPage
from treadle.interfaces.web.forms import described, options_of, parse_object, text
from treadle.interfaces.web.site import Visit, act, action, page
from treadle.interfaces.web.streams import shown_streams
from treadle.model.access import Scope
from treadle.model.errors import InvalidQuery
from treadle.model.states import FINAL_TASK_STATES, LIVE_TASK_STATES, TaskState

STATES = tuple(str(each) for each in (TaskState.RUNNING, TaskState.PAUSED, *LIVE_TASK_STATES, *FINAL_TASK_STATES))
_PAGE = 50
_FIELDS = described(EnqueueOptions)


@page("/tasks")
async def tasks(visit: Visit) -> Response:
    asked = visit.query
    wrong = None
    try:
        page = await visit.api.tasks.list(
            state=asked.getlist("state"),
            name=asked.get("name") or None,
            task_list=asked.get("task_list") or None,
            every="every" in asked,
            where=asked.get("where") or None,
            limit=_PAGE,
            before=asked.get("before") or None,
        )
    except InvalidQuery as error:
        wrong, page = str(error), TaskPage([], None)
    return await visit.render("tasks.html", page=page, states=STATES, wrong=wrong)


@page("/tasks/new")
async def new(visit: Visit) -> Response:
    visit.api.access.check(Scope.ENQUEUE)
    return await visit.render("task_form.html", fields=_FIELDS)


@action("/tasks")
async def enqueue(visit: Visit) -> Response:
    form = await visit.form()
    options: Any = options_of(form, EnqueueOptions)
    made = await visit.api.tasks.enqueue(text(form, "name") or "", parse_object(form, "payload"), **options)
    said = "is enqueued." if made.created else "already has this key; nothing was created."
    return visit.back(f"{made.name} {said}", to=f"/tasks/{made.id}")


@page("/tasks/{task_id}")
async def task(visit: Visit) -> Response:
    found = await visit.api.tasks.get(visit.path["task_id"])
    streams = await shown_streams(visit.api, found.id)
    return await visit.render("task.html", task=found, streams=streams)


act("/tasks/{task_id}/cancel", "tasks.cancel", takes="reason")
act("/tasks/{task_id}/pause", "tasks.pause")
act("/tasks/{task_id}/interrupt", "tasks.pause", interrupt=True)
act("/tasks/{task_id}/resume", "tasks.resume")


@action("/tasks/{task_id}/retry")
async def retry(visit: Visit) -> Response:
    done = await visit.api.tasks.retry(visit.path["task_id"], payload=parse_object(await visit.form(), "payload"))
    return visit.back(f"{done.name} is now {done.state}.")
