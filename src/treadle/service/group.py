"""A group of calls on an engine.

The guard of a call checks everything that its caller needs before the implementation runs: the scope of its route, the task
lists among its arguments, and `permit_<call>` of the group if there is more to check. The implementation then runs on a copy of
the group whose further calls are not checked again, so that no call can be refused after it has changed something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import NoneType
from typing import Any, ClassVar

from treadle.api.contract import ApiRecord, route_of, signature_of, values_of
from treadle.engine import Engine
from treadle.kernel.store.lookups import CANDIDATES, RECORDS, find_id, find_short, is_short
from treadle.model.access import Access, Scope
from treadle.model.errors import AmbiguousId, InvalidInput, RestrictedToken, RunNotFound, TaskNotFound
from treadle.model.runs import Run
from treadle.model.states import APPROVAL, EXTERNAL, OBJECTIVE, RUN, STEP, TASK
from treadle.model.tasks import Task

_TREES = (RUN.entity, TASK.entity)
_ENTITIES = {
    "run_id": (RUN.entity,),
    "task_id": (TASK.entity,),
    "step_id": (STEP.entity,),
    "approval_id": (APPROVAL.entity,),
    "objective_id": (OBJECTIVE.entity,),
    "root_id": _TREES,
    "member_id": _TREES,
    "any_id": (*_TREES, APPROVAL.entity, EXTERNAL.entity, OBJECTIVE.entity),
    "entity_id": (*_TREES, *RECORDS),
}
"""The entities that a parameter of a call names by their ids."""


_TEXTLESS = frozenset({NoneType, bool, int, float, dict, type})
"""Types of values without texts to check; payloads are checked when they are encoded."""


class Group:
    """Base of the groups. Subclasses also inherit from their protocol, whose routes determine the checks of each call."""

    _calls: ClassVar[dict[str, Callable[..., Any]]]
    """The descriptions of its calls in the contract, by name."""
    job_entities: ClassVar[tuple[str, ...]] = (TASK.entity,)
    """The entities that a `job_id` names."""

    def __init__(self, engine: Engine, access: Access) -> None:
        self.engine = engine
        self.access = access
        self._permitted = False

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

    async def permit(self, name: str, /, *args: Any, **options: Any) -> None:
        """Raise `Forbidden` unless the caller may make the call with these arguments; changes nothing."""
        if self._permitted:
            return
        described = self._calls[name]
        route = route_of(described)
        assert route is not None
        self.access.check(route.scope)
        if self.access.task_lists and not route.lists:
            raise RestrictedToken()
        more = getattr(self, f"permit_{name}", None)
        if not self.access.task_lists and more is None:
            return
        bound = signature_of(described).bind(self, *args, **options)
        bound.apply_defaults()
        given = {each: value for each, value in bound.arguments.items() if each != "self"}
        for task_list in _lists(given):
            self.access.check_list(task_list)
        if more is not None:
            await more(**given)

    async def with_ids(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call with complete ids in place of short ones, among the records that the caller may see."""
        found = {name: value for name, value in given.items() if name != "self"}
        for name, value in found.items():
            entities = self.job_entities if name == "job_id" else _ENTITIES.get(name, ())
            if entities and is_short(value):
                found[name] = await self._complete(entities, value)
        return found

    async def _complete(self, entities: tuple[str, ...], named: str) -> str:
        store, namespace = self.engine.kernel.store, self.engine.kernel.settings.namespace
        lists = self.access.task_lists
        if len(entities) == 1:
            return await find_id(store, namespace, entities[0], named, lists=lists, tell=self.access.may(Scope.READ))
        ids = await find_short(store, namespace, entities, named, lists)
        if len(ids) > 1:
            raise AmbiguousId("record", named, ids[:CANDIDATES] if self.access.may(Scope.READ) else [], more=len(ids) > CANDIDATES)
        return ids[0] if ids else named

    def __init_subclass__(cls) -> None:
        cls._calls = {}
        for name, function in list(vars(cls).items()):
            described = next((vars(base)[name] for base in cls.__mro__[1:] if route_of(vars(base).get(name))), None)
            if described is not None:
                cls._calls[name] = described
                setattr(cls, name, _guarded(function))


def _guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    async def call(self: Group, *args: Any, **options: Any) -> Any:
        await self.permit(function.__name__, *args, **options)
        for given in (*args, *options.values()):
            _check_text(given)
        inside = object.__new__(type(self))  # a copy, in a fraction of the time of `copy`
        inside.__dict__ = self.__dict__ | {"_permitted": True}
        if not self._permitted and any(is_short(each) for each in (*args, *options.values())):
            bound = signature_of(self._calls[function.__name__]).bind(self, *args, **options)
            return await function(inside, **await self.with_ids(bound.arguments))
        return await function(inside, *args, **options)

    return call


def _lists(given: Mapping[str, Any]) -> Iterator[str]:
    """The task lists among the arguments of a call, and in the records among them."""
    if given.get("task_list") is not None:
        yield given["task_list"]
    yield from given.get("task_lists") or ()
    for each in given.get("tasks") or ():
        yield each.task_list


def _check_text(given: Any) -> None:
    """Refuse texts that not every store can keep or compare (D12); values inside payloads are checked when they are encoded."""
    if isinstance(given, str):
        if "\0" in given or not (given.isascii() or _encodes(given)):
            raise InvalidInput("A text contains the character U+0000 or an unpaired surrogate, which cannot be stored.")
    elif isinstance(given, list | tuple):
        for each in given:
            _check_text(each)
    elif isinstance(given, ApiRecord):
        for each in values_of(given):
            if type(each) not in _TEXTLESS:
                _check_text(each)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
