"""Routes made from the contract: what a call says of itself is what FastAPI is told, so that nothing is written twice."""

from __future__ import annotations

import inspect
import types
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi import APIRouter, Body, Header, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, create_model

from treadle.api.contract import KEY, Call, Parameter
from treadle.api.face import all_calls
from treadle.api.wire import to_json
from treadle.http.problems import MEDIA_TYPE
from treadle.service import Service

ServiceFor = Callable[[Request], Awaitable[Service]]
"""Who calls, and what they may do."""

DOCUMENTED = (401, 403, 404, 409, 413, 422, 429, 501, 503)
"""Problems that any call may be answered with."""


def problem_responses() -> dict[int | str, dict[str, Any]]:
    """What the documentation says of answers that are problems."""
    schema = {"$ref": "#/components/schemas/Problem"}
    return {status: {"description": "Problem", "content": {MEDIA_TYPE: {"schema": schema}}} for status in DOCUMENTED}


def make_router(service_for: ServiceFor) -> APIRouter:
    """All calls of the contract."""
    router = APIRouter()
    for call in all_calls():
        router.add_api_route(
            call.route.path,
            _endpoint(call, service_for),
            methods=[call.route.method],
            status_code=call.route.status,
            response_model=None,
            responses={call.route.status: {"model": call.returns, "description": "Done"}, **problem_responses()},
            tags=[call.group],
            operation_id=call.id,
            summary=call.doc.partition("\n")[0].removesuffix("."),
            description=f"{call.doc}\n\nNeeds the scope `{call.route.scope}`.",
            openapi_extra={"x-scope": str(call.route.scope), "x-task-lists": call.route.lists},
        )
    return router


def _endpoint(call: Call, service_for: ServiceFor) -> Callable[..., Awaitable[Response]]:
    """What FastAPI calls: takes what the call takes from where it is in the request, and makes the call."""
    names = [each.name for each in (*call.path, *(call.others if call.in_query else ()))]
    keyed, has_body = call.keyed, not call.in_query and bool(call.others)

    async def endpoint(request: Request, **given: Any) -> Response:
        service = await service_for(request)
        options = {name: given[name] for name in names}
        if has_body and (body := given["body"]) is not None:
            options |= {name: getattr(body, name) for name in body.model_fields_set}
        if keyed and given[KEY] is not None:
            options[KEY] = given[KEY]
        result = await getattr(getattr(service, call.group), call.name)(**options)
        return Response(to_json(result), call.route.status, media_type="application/json")

    parameters = [inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)]
    parameters += [_typed(each.name, Annotated[_bare(each.hint), Path(**_said(each))]) for each in call.path]
    if call.in_query:
        parameters += [_typed(each.name, Annotated[_bare(each.hint), Query(**_said(each))], each) for each in call.others]
    elif has_body:
        optional = not any(each.required for each in call.others)
        model = _body_model(call)
        parameters.append(
            inspect.Parameter(
                "body",
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[model | None, Body()] if optional else Annotated[model, Body()],
                default=None if optional else inspect.Parameter.empty,
            )
        )
    if call.keyed:
        parameters.append(
            inspect.Parameter(
                KEY,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=Annotated[
                    str | None, Header(description="Sent again with the same key, nothing more is made", max_length=200)
                ],
                default=None,
            )
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
    says = parameter.says
    return {"description": says.text} | ({} if says.example is None else {"examples": [says.example]})


def _bare(hint: Any) -> Any:
    """The type alone; sequences as lists, which is what they are in JSON."""
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is Sequence:
        return list[get_args(hint)[0]]  # type: ignore[misc]
    if get_origin(hint) in (Union, types.UnionType):
        return Union[tuple(_bare(each) for each in get_args(hint))]  # noqa: UP007
    return hint


def _body_model(call: Call) -> type[BaseModel]:
    fields: dict[str, Any] = {
        each.name: (_bare(each.hint), Field(... if each.required else _default(each), **_said(each))) for each in call.others
    }
    name = "".join(word.title() for word in call.id.split("_"))
    return create_model(name, __config__=ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=False), **fields)
