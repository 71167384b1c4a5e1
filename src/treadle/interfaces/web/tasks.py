"""Tasks: the list with its filters, a form for a new one, and the page of one with its three clocks."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from treadle.api.options import EnqueueOptions
from treadle.api.tasks import TaskPage
from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import described, options_of, parse_object, text
from treadle.interfaces.web.site import Site
from treadle.interfaces.web.streams import shown_streams
from treadle.model.access import Scope
from treadle.model.errors import InvalidInput, InvalidQuery
from treadle.model.states import FINAL_TASK_STATES, LIVE_TASK_STATES, TaskState

STATES = tuple(str(each) for each in (TaskState.RUNNING, TaskState.PAUSED, *LIVE_TASK_STATES, *FINAL_TASK_STATES))
_PAGE = 50
_FIELDS = described(EnqueueOptions)


def add(site: Site) -> None:
    """Register the pages."""

    @site.page("/tasks")
    async def tasks(request: Request, service: Operations) -> Response:
        asked = request.query_params
        wrong = None
        try:
            page = await service.tasks.list(
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
        return await site.render(request, "tasks.html", service=service, page=page, states=STATES, wrong=wrong)

    @site.page("/tasks/new")
    async def new(request: Request, service: Operations) -> Response:
        service.access.check(Scope.ENQUEUE)
        return await site.render(request, "task_form.html", service=service, fields=_FIELDS)

    @site.action("/tasks")
    async def enqueue(request: Request, service: Operations) -> Response:
        form = await request.form()
        options: Any = options_of(form, EnqueueOptions)
        made = await service.tasks.enqueue(text(form, "name") or "", parse_object(form, "payload"), **options)
        said = "is enqueued." if made.created else "already has this key; nothing was created."
        return site.back(request, f"{made.name} {said}", to=f"/tasks/{made.id}")

    @site.page("/tasks/{task_id}")
    async def task(request: Request, service: Operations) -> Response:
        found = await service.tasks.get(request.path_params["task_id"])
        streams = await shown_streams(service, found.id)
        return await site.render(request, "task.html", service=service, task=found, streams=streams)

    @site.action("/tasks/{task_id}/{act}")
    async def act(request: Request, service: Operations) -> Response:
        task_id, form = request.path_params["task_id"], await request.form()
        match request.path_params["act"]:
            case "cancel":
                done = await service.tasks.cancel(task_id, reason=str(form.get("reason") or "") or None)
            case "retry":
                done = await service.tasks.retry(task_id, payload=parse_object(form, "payload"))
            case "pause":
                done = await service.tasks.pause(task_id)
            case "interrupt":
                done = await service.tasks.pause(task_id, interrupt=True)
            case "resume":
                done = await service.tasks.resume(task_id)
            case other:
                raise InvalidInput(f"Unknown action {other!r}.")
        return site.back(request, f"{done.name} is now {done.state}.")
