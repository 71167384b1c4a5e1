"""How a call is described: its method, path and scope beside its signature, from which both ends of the wire are made.

Parameters that the path names go into the path. Those of a GET or DELETE go into the query, all others are fields of a JSON
object in the body; `idempotency_key` is the header `Idempotency-Key`. Names are the same everywhere. Instants are datetimes with
a zone; durations in requests are seconds, fields of answers that end in `_for` are milliseconds; no name is used for both.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_type_hints

from treadle.model.access import Scope

F = TypeVar("F", bound=Callable[..., Any])

PREFIX = "/v1"
KEY = "idempotency_key"
_ROUTE = "__treadle_route__"


@dataclass(frozen=True, slots=True)
class Says:
    """What is said about a parameter, and a value that makes sense for it."""

    text: str
    example: Any = None


@dataclass(frozen=True, slots=True)
class Route:
    """Where a call is, and who may make it."""

    method: str
    path: str
    scope: Scope
    status: int = 200
    lists: bool = False
    """Whether tokens that are restricted to task lists may make it: what carries it out then keeps to those lists."""
    creates: bool = False
    """Whether it makes something new: sent again with the same `Idempotency-Key`, it makes nothing more."""
    problems: tuple[int, ...] = ()
    """Statuses of problems that only calls of its kind are answered with."""


class Shape:
    """Base of the records that go over the wire: frozen dataclasses, each field with a line of its own."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True, "extra": "forbid"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a call."""

    name: str
    hint: Any
    """Its type, with `Says` in its `Annotated`."""
    default: Any
    required: bool
    says: Says


@dataclass(frozen=True)
class Call:
    """A call as both ends of the wire see it."""

    group: str
    name: str
    route: Route
    path: tuple[Parameter, ...]
    others: tuple[Parameter, ...]
    """Those in the query or in the body."""
    keyed: bool
    """Whether it takes an `idempotency_key` itself."""
    returns: Any
    signature: inspect.Signature
    doc: str

    @property
    def in_query(self) -> bool:
        """Whether what is not in the path is in the query."""
        return self.route.method in ("GET", "DELETE")

    @property
    def id(self) -> str:
        """Its name among all calls."""
        return f"{self.group}_{self.name}"


def get(path: str, scope: Scope = Scope.READ, *, lists: bool = False, problems: tuple[int, ...] = ()) -> Callable[[F], F]:
    """A call that only looks."""
    return _at(Route("GET", path, scope, lists=lists, problems=problems))


def post(
    path: str, scope: Scope, *, status: int = 200, lists: bool = False, creates: bool = False, problems: tuple[int, ...] = ()
) -> Callable[[F], F]:
    """A call that does something."""
    return _at(Route("POST", path, scope, status, lists, creates, problems))


def put(path: str, scope: Scope, *, lists: bool = False) -> Callable[[F], F]:
    """A call that says how something is from now on; twice is as once."""
    return _at(Route("PUT", path, scope, lists=lists))


def delete(path: str, scope: Scope) -> Callable[[F], F]:
    """A call that removes something."""
    return _at(Route("DELETE", path, scope))


def _at(route: Route) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, _ROUTE, route)
        return function

    return mark


def route_of(function: object) -> Route | None:
    """Where the call is that this function describes; None if it describes none."""
    return getattr(function, _ROUTE, None)


def calls_of(group: str, protocol: type) -> list[Call]:
    """The calls of a group in the order in which they are written."""
    return [_call(group, function) for function in vars(protocol).values() if hasattr(function, _ROUTE)]


def _call(group: str, function: Callable[..., Any]) -> Call:
    route: Route = getattr(function, _ROUTE)
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    in_path = re.findall(r"{(\w+)}", route.path)
    found = [
        Parameter(each.name, hints[each.name], each.default, each.default is each.empty, _says(hints[each.name]))
        for each in list(signature.parameters.values())[1:]
    ]
    return Call(
        group=group,
        name=function.__name__,
        route=route,
        path=tuple(each for each in found if each.name in in_path),
        others=tuple(each for each in found if each.name not in in_path and each.name != KEY),
        keyed=any(each.name == KEY for each in found),
        returns=hints["return"],
        signature=signature,
        doc=inspect.getdoc(function) or "",
    )


def _says(hint: Any) -> Says:
    return next((each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Says)), Says(""))
