"""Description of a call: method, path and scope next to its signature. Routes, client and documentation derive from it.

Parameters named in the path go into the path. The others are query parameters of a GET or DELETE, or fields of the JSON object
in the body; `idempotency_key` is the header `Idempotency-Key`. `**options: Unpack[SomeOptions]` stands for one parameter per
field of that TypedDict. Instants are datetimes with a zone; durations in requests are seconds, fields of responses that end in
`_for` are milliseconds; no name is used for both.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from itertools import pairwise
from typing import (
    Annotated,
    Any,
    Literal,
    Protocol,
    TypeVar,
    Union,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from treadle.model.access import Scope
from treadle.model.clock import record_line
from treadle.model.errors import NotFound
from treadle.model.ids import Ref
from treadle.model.retry import RetryPolicy
from treadle.model.values import Json

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

MODEL_HEADER = "Treadle-For-Model"
"""With this header, whatever its value, a request acts for a model, which cannot approve what its token asked for."""
PREFIX = "/v1"
KEY = "idempotency_key"
_ROUTE = "__treadle_route__"


class Doc(msgspec.Struct, frozen=True):
    """Documentation of a parameter or an option, as `Annotated` metadata of its type."""

    text: str
    example: Any = None
    unit: str | None = None
    """`seconds` or `bytes`."""
    default: Any = None
    """Of an option: its default on the wire; None: the option is nullable, and null is the same as not given."""


class Route(msgspec.Struct, frozen=True):
    """Method, path and required scope of a call."""

    method: str
    path: str
    scope: Scope
    status: int = 200
    lists: bool = False
    """Whether tokens that are restricted to task lists may make it; the implementation then enforces the restriction."""
    creates: bool = False
    """Whether it creates something: a repeated call with the same `Idempotency-Key` creates nothing more."""
    problems: tuple[int, ...] = ()
    """Status codes of problems that only this call returns."""


class ApiRecord(msgspec.Struct, frozen=True):
    """Base of the records that go over the wire; the strings below fields are their descriptions."""

    def __str__(self) -> str:
        return record_line(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(partial(msgspec.convert, type=cls, from_attributes=True))

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> dict[str, Any]:
        own = msgspec.json.schema(cls)["$defs"][cls.__name__]
        for name, text in field_docs(cls).items():
            own["properties"][name]["description"] = text
        return {"type": "object", "properties": own["properties"], "required": own["required"]}


class Lookup(Protocol[R_co]):
    """Base of groups with a `get`, on a store or a server: `find` is the same for something that may not exist."""

    async def get(self, record_id: str, /) -> R_co:
        """Return the record; raises `NotFound`."""
        raise NotImplementedError

    async def find(self, record_id: Ref, /) -> R_co | None:
        """Return what `get` does, or None if it does not exist."""
        try:
            return await self.get(record_id if isinstance(record_id, str) else record_id.id)
        except NotFound:
            return None


class Page(ApiRecord, frozen=True, kw_only=True):
    """Base of answers that a further call continues."""

    next_before: str | None
    """Pass it as `before` to continue; null on the last page."""


def field_docs(record: type) -> dict[str, str]:
    """The strings below the fields of a record and of its bases."""
    own = [kind for kind in reversed(record.__mro__) if kind.__module__.startswith("treadle.")]
    return {name: text for kind in own for name, text in _docs_in(kind.__module__).get(kind.__name__, ())}


@cache
def _docs_in(module: str) -> dict[str, list[tuple[str, str]]]:
    """For each class of a module, its fields with the strings below them."""
    docs = {}
    for node in ast.parse(inspect.getsource(sys.modules[module])).body:
        if isinstance(node, ast.ClassDef):
            docs[node.name] = [
                (field.target.id, inspect.cleandoc(below.value.value))
                for field, below in pairwise(node.body)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(below, ast.Expr)
                and isinstance(below.value, ast.Constant)
                and isinstance(below.value.value, str)
            ]
    return docs


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a call."""

    name: str
    hint: Any
    """Its type, with `Doc` in its `Annotated`."""
    default: Any
    required: bool
    doc: Doc


OptionKind = Literal["text", "integer", "number", "boolean", "duration", "instant", "choice", "choices", "object", "json", "record"]


class OptionField(msgspec.Struct, frozen=True):
    """One option, as interfaces need it to generate a flag, a form input or a schema."""

    name: str
    hint: Any
    """Its type on the wire: durations are seconds, a retry policy is a number of retries; nullable unless it has a default."""
    doc: Doc
    kind: OptionKind
    choices: tuple[str, ...] = ()


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
    """The signature with each option as a parameter."""
    options: frozenset[str]
    """The options that it takes as `**options`; None is the same as not given."""
    doc: str

    @property
    def in_query(self) -> bool:
        """Whether parameters outside the path are in the query."""
        return self.route.method in ("GET", "DELETE")

    @property
    def id(self) -> str:
        """Its name among all calls."""
        return f"{self.group}_{self.name}"


def get(path: str, scope: Scope = Scope.READ, *, lists: bool = False, problems: tuple[int, ...] = ()) -> Callable[[F], F]:
    """A call that only reads."""
    return _at(Route("GET", path, scope, lists=lists, problems=problems))


def post(
    path: str, scope: Scope, *, status: int = 200, lists: bool = False, creates: bool = False, problems: tuple[int, ...] = ()
) -> Callable[[F], F]:
    """A call that changes something."""
    return _at(Route("POST", path, scope, status, lists, creates, problems))


def put(path: str, scope: Scope, *, lists: bool = False) -> Callable[[F], F]:
    """A call that sets something; it is idempotent."""
    return _at(Route("PUT", path, scope, lists=lists))


def delete(path: str, scope: Scope) -> Callable[[F], F]:
    """A call that removes something."""
    return _at(Route("DELETE", path, scope))


def _at(route: Route) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, _ROUTE, route)
        return function

    return mark


def calls_of(group: str, protocol: type) -> list[Call]:
    """The calls of a group, in source order."""
    return [call_of(group, function) for function in vars(protocol).values() if hasattr(function, _ROUTE)]


@cache
def option_fields(options: type) -> tuple[OptionField, ...]:
    """The fields of an options class (a TypedDict), in source order."""
    return tuple(field_of(name, hint) for name, hint in get_type_hints(options, include_extras=True).items())


def struct_of_parameters(described: type[R]) -> type[R]:
    """A class decorator: the frozen record whose fields are the parameters of the constructor, each option among them."""
    fields: list[Any] = []
    for parameter in parameters_of(vars(described)["__init__"]):
        hint = _zoned(get_args(parameter.hint)[0] if parameter.doc.text else parameter.hint)
        described_as = Annotated[hint, msgspec.Meta(description=parameter.doc.text)] if parameter.doc.text else hint
        fields.append((parameter.name, described_as, *(() if parameter.required else (parameter.default,))))
    struct = msgspec.defstruct(
        described.__name__, fields, bases=(ApiRecord,), module=described.__module__, frozen=True, forbid_unknown_fields=True
    )
    struct.__doc__ = described.__doc__
    return cast(type[R], struct)


def _zoned(hint: Any) -> Any:
    """The type with a zone required of times."""
    instant = Annotated[datetime, msgspec.Meta(tz=True)]
    return Union[tuple(instant if member is datetime else member for member in _members(hint))]  # noqa: UP007


def parameters_of(function: Callable[..., Any]) -> list[Parameter]:
    """The parameters of a function after its first one, with each option as a parameter."""
    return [
        Parameter(
            parameter.name,
            parameter.annotation,
            parameter.default,
            parameter.default is parameter.empty,
            doc_of(parameter.annotation),
        )
        for parameter in list(signature_of(function).parameters.values())[1:]
    ]


def call_of(group: str, function: Callable[..., Any]) -> Call:
    """The call that a function of a group describes."""
    route: Route = getattr(function, _ROUTE)
    in_path = re.findall(r"{(\w+)}", route.path)
    parameters = parameters_of(function)
    hints = get_type_hints(function)
    options = [get_args(hint)[0] for hint in hints.values() if get_origin(hint) is Unpack]
    return Call(
        group=group,
        name=function.__name__,
        route=route,
        path=tuple(parameter for parameter in parameters if parameter.name in in_path),
        others=tuple(parameter for parameter in parameters if parameter.name not in in_path and parameter.name != KEY),
        keyed=any(parameter.name == KEY for parameter in parameters),
        returns=hints["return"],
        signature=signature_of(function),
        options=frozenset(option.name for kind in options for option in option_fields(kind)),
        doc=inspect.getdoc(function) or "",
    )


@cache
def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, with each option as a parameter."""
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    return signature.replace(
        parameters=[part for parameter in signature.parameters.values() for part in _expanded(parameter, hints.get(parameter.name))]
    )


def _expanded(parameter: inspect.Parameter, hint: Any) -> list[inspect.Parameter]:
    """The parameter with its type; for `**options`, one keyword parameter for each option."""
    if get_origin(hint) is not Unpack:
        return [parameter.replace(annotation=hint)]
    return [
        inspect.Parameter(
            option.name, parameter.KEYWORD_ONLY, default=option.doc.default, annotation=Annotated[option.hint, option.doc]
        )
        for option in option_fields(get_args(hint)[0])
    ]


def doc_of(hint: Any) -> Doc:
    """The `Doc` of an annotated type; an empty one if it has none."""
    return next((annotation for annotation in getattr(hint, "__metadata__", ()) if isinstance(annotation, Doc)), Doc(""))


def field_of(name: str, hint: Any) -> OptionField:
    """An option or a parameter of a call, as a flag or a form input needs it."""
    doc = doc_of(hint)
    members = [member for member in _members(get_args(hint)[0]) if member not in (RetryPolicy, types.NoneType)]
    if timedelta in members or (doc.unit == "seconds" and members == [float]):
        return OptionField(name, _nullable(float, doc), doc, "duration")
    if members == [str, Sequence[str]]:  # one or several; a flag or an input takes one
        return OptionField(name, _nullable(str | Sequence[str], doc), doc, "text")
    (bare,) = members
    if get_origin(bare) is Literal:
        return OptionField(name, _nullable(bare, doc), doc, "choice", get_args(bare))
    if get_origin(bare) is Sequence:
        return OptionField(name, _nullable(bare, doc), doc, "choices", get_args(get_args(bare)[0]))
    if get_origin(bare) in (Mapping, dict):
        return OptionField(name, _nullable(dict[str, Json], doc), doc, "object")
    if isinstance(bare, type) and issubclass(bare, ApiRecord):
        return OptionField(name, bare, doc, "record")
    return OptionField(name, _nullable(bare, doc), doc, _KINDS[bare])


_KINDS: dict[Any, OptionKind] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "boolean",
    datetime: "instant",
    Any: "json",
}


def _nullable(hint: Any, doc: Doc) -> Any:
    return hint if doc.default is not None else hint | None


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
