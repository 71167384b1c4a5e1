"""Request parameters, decoded and validated by msgspec from the descriptions in the contract.

Queries carry text, so numbers and booleans are parsed from text there. JSON bodies are strict: no conversion between types and no
unknown fields. A request that does not match is refused with every parameter that is wrong (`InvalidRequest`).
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from starlette.requests import Request

from treadle.api.contract import Parameter
from treadle.api.wire import Instant

_LOCATION = re.compile(r"(?s)(.*) - at `(.*)`")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])


class InvalidRequest(Exception):
    """The request does not match the description of its route."""

    def __init__(self, problems: list[dict[str, Any]], status: int = 422) -> None:
        super().__init__(problems)
        self.problems = problems
        """For each wrong parameter its place (`at`) and a message."""
        self.status = status


def problem_at(message: str, *at: str) -> dict[str, Any]:
    """A wrong place in a request."""
    return {"at": list(at), "message": message}


class Query:
    """The parameters in the query of a request."""

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._parameters = [(parameter, without_none(wire_type(parameter))) for parameter in parameters]

    async def read(self, request: Request) -> dict[str, Any]:
        """The values by name, with the defaults of those that are missing."""
        texts_by_name: dict[str, list[str]] = {}
        for name, value in request.query_params.multi_items():
            texts_by_name.setdefault(name, []).append(value)
        values, problems = dict[str, Any](), list[dict[str, Any]]()
        for parameter, kind in self._parameters:
            name = parameter.name
            if (texts := texts_by_name.get(name)) is None:
                if parameter.required:
                    problems.append(problem_at("a value is required", "query", name))
                values[name] = parameter.default
                continue
            text = texts if get_origin(kind) is list else texts[-1]
            try:
                values[name] = msgspec.convert(text, kind, strict=False, dec_hook=_decode_instant)
            except msgspec.ValidationError as error:
                problems.append(_problem(error, "query", name))
        if problems:
            raise InvalidRequest(problems)
        return values


class Body:
    """The parameters that are fields of a JSON object in the body of a request."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self._required = [parameter.name for parameter in parameters if parameter.required]
        self._decoders = {
            parameter.name: msgspec.json.Decoder(wire_type(parameter), dec_hook=_decode_instant) for parameter in parameters
        }

    async def read(self, request: Request) -> dict[str, Any]:
        """The values of the fields that are present."""
        body = await request.body()
        if not self._required and body.strip() in (b"", b"null"):
            return {}
        values, problems, unknown = dict[str, Any](), list[dict[str, Any]](), list[dict[str, Any]]()
        raw_fields = _fields_of(request, body)
        for name, raw in raw_fields.items():
            if (decoder := self._decoders.get(name)) is None:
                unknown.append(problem_at("there is no such field", "body", name))
                continue
            try:
                values[name] = decoder.decode(raw)
            except msgspec.DecodeError as error:
                problems.append(_problem(error, "body", name))
        missing = [problem_at("a value is required", "body", name) for name in self._required if name not in raw_fields]
        if problems or missing or unknown:
            raise InvalidRequest([*problems, *missing, *unknown[:1]])
        return values


def _fields_of(request: Request, body: bytes) -> dict[str, msgspec.Raw]:
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if not body:
        raise InvalidRequest([problem_at("a JSON object is required", "body")])
    if not (kind.startswith("application/") and (kind.endswith(("/json", "+json")))):
        raise InvalidRequest([problem_at("the Content-Type must be application/json", "body")])
    try:
        body.decode()  # msgspec validates only the text that it decodes
        return _OBJECT.decode(body)
    except (UnicodeDecodeError, RecursionError):
        raise InvalidRequest([problem_at("it is not UTF-8, or nested too deeply", "body")], 400) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest([_problem(error, "body")]) from None


def wire_type(parameter: Parameter) -> Any:
    """The type that msgspec decodes a parameter as.

    Integers are limited to the range that both stores can keep.
    """
    bound = 2**63 - 1 if parameter.name.endswith("seq") else 2**31 - 1
    return _wire_type(parameter.hint, Annotated[int, msgspec.Meta(ge=-bound, le=bound)])


def _wire_type(hint: Any, integer: Any = int) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _wire_type(args[0], integer)
    if hint is datetime:
        return Instant
    if hint is int:
        return integer
    if origin in (Sequence, list):
        return list[_wire_type(args[0])]  # type: ignore[misc]
    if origin in (Union, types.UnionType):
        return Union[tuple(_wire_type(arg, integer) for arg in args)]  # noqa: UP007
    return hint


def without_none(kind: Any) -> Any:
    """The type without None: a query or a header has no null."""
    if get_origin(kind) in (Union, types.UnionType):
        return Union[tuple(arg for arg in get_args(kind) if arg is not types.NoneType)]  # noqa: UP007
    return kind


def _decode_instant(kind: type, value: object) -> Any:
    if kind is Instant and isinstance(value, str):
        with suppress(ValueError):
            instant = Instant.fromisoformat(value)
            if instant.tzinfo is not None:
                return instant
    raise ValueError("it must be a time with its zone, such as 2027-01-15T09:00:00Z")


def _problem(error: msgspec.DecodeError, *at: str) -> dict[str, Any]:
    """The problem with the place inside the value that the error names."""
    match = _LOCATION.fullmatch(str(error))
    message, inside = match.groups() if match else (str(error), "")
    return problem_at(message, *at, *re.findall(r"[\w-]+", inside))
