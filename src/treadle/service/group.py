"""A group of calls on an engine; each call first checks that its caller may make it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any

from treadle.api.contract import ApiRecord, Route, route_of
from treadle.engine import Engine
from treadle.model.access import Access
from treadle.model.errors import InvalidInput, RestrictedToken, RunNotFound, TaskNotFound
from treadle.model.runs import Run
from treadle.model.tasks import Task


class Group:
    """Base of the groups. Subclasses also inherit from their protocol, whose routes determine the checks of each call."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self.engine = engine
        self.access = access

    @property
    def actor(self) -> str:
        """The actor recorded in the log."""
        return self.access.actor

    def one_list(self, task_list: str | None) -> str | None:
        """The requested task list, or the only one that the caller may see; None: all."""
        if task_list is None and len(self.access.task_lists) == 1:
            return self.access.task_lists[0]
        if task_list is not None:
            self.access.check_list(task_list)
        elif self.access.task_lists:
            raise InvalidInput(f"Give a task list: this token is for {', '.join(self.access.task_lists)}.")
        return task_list

    async def find_task(self, task_id: str) -> Task:
        """The task; raises `TaskNotFound` if the caller may not see its list."""
        task = await self.engine.kernel.reads.get_task(task_id)
        if not self.access.may_use(task.task_list):
            raise TaskNotFound(task_id)
        return task

    async def find_run(self, run_id: str) -> Run:
        """The run; raises `RunNotFound` if the caller may not see its list."""
        run = await self.engine.kernel.run_reads.get_run(run_id)
        if not self.access.may_use(run.task_list):
            raise RunNotFound(run_id)
        return run

    def __init_subclass__(cls) -> None:
        for name, function in list(vars(cls).items()):
            route = next((found for base in cls.__mro__[1:] if (found := route_of(vars(base).get(name)))), None)
            if route is not None:
                setattr(cls, name, _guarded(function, route))


def _guarded(function: Callable[..., Any], route: Route) -> Callable[..., Any]:
    @wraps(function)
    async def call(self: Group, *args: Any, **options: Any) -> Any:
        self.access.check(route.scope)
        if self.access.task_lists and not route.lists:
            raise RestrictedToken()
        for given in (*args, *options.values()):
            _check_text(given)
        return await function(self, *args, **options)

    return call


def _check_text(given: Any) -> None:
    """Refuse texts that not every store can keep or compare (D12); values inside payloads are checked when they are encoded."""
    if isinstance(given, str):
        if "\0" in given or not _encodes(given):
            raise InvalidInput("A text contains the character U+0000 or an unpaired surrogate, which cannot be stored.")
    elif isinstance(given, list | tuple):
        for each in given:
            _check_text(each)
    elif isinstance(given, ApiRecord):
        for field in fields(given):  # type: ignore[arg-type]
            _check_text(getattr(given, field.name))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
