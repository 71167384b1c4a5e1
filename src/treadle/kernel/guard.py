"""The guard in front of every operation, whoever calls it: HTTP, MCP, the CLI or a page.

An operation is declared once, in `treadle.api`, and performed by the kernel service that has a method of the same name and
signature. `Guard(service, protocol)` checks everything that the caller needs before that method runs, so that no operation is
refused after it has changed something:

1. the scope of its route, and whether tokens that are restricted to task lists may use it;
2. the task lists among its arguments;
3. `authorize_<operation>(access, **arguments)` of the service, if there is more to check; it changes nothing;
4. texts that no store can keep.

Then it completes short ids, once, drops options that are None (the same as not given), and calls the method. A method with a
parameter `actor` receives the caller's name, one with a parameter `access` the caller's access (to restrict what it reads);
both have defaults, so that programs call the same methods on `engine.schedules` without a guard. What a method calls itself is
not checked again.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from types import NoneType
from typing import Any

import msgspec

from treadle.api.contract import ApiRecord, Call, calls_of
from treadle.kernel.store.lookups import CANDIDATES, RECORDS, find_id, find_short, is_short
from treadle.kernel.store.ports import Store
from treadle.model.access import Access, Scope
from treadle.model.errors import AmbiguousId, InvalidInput
from treadle.model.states import APPROVAL, EXTERNAL, OBJECTIVE, RUN, STEP, TASK

_TREES = (RUN.entity, TASK.entity)
ENTITIES = {
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
"""The entities that a parameter of an operation names by their ids. `job_id`: those in `job_entities` of the service."""
_TEXTLESS = frozenset({NoneType, bool, int, float, dict, type})
"""Types of values without texts to check; payloads are checked when they are encoded."""


CompleteIds = Callable[[Access, Mapping[str, Any]], Awaitable[dict[str, Any]]]
"""Completes the short ids among the arguments of a caller."""


class GuardedOperation:
    """One operation: its declaration, and the method that performs it."""

    def __init__(self, call: Call, service: Any, complete_ids: CompleteIds) -> None:
        self._call = call
        self._method: Callable[..., Awaitable[Any]] = getattr(service, call.name)
        self._authorize: Callable[..., Awaitable[None]] | None = getattr(service, f"authorize_{call.name}", None)
        self._complete_ids = complete_ids
        parameters = inspect.signature(self._method).parameters
        self._takes_actor, self._takes_access = "actor" in parameters, "access" in parameters
        self._options = call.options

    async def authorize(self, access: Access, /, *args: Any, **options: Any) -> None:
        """Raise `Forbidden` unless the caller may perform the operation with these arguments; changes nothing."""
        access.check(self._call.route.scope, lists=self._call.route.lists)
        if not access.task_lists and self._authorize is None:
            return
        bound = self._call.signature.bind(None, *args, **options)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        for task_list in _task_lists(arguments):
            access.check_list(task_list)
        if self._authorize is not None:
            await self._authorize(access, **arguments)

    async def perform(self, access: Access, /, *args: Any, **options: Any) -> Any:
        """Check the caller, then perform the operation."""
        await self.authorize(access, *args, **options)
        for value in (*args, *options.values()):
            _check_text(value)
        if any(is_short(value) for value in (*args, *options.values())):
            arguments = self._call.signature.bind(None, *args, **options).arguments
            args, options = (), await self._complete_ids(access, arguments)
        if self._options:
            options = {name: value for name, value in options.items() if value is not None or name not in self._options}
        if self._takes_actor:
            options["actor"] = access.actor
        if self._takes_access:
            options["access"] = access
        return await self._method(*args, **options)


class Guard:
    """The operations of one group."""

    def __init__(self, group: str, protocol: type, service: Any, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._entities = ENTITIES | {"job_id": tuple(getattr(service, "job_entities", (TASK.entity,)))}
        self._service = service
        self._protocol = protocol
        self.operations = {call.name: GuardedOperation(call, service, self._complete_ids) for call in calls_of(group, protocol)}

    def bind(self, access: Access) -> Any:
        """Return the operations for one caller: an implementation of the group's protocol."""
        return _Bound(self, access)

    def find(self, name: str, bound: Any, access: Access) -> Callable[..., Any]:
        """Return the operation of that name for one caller, or another method of the protocol.

        The others, such as `follow`, have no route: the method of the protocol itself runs, on the guarded operations; a method
        of the service with a parameter `access` runs instead, and checks it.
        """
        if (operation := self.operations.get(name)) is not None:
            return partial(operation.perform, access)
        method = getattr(self._service, name, None)
        if method is not None and "access" in inspect.signature(method).parameters:
            return partial(method, access=access)
        return partial(getattr(self._protocol, name), bound)

    async def _complete_ids(self, access: Access, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with complete ids in place of short ones, among the records that the caller may see."""
        completed = {name: value for name, value in arguments.items() if name != "self"}
        for name, value in completed.items():
            if (entities := self._entities.get(name)) and is_short(value):
                completed[name] = await self._find(access, entities, value)
        return completed

    async def _find(self, access: Access, entities: tuple[str, ...], named: str) -> str:
        tell = access.may(Scope.READ)
        if len(entities) == 1:
            return await find_id(self._store, self._namespace, entities[0], named, lists=access.task_lists, tell=tell)
        ids = await find_short(self._store, self._namespace, entities, named, access.task_lists)
        if len(ids) > 1:
            raise AmbiguousId("record", named, ids[:CANDIDATES] if tell else [], more=len(ids) > CANDIDATES)
        return ids[0] if ids else named


class _Bound:
    def __init__(self, guard: Guard, access: Access) -> None:
        self._guard = guard
        self._access = access

    def __getattr__(self, name: str) -> Any:
        method = self.__dict__[name] = self._guard.find(name, self, self._access)
        return method


def _task_lists(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The task lists among the arguments of an operation, and in the records among them."""
    if arguments.get("task_list") is not None:
        yield arguments["task_list"]
    yield from arguments.get("task_lists") or ()
    for task in arguments.get("tasks") or ():
        yield task.task_list


def _check_text(value: Any) -> None:
    """Refuse texts that not every store can keep or compare (D12); values inside payloads are checked when they are encoded."""
    if isinstance(value, str):
        if "\0" in value or not (value.isascii() or _encodes(value)):
            raise InvalidInput("A text contains the character U+0000 or an unpaired surrogate, which cannot be stored.")
    elif isinstance(value, list | tuple):
        for item in value:
            _check_text(item)
    elif isinstance(value, ApiRecord):
        for item in msgspec.structs.astuple(value):
            if type(item) not in _TEXTLESS:
                _check_text(item)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
