"""Tasks: the list with its filters, a form for a new one, and the page of one with its three clocks and its streams."""

from __future__ import annotations

from typing import Any, NamedTuple

from starlette.responses import Response

from treadle.api.options import EnqueueOptions
from treadle.api.streams import StreamEntry
from treadle.api.tasks import TaskPage
from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import described, filters_of, text
from treadle.interfaces.web.schema_form import input_fields
from treadle.interfaces.web.site import Visit, act, page
from treadle.model.access import Scope
from treadle.model.errors import InvalidQuery
from treadle.model.states import FINAL_TASK_STATES, LIVE_TASK_STATES, TaskState
from treadle.model.text import json_text

STATES = tuple(str(state) for state in (TaskState.RUNNING, TaskState.PAUSED, *LIVE_TASK_STATES, *FINAL_TASK_STATES))
_PAGE = 50
_FIELDS = described(EnqueueOptions)


@page("/tasks")
async def tasks(visit: Visit) -> Response:
    wrong = None
    try:
        page = await visit.api.tasks.list(**filters_of(visit.query, "tasks.list"), limit=_PAGE)
    except InvalidQuery as error:
        wrong, page = str(error), TaskPage([], next_before=None)
    return await visit.render("tasks.html", page=page, states=STATES, wrong=wrong)


@page("/tasks/new")
async def new(visit: Visit) -> Response:
    visit.api.access.check(Scope.ENQUEUE)
    inputs = await input_fields(visit.api, "tasks.enqueue", {"name": text(visit.query, "name")})
    return await visit.render("task_form.html", fields=_FIELDS, inputs=inputs)


def _outcome(enqueued: Any, options: object) -> str:
    return f"{enqueued.name} {'is enqueued.' if enqueued.created else 'already has this key; nothing was created.'}"


act("/tasks", "tasks.enqueue", _outcome, to="/tasks/{id}")


@page("/tasks/{task_id}")
async def task(visit: Visit) -> Response:
    task = await visit.api.tasks.get(visit.path["task_id"])
    streams = await shown_streams(visit.api, task.id)
    return await visit.render("task.html", task=task, streams=streams)


act("/tasks/{task_id}/cancel", "tasks.cancel")
act("/tasks/{task_id}/pause", "tasks.pause")
act("/tasks/{task_id}/interrupt", "tasks.pause", interrupt=True)
act("/tasks/{task_id}/resume", "tasks.resume")
act("/tasks/{task_id}/retry", "tasks.retry")


_STREAMS = 3
"""Streams that are shown: a browser holds few connections to a server."""
_ENTRIES = 1000


class ShownEntry(NamedTuple):
    """An entry as text; `abandoned` if a later one replaces it."""

    offset: int
    writer: str
    kind: str
    text: str
    abandoned: bool


async def shown_streams(service: Operations, work_id: str) -> list[dict[str, Any]]:
    """The streams of a run or a task, with their last entries."""
    streams = []
    for summary in (await service.streams.list(work_id)).streams[:_STREAMS]:
        offset = max(summary.next_offset - _ENTRIES, 0)
        page = await service.streams.read(work_id, summary.name, offset=offset, limit=_ENTRIES)
        entries = shown_entries(page.entries)
        streams.append(
            {"summary": summary, "entries": entries, "next_offset": page.next_offset, "ended": page.ended, "first_offset": offset}
        )
    return streams


def shown_entries(entries: list[StreamEntry]) -> list[ShownEntry]:
    """The entries as text. `static/streams.js` does the same with those that follow."""
    texts: list[ShownEntry] = []
    for entry in entries:
        if entry.kind == "abandoned":
            since = entry.value["since"]
            texts = [
                earlier._replace(abandoned=True) if earlier.writer == entry.writer and earlier.offset >= since else earlier
                for earlier in texts
            ]
        texts.append(ShownEntry(entry.offset, entry.writer, entry.kind, _text(entry), abandoned=False))
    return texts


def _text(entry: StreamEntry) -> str:
    match entry.kind:
        case "abandoned":
            return f"\n[attempt {entry.value['generation']} was abandoned; attempt {entry.generation} begins]\n"
        case "truncated":
            return "\n[the stream is full: entries are missing here]\n"
        case "unreadable":
            return "\n[entries cannot be read]\n"
    return entry.value if isinstance(entry.value, str) else f"{json_text(entry.value, separators=(',', ':'))}\n"
