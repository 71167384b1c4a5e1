"""Routes made from the contract: what a call says of itself is what FastAPI is told, so that nothing is written twice."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache, partial
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi import APIRouter, Body, Header, Path, Query, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast, Field, create_model, model_validator

from treadle.api.contract import KEY, PREFIX, Call, Parameter
from treadle.api.facade import all_calls
from treadle.api.wire import to_builtins, to_json
from treadle.http.app_state import front_of
from treadle.http.names import named
from treadle.http.problems import DOCUMENTED, problem_responses
from treadle.http.repeats import once
from treadle.http.schemas import content_of
from treadle.model.errors import RestrictedToken

WAIT = "wait_for"
"""The parameter by which a call is told to wait for something to happen."""


KEY_HEADER = "Idempotency-Key"
_OF_KEY = "Sent again with the same key, nothing more is made"
_OF_GENERAL_KEY = "Sent again with the same key within a week, the same answer is given and nothing more is made"


@cache
def contract_router() -> APIRouter:
    """All calls of the contract; made once for a process, as that takes long: whose they are, each request says."""
    router = APIRouter(prefix=PREFIX)
    for call in all_calls():
        router.add_api_route(
            call.route.path,
            _endpoint(call),
            methods=[call.route.method],
            route_class_override=_guarded(call),
            status_code=call.route.status,
            response_model=None,
            responses={
                call.route.status: {"description": "Done", **content_of(call.returns)},
                **problem_responses(*DOCUMENTED, *call.route.problems),
            },
            tags=[call.group],
            operation_id=call.id,
            summary=call.doc.partition("\n")[0].removesuffix("."),
            description=f"{call.doc}\n\nNeeds the scope `{call.route.scope}`.",
            openapi_extra={"x-scope": str(call.route.scope), "x-task-lists": call.route.lists},
        )
    return router


def _guarded(call: Call) -> type[APIRoute]:
    """A route that looks who calls before it reads what they want."""

    general = call.route.creates and not call.keyed

    class Guarded(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                front = front_of(request.app)
                access = await front.access(request)
                access.check(call.route.scope)
                if access.task_lists and not call.route.lists:
                    raise RestrictedToken()
                if general and (key := request.headers.get(KEY_HEADER)) is not None:
                    return await once(front.engine.kernel.requests, access.actor, call.id, key, request, handle)
                return await handle(request)

            return guarded

    return Guarded


def _endpoint(call: Call) -> Callable[..., Awaitable[Response]]:
    """What FastAPI calls: takes what the call takes from where it is in the request, and makes the call."""
    names = [each.name for each in (*call.path, *(call.others if call.in_query else ()))]
    keyed, has_body = call.keyed, not call.in_query and bool(call.others)

    async def endpoint(request: Request, **given: Any) -> Response:
        front = front_of(request.app)
        service = await front.service(request)
        options = {name: given[name] for name in names} | {each.name: named(request, given[each.name]) for each in call.path}
        if has_body and (body := given["body"]) is not None:
            options |= {name: getattr(body, name) for name in body.model_fields_set}
        if keyed and given[KEY] is not None:
            options[KEY] = given[KEY]
        make = partial(getattr(getattr(service, call.group), call.name), **options)
        if options.get(WAIT):
            result = await front.patiently(service.access, make, partial(make, **{WAIT: 0.0}), request)
        else:
            result = await make()
        return Response(to_json(result), call.route.status, media_type="application/json")

    parameters = [inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)]
    parameters += [_typed(each.name, Annotated[_bare(each.hint), Path(**_said(each))]) for each in call.path]
    if call.in_query:
        parameters += [_typed(each.name, Annotated[_bare(each.hint), Query(**_said(each))], each) for each in call.others]
    elif has_body:
        optional = not any(each.required for each in call.others)
        model = _made_model(call)
        parameters.append(
            inspect.Parameter(
                "body",
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[model | None, Body()] if optional else Annotated[model, Body()],
                default=None if optional else inspect.Parameter.empty,
            )
        )
    if call.keyed or call.route.creates:
        header = Header(alias=KEY_HEADER, description=_OF_KEY if call.keyed else _OF_GENERAL_KEY, max_length=200)
        parameters.append(
            inspect.Parameter(KEY, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[str | None, header], default=None)
        )
    endpoint.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    endpoint.__name__ = call.id
    return endpoint


def _typed(name: str, annotation: Any, parameter: Parameter | None = None) -> inspect.Parameter:
    default = inspect.Parameter.empty if parameter is None or parameter.required else _default(parameter)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _default(parameter: Parameter) -> Any:
    return list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default


def _said(parameter: Parameter) -> dict[str, Any]:
    doc = parameter.doc
    bare = _bare(parameter.hint)
    said: dict[str, Any] = {"description": doc.text}
    if bare is int or int in get_args(bare):
        most = 2**63 - 1 if parameter.name.endswith("seq") else 2**31 - 1  # what both stores can keep
        said |= {"ge": -most, "le": most}
    return said | ({} if doc.example is None else {"examples": [doc.example]})


def _instant(value: object) -> datetime:
    """An instant from RFC 3339 text: in JSON and in queries it is nothing else."""
    if isinstance(value, str):
        with suppress(ValueError):
            found = datetime.fromisoformat(value)
            if found.tzinfo is not None:
                return found
    raise ValueError("it must be a time with its zone, such as 2027-01-15T09:00:00Z")


_WHEN = Annotated[datetime, BeforeValidator(_instant)]


class _First(FailFast):
    """Only the first item that does not fit is told of: to tell of a hundred thousand takes seconds."""

    def __hash__(self) -> int:  # for unions
        return hash(type(self))


_FIRST = _First()


def _bare(hint: Any) -> Any:
    """The type alone; sequences as lists, which is what they are in JSON, looked at up to the first item that does not fit."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if hint is datetime:
        return _WHEN
    if get_origin(hint) is Sequence:
        return Annotated[list[get_args(hint)[0]], _FIRST]  # type: ignore[misc]
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_bare(each) for each in get_args(hint))]  # noqa: UP007
    return hint


def _made_model(call: Call) -> type[BaseModel]:
    fields: dict[str, Any] = {
        each.name: (_bare(each.hint), Field(... if each.required else _default(each), **_said(each))) for each in call.others
    }
    name = "".join(word.title() for word in call.id.split("_"))
    example = {each.name: each.doc.example for each in call.others if each.required or each.doc.example is not None}
    config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [to_builtins(example)]})
    return create_model(name, __config__=config, __validators__={"few": model_validator(mode="before")(_few)}, **fields)  # type: ignore[dict-item]


def _few(cls: type[BaseModel], given: Any) -> Any:
    """Refuse more fields than there are at once: to name each of a hundred thousand takes seconds."""
    if isinstance(given, dict) and len(given) > len(cls.model_fields):
        unknown = next(name for name in given if name not in cls.model_fields)
        raise ValueError(f"there is no field {unknown!r}")
    return given
