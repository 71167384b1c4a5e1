"""The six places of the dashboard, and the pages of each: one table for the menu, tabs, keys and the search."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl

from starlette.datastructures import QueryParams

from treadle.model.access import Scope


@dataclass(frozen=True)
class Tab:
    """A page of a place."""

    path: str
    title: str
    key: str = ""
    """Opens the page when typed after `g`."""
    below: tuple[str, ...] = ()
    """Paths of further pages that belong to it."""
    scope: Scope = Scope.READ

    @property
    def address(self) -> str:
        """The path without the query."""
        return self.path.partition("?")[0]


@dataclass(frozen=True)
class Place:
    """An entry of the menu, which leads to its first tab."""

    title: str
    icon: str
    tabs: tuple[Tab, ...]


HOME = Place("Home", "overview", (Tab("/", "Home", "o"),))
PLACES = (
    HOME,
    Place(
        "Runs",
        "run",
        (
            Tab("/runs", "All runs", "r", below=("/traces",)),
            Tab("/runs?kind=workflow", "Workflows"),
            Tab("/runs?kind=function", "Functions"),
            Tab("/tasks", "Tasks", "t"),
            Tab("/external-jobs", "External jobs", "x"),
        ),
    ),
    Place(
        "Inbox",
        "approval",
        (
            Tab("/approvals", "Approvals", "a"),
            Tab("/objectives", "Objectives", "b"),
            Tab("/effects", "Unknown effects", "u"),
        ),
    ),
    Place("Failures", "dead", (Tab("/dead-letters", "Dead letters", "d"), Tab("/alerts", "Alerts", "n"))),
    Place(
        "Catalogue",
        "flow",
        (
            Tab("/flows", "Flows and functions", "f", below=("/functions", "/editor")),
            Tab("/handlers", "Handlers", "h"),
            Tab("/schedules", "Schedules", "s"),
            Tab("/watchers", "Watchers", "w"),
        ),
    ),
    Place(
        "System",
        "settings",
        (
            Tab("/lists", "Queues and limits", "l"),
            Tab("/servers", "Workers", "v"),
            Tab("/events", "Events", "e"),
            Tab("/metrics/work", "Metrics", "m"),
            Tab("/audit", "Audit", "c"),
            Tab("/settings", "Tokens", ",", below=("/settings/tokens",)),
            Tab("/settings/retention", "Retention", below=("/settings/prune",)),
            Tab("/settings/store", "Store", below=("/settings/verify",), scope=Scope.OPERATE),
        ),
    ),
)

ACTIONS = (
    Tab("/flows", "Start a workflow or a function"),
    Tab("/tasks/new", "New task", scope=Scope.ENQUEUE),
    Tab("/schedules/new", "New schedule", scope=Scope.OPERATE),
    Tab("/watchers", "New watcher", scope=Scope.OPERATE),
    Tab("/editor", "New flow"),
    Tab("/handlers/new", "Register a handler", scope=Scope.REGISTER),
    Tab("/lists", "Pause a queue, set a limit", scope=Scope.OPERATE),
    Tab("/dead-letters", "Retry dead letters", scope=Scope.OPERATE),
    Tab("/settings", "Create a token", scope=Scope.ADMIN),
    Tab("/settings/retention", "Prune finished work", scope=Scope.OPERATE),
)
"""Pages with forms, by what they do, for the search."""


def locate(path: str, query: QueryParams) -> tuple[Place, Tab, bool] | None:
    """The place and the tab of a page, and whether it is the tab's own page; None for a page of no place, such as the login."""
    best: tuple[tuple[int, int], Place, Tab] | None = None
    for place in PLACES:
        for tab in place.tabs:
            wanted = parse_qsl(tab.path.partition("?")[2])
            under = [prefix for prefix in (tab.address, *tab.below) if path == prefix or path.startswith(f"{prefix}/")]
            if under and all(query.get(name) == value for name, value in wanted):
                rank = (max(map(len, under)), len(wanted))
                if best is None or rank > best[0]:
                    best = rank, place, tab
    return None if best is None else (best[1], best[2], path == best[2].address)
