"""`POST /v1/external-jobs/{job_id}/callback`: a service says what became of a job; the token that it was given is its access."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from treadle.api.contract import PREFIX, ApiRecord
from treadle.api.wire import to_json
from treadle.http.access import bearer
from treadle.http.app_state import AppState
from treadle.http.problems import problem_responses
from treadle.http.schemas import content_of
from treadle.kernel.external.records import ShownJob
from treadle.model.errors import InvalidInput
from treadle.model.external import ExternalProductionFailure, ExternalProductionHandle
from treadle.model.values import Json

_DESCRIPTION = """\
For the service that does the job: it is done (`result`), it failed (`failure_detail`), or it goes on (`progress_hint`, `progress`,
`polling_interval_seconds`). Needs no token of the server, but the one that the specialist gave to the service
(`ctx.callback_token`), as `Authorization: Bearer TOKEN` or in the query; `ctx.callback_url` has it. A wrong token is refused with
`callback_refused` (403), a call-back that comes before the job is recorded with `callback_too_early` (409: send it again in a
moment), one after the end with `external_already_resolved` (409).
"""


class CallBack(BaseModel):
    """What a service says of a job: one of `result` and `failure_detail`, or else how far it is."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{"result": {"url": "/out/7.mp4"}}]})

    result: dict[str, Any] | None = Field(None, description="It is done: the result of its task")
    failure_detail: str | None = Field(None, description="It failed: why, for people")
    error_code: str | None = Field(None, description="It failed: why, for programs")
    progress_hint: str | None = Field(None, description="It goes on: how far it is, for people")
    progress: float | None = Field(None, description="It goes on: how much is done, from 0 to 1")
    polling_interval_seconds: float | None = Field(None, description="It goes on: seconds between two polls from now on")


@dataclass(frozen=True, slots=True)
class CalledBack(ApiRecord):
    """What was said is stored."""

    job_id: str
    state: str
    """The task's: `awaiting_external`, or how it ended: `completed` or `failed`."""


def make_router(front: AppState) -> APIRouter:
    """The call-backs of outside jobs."""
    external_jobs = front.engine.external_jobs

    class TokenFirst(APIRoute):
        """A route that looks at the token before it reads what is said."""

        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def guarded(request: Request) -> Response:
                request.state.job = await external_jobs.find_called(request.path_params["job_id"], _token(request))
                return await handle(request)

            return guarded

    router = APIRouter(prefix=PREFIX, tags=["external_jobs"], route_class=TokenFirst)

    @router.post(
        "/external-jobs/{job_id}/callback",
        response_model=None,
        responses={200: {"description": "Done", **content_of(CalledBack)}, **problem_responses(403, 404, 409, 413, 422, 503)},
        operation_id="external_jobs_call_back",
        summary="A service says what became of a job",
        description=_DESCRIPTION,
        openapi_extra={"security": []},
    )
    async def call_back(
        request: Request,
        said: CallBack,
        job_id: Annotated[str, Path(description="The job's id, or that of its task", examples=[_EXAMPLE])],
        token: Annotated[str | None, Query(description="The job's token, where it is in no header")] = None,
    ) -> Response:
        job = await external_jobs.resolve(_token(request), _outcome(said, request.state.job))
        return Response(to_json(CalledBack(job.id, job.state)), media_type="application/json")

    return router


_EXAMPLE = "01935b8e-7c3a-7000-8000-000000000000"


def _token(request: Request) -> str:
    return bearer(request) or request.query_params.get("token", "")


def _outcome(said: CallBack, job: ShownJob) -> dict[str, Json] | ExternalProductionFailure | ExternalProductionHandle:
    """What was said, in the words of the engine; what a job that goes on does not say stays as it was."""
    told = said.model_fields_set
    if said.result is not None:
        if len(told) > 1:
            raise InvalidInput("A job that is done has a `result` and nothing else.")
        return said.result
    if said.failure_detail is not None:
        if told - {"failure_detail", "error_code"}:
            raise InvalidInput("A job that failed has a `failure_detail`, may have an `error_code`, and nothing else.")
        return ExternalProductionFailure(said.failure_detail, said.error_code)
    if not told or "error_code" in told:
        raise InvalidInput("Say `result`, or `failure_detail`, or how far the job is.")
    record = job.record
    return ExternalProductionHandle(
        record.external_job_id,
        record.polling_interval_seconds if said.polling_interval_seconds is None else said.polling_interval_seconds,
        record.progress_hint if said.progress_hint is None else said.progress_hint,
        record.progress if said.progress is None else said.progress,
    )
