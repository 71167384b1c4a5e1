"""Search of everything from one field: ids, names, tags, pages and actions."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from starlette.responses import Response

from treadle.api.view import rows_of
from treadle.engine.operations import Operations
from treadle.interfaces.web.forms import if_allowed, text
from treadle.interfaces.web.overview import page_of
from treadle.interfaces.web.places import ACTIONS, PLACES
from treadle.interfaces.web.site import Visit, page
from treadle.interfaces.web.tables import link_to
from treadle.kernel.search.query import Condition, Field, print_query
from treadle.model.errors import NotFound, TreadleError
from treadle.model.ids import parse_id

_SHOWN = 5
_ID = re.compile(r"[0-9a-f-]{6,36}")
_NUMBER = re.compile(r"-?\d{1,15}")
_CATALOGUE = (
    ("flow", "flows.list", "name", "/flows/{name}"),
    ("function", "functions.list", "name", "/functions/{name}/start"),
    ("handler", "handlers.list", "facet_name", "/handlers/{facet_name}"),
    ("schedule", "schedules.list", "name", "/schedules/{name}"),
    ("watcher", "watchers.list", "name", "/watchers/{name}"),
    ("queue", "lists.list", "task_list", "/lists/{task_list}"),
)
"""Names that are found: their kind, the operation that lists them, the field, and the page."""


@dataclass(frozen=True)
class Hit:
    """A result: what it is, its name and its page."""

    kind: str
    title: str
    href: str
    record: Any = None
    """The run or task, for its state and tags."""


@page("/find")
async def find(visit: Visit) -> Response:
    wanted = (text(visit.query, "q") or "")[:200]
    hits = [*await _records(visit.api, wanted), *_pages(visit, wanted)] if wanted else _pages(visit, "")
    return await visit.render("find.html", hits=hits, wanted=wanted)


def _pages(visit: Visit, wanted: str) -> list[Hit]:
    """The pages and actions whose title contains the text."""
    tabs = [(place.title, tab) for place in PLACES for tab in place.tabs] + [("action", action) for action in ACTIONS]
    return [
        Hit(kind, tab.title, tab.path)
        for kind, tab in tabs
        if wanted.lower() in tab.title.lower() and visit.api.access.may(tab.scope)
    ]


async def _records(api: Operations, wanted: str) -> list[Hit]:
    hits: list[Hit] = []
    if _ID.fullmatch(wanted.lower()):
        with suppress(TreadleError):
            hits.append(Hit("id", wanted, await page_of(api, parse_id(wanted, "id"))))
    values = (wanted, int(wanted)) if _NUMBER.fullmatch(wanted) else (wanted,)
    tagged = print_query(Condition(Field("tag"), "in", values))
    hits += await _work("run", "/runs/{id}", api.runs.list, where=tagged)
    hits += await _work("task", "/tasks/{id}", api.tasks.list, where=tagged)
    hits += await _work("run", "/runs/{id}", api.runs.list, search=wanted)
    for kind, operation, field, link in _CATALOGUE:
        rows = await _rows(attrgetter(operation)(api))
        matches = [row for row in rows if wanted.lower() in getattr(row, field).lower()]
        hits += [Hit(kind, getattr(row, field), link_to(link, row) or "/") for row in matches[:_SHOWN]]
    return list({hit.href: hit for hit in hits}.values())


async def _work(kind: str, link: str, list_work: Callable[..., Awaitable[Any]], **which: str) -> list[Hit]:
    """The newest runs or tasks that match."""
    rows = await _rows(list_work, **which, limit=_SHOWN)
    return [Hit(kind, row.workflow if kind == "run" else row.name, link_to(link, row) or "/", row) for row in rows]


async def _rows(list_records: Callable[..., Awaitable[Any]], **which: Any) -> list[Any]:
    """The records that an operation lists; none if the caller may not see them."""
    with suppress(NotFound):
        if (records := await if_allowed(list_records(**which))) is not None:
            return list(getattr(records, rows_of(type(records))[0]))
    return []
