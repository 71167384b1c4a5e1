"""The OpenAPI document, made from the descriptions of the contract's calls and of the server's own routes."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

import msgspec

from treadle.api.contract import Call, Doc, Parameter, field_docs
from treadle.api.facade import all_calls, protocol_of
from treadle.api.wire import schema_hook, to_builtins
from treadle.interfaces.http.access import COOKIE, CSRF_HEADER
from treadle.interfaces.http.parameters import wire_type, without_none
from treadle.interfaces.http.problems import DOCUMENTED, ProblemDetails, problem_responses
from treadle.model.access import Scope

JSON = "application/json"
KEY_HEADER = "Idempotency-Key"
KEY_LENGTH = 200
_REF = "#/components/schemas/{name}"
_KEY = "A request with the same key creates nothing more"
_REPLAYED_KEY = "A request with the same key within a week returns the same answer and creates nothing more"
_DESCRIPTION = """\
Everything that people, programs and agents do with a Treadle engine.

Instants are RFC 3339 in UTC. Durations in requests are seconds; fields of answers that end in `_for` are milliseconds. Lists are
paged: pass `next_before` as `before`. Errors are `application/problem+json` with a stable `code`. Each call names the scope
that its token needs. Calls that create something take an `Idempotency-Key`. Every answer has an `X-Request-Id`. A request with the
header `Treadle-For-Model` acts for a model: it cannot approve what its token asked for.
"""
_SECURITY = {
    "token": {"type": "http", "scheme": "bearer", "description": "The secret of a token, as `Authorization: Bearer SECRET`"},
    "session": {
        "type": "apiKey",
        "in": "cookie",
        "name": COOKIE,
        "description": f"The cookie of a session; requests that change something also need its CSRF token in `{CSRF_HEADER}`",
    },
}


_TAGS = {
    "ingest": "Webhooks of other services.",
    "server": "Health, status and metrics of the server.",
    "session": "Sessions of browsers.",
}
"""Descriptions of the tags that are not groups of calls."""


@dataclass(frozen=True, slots=True)
class BodyOf:
    """A JSON object in the body of a request."""

    name: str
    """Its name among the schemas."""
    parameters: Sequence[Parameter]
    example: Any
    text: str = ""
    required: bool = True


@dataclass(frozen=True, slots=True)
class Returns:
    """A successful answer: one of several records as JSON, text of several media types, or nothing."""

    text: str
    records: tuple[type, ...] = ()
    media: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RouteDescription:
    """The description of a route."""

    id: str
    tag: str
    summary: str
    text: str
    returns: Mapping[int, Returns]
    """By status; the usual one first."""
    parameters: Sequence[tuple[str, Parameter]] = ()
    """With the place of each: `path`, `query` or `header`."""
    body: BodyOf | None = None
    problems: Sequence[int] = DOCUMENTED
    extra: Mapping[str, Any] = field(default_factory=dict)
    creates: bool = False


PUBLIC: Mapping[str, Any] = {"security": []}
"""Extra of operations that need no token."""


def guarded(scope: Scope, *, lists: bool = False) -> dict[str, Any]:
    """Extra of operations that need a scope; `lists`: tokens that are restricted to task lists may call them too."""
    return {"x-scope": str(scope), "x-task-lists": lists}


def header(name: str, text: str) -> tuple[str, Parameter]:
    """An optional header."""
    return "header", Parameter(name, str | None, None, False, Doc(text))


def operation_of(call: Call) -> RouteDescription:
    """The operation of a call of the contract."""
    parameters = [("path", parameter) for parameter in call.path]
    body = None
    if call.in_query:
        parameters += [("query", parameter) for parameter in call.others]
    elif call.others:
        example = {
            parameter.name: parameter.doc.example
            for parameter in call.others
            if parameter.required or parameter.doc.example is not None
        }
        name = "".join(word.title() for word in call.id.split("_"))
        body = BodyOf(name, call.others, example, required=any(parameter.required for parameter in call.others))
    if call.keyed or call.route.creates:
        parameters.append(header(KEY_HEADER, _KEY if call.keyed else _REPLAYED_KEY))
    return RouteDescription(
        id=call.id,
        tag=call.group,
        summary=call.doc.partition("\n")[0].removesuffix("."),
        text=f"{call.doc}\n\nNeeds the scope `{call.route.scope}`.",
        returns={call.route.status: Returns("Done", (call.returns,))},
        parameters=parameters,
        body=body,
        problems=(*DOCUMENTED, *call.route.problems),
        extra=guarded(call.route.scope, lists=call.route.lists),
        creates=call.route.creates,
    )


def document(operations: Mapping[tuple[str, str], RouteDescription], version: str) -> dict[str, Any]:
    """The document of operations by method and path."""
    returned = [record for operation in operations.values() for returns in operation.returns.values() for record in returns.records]
    answers = _Schemas([ProblemDetails, *returned])
    parameters = [parameter for operation in operations.values() for _, parameter in operation.parameters]
    fields = [parameter for operation in operations.values() if operation.body for parameter in operation.body.parameters]
    requests = _Schemas([*(without_none(wire_type(parameter)) for parameter in parameters), *map(wire_type, fields)])
    components = answers.components | requests.components
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in operations.items():
        if operation.body is not None:
            components[operation.body.name] = _body_schema(operation.body, requests)
        paths.setdefault(path, {})[method.lower()] = _described(operation, answers, requests)
    _open_objects([paths, components])
    return {
        "openapi": "3.1.0",
        "info": {"title": "Treadle", "description": _DESCRIPTION, "version": version},
        "servers": [{"url": "/", "description": "The server of this document"}],
        "tags": [
            {"name": tag, "description": _TAGS.get(tag) or inspect.getdoc(protocol_of(tag))}
            for tag in dict.fromkeys(operation.tag for operation in operations.values())
        ],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _SECURITY},
        "security": [{"token": []}, {"session": []}],
    }


def _open_objects(part: Any) -> None:
    """State of each free-form object that it may have any fields: generated clients take it for an empty one otherwise."""
    if isinstance(part, dict):
        if part.get("type") == "object" and "properties" not in part:
            part.setdefault("additionalProperties", True)
        for name, value in part.items():
            if name not in ("example", "examples", "default"):
                _open_objects(value)
    elif isinstance(part, list):
        for value in part:
            _open_objects(value)


class _Schemas:
    """The JSON schemas of types, and the components that they refer to."""

    def __init__(self, kinds: Iterable[Any]) -> None:
        kinds = list(dict.fromkeys(kinds))
        schemas, self.components = msgspec.json.schema_components(kinds, schema_hook=schema_hook, ref_template=_REF)
        self._schemas = dict(zip(kinds, schemas, strict=True))
        for record in _records_in(kinds):
            for name, text in field_docs(record).items():
                self.components[record.__name__]["properties"][name].setdefault("description", text)

    def of(self, kind: Any) -> dict[str, Any]:
        return dict(self._schemas[kind])


def _described(operation: RouteDescription, answers: _Schemas, requests: _Schemas) -> dict[str, Any]:
    description: dict[str, Any] = {
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": operation.text,
        "operationId": operation.id,
    }
    if operation.parameters:
        description["parameters"] = [_parameter(place, parameter, requests) for place, parameter in operation.parameters]
    if (body := operation.body) is not None:
        schema: dict[str, Any] = {"$ref": _REF.format(name=body.name)}
        content = {JSON: {"schema": schema if body.required else {"anyOf": [schema, {"type": "null"}]}}}
        description["requestBody"] = {"content": content, "required": body.required}
    returns = operation.returns.items()
    description["responses"] = {
        str(status): _response(returned, answers) | _links(operation, returned) for status, returned in returns
    }
    description["responses"] |= {str(status): response for status, response in problem_responses(*operation.problems).items()}
    return description | dict(operation.extra)


def _response(returns: Returns, answers: _Schemas) -> dict[str, Any]:
    content: dict[str, Any] = {media: {"schema": {"type": "string"}} for media in returns.media}
    if returns.records:
        schemas = [answers.of(record) for record in returns.records]
        content[JSON] = {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
    return {"description": returns.text} | ({"content": content} if content else {})


def _parameter(place: str, parameter: Parameter, requests: _Schemas) -> dict[str, Any]:
    schema = requests.of(without_none(wire_type(parameter)))
    if place == "header" and parameter.name == KEY_HEADER:
        schema["maxLength"] = KEY_LENGTH
    if parameter.default is not None and not parameter.required:
        schema["default"] = to_builtins(parameter.default)
    description = {"name": parameter.name, "in": place, "required": parameter.required, "schema": schema}
    if parameter.doc.text:
        description["description"] = parameter.doc.text
    if parameter.doc.example is not None:
        description["example"] = to_builtins(parameter.doc.example)
    return description


def _body_schema(body: BodyOf, requests: _Schemas) -> dict[str, Any]:
    properties = {}
    for parameter in body.parameters:
        schema = requests.of(wire_type(parameter))
        if parameter.default is not None and not parameter.required:
            schema["default"] = to_builtins(parameter.default)
        if parameter.doc.example is not None:
            schema["examples"] = [to_builtins(parameter.doc.example)]
        properties[parameter.name] = schema | {"description": parameter.doc.text}
    body_schema: dict[str, Any] = {"title": body.name, "type": "object", "properties": properties, "additionalProperties": False}
    if required := [parameter.name for parameter in body.parameters if parameter.required]:
        body_schema["required"] = required
    if body.text:
        body_schema["description"] = body.text
    return body_schema | {"examples": [to_builtins(body.example)]}


def _links(operation: RouteDescription, returns: Returns) -> dict[str, Any]:
    """The calls of the same group that need only the id of the created thing in their path."""
    if not operation.creates or not any("id" in get_type_hints(record) for record in returns.records):
        return {}
    links = {
        other.id: {"operationId": other.id, "parameters": {other.path[0].name: "$response.body#/id"}}
        for other in all_calls()
        if other.group == operation.tag and len(other.path) == 1 and other.path[0].name.endswith("_id")
    }
    return {"links": links} if links else {}


def _records_in(kinds: Iterable[Any]) -> set[type]:
    """The records among the types, and in their fields."""
    records: set[type] = set()
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            if kind not in records:
                records.add(kind)
                waiting += get_type_hints(kind).values()
        else:
            waiting += get_args(kind)
    return records
