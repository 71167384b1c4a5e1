"""`POST /v1/external-jobs/{job_id}/callback`: an external service reports on a job, authenticated by the token of the job."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from treadle.api.contract import PREFIX, ApiRecord, Doc, Parameter, record
from treadle.interfaces.http.access import bearer
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.openapi import PUBLIC, BodyOf, Returns
from treadle.interfaces.http.parameters import Body
from treadle.interfaces.http.routes import Routes, json_response
from treadle.kernel.external.records import ShownJob
from treadle.model.errors import InvalidInput
from treadle.model.external import ExternalProductionFailure, ExternalProductionHandle
from treadle.model.values import Json

_EXAMPLE = "01935b8e-7c3a-7000-8000-000000000000"


def _field(name: str, hint: Any, text: str) -> Parameter:
    return Parameter(name, hint, None, False, Doc(text))


_FIELDS = (
    _field("result", dict[str, Any] | None, "The job is done: the result of its task"),
    _field("failure_detail", str | None, "The job failed: the reason, for people"),
    _field("error_code", str | None, "The job failed: the reason, for programs"),
    _field("progress_hint", str | None, "The job continues: its progress, for people"),
    _field("progress", float | None, "The job continues: the fraction that is done, from 0 to 1"),
    _field("polling_interval_seconds", float | None, "The job continues: seconds between two polls from now on"),
)
_BODY = Body(_FIELDS)
ROUTES = Routes("external_jobs")


@record
class CalledBack(ApiRecord):
    """The report is stored."""

    job_id: str
    state: str
    """The state of the task: `awaiting_external`, `completed` or `failed`."""


@ROUTES.add(
    "POST",
    f"{PREFIX}/external-jobs/{{job_id}}/callback",
    "external_jobs_call_back",
    "Report the outcome or the progress of an external job",
    {200: Returns("Done", (CalledBack,))},
    parameters=(
        ("path", Parameter("job_id", str, None, True, Doc("The job's id, or that of its task", _EXAMPLE))),
        ("query", Parameter("token", str | None, None, False, Doc("The job's token, if it is not in a header"))),
    ),
    body=BodyOf("CallBack", _FIELDS, {"result": {"url": "/out/7.mp4"}}, "The report of a service about a job."),
    problems=(403, 404, 409, 413, 422, 503),
    extra=PUBLIC,
)
async def call_back(request: Request) -> Response:
    """For the service that runs the job: it is done (`result`), it failed (`failure_detail`), or it continues (`progress_hint`,
    `progress`, `polling_interval_seconds`). It needs the token that the specialist passed to the service (`ctx.callback_token`), as
    `Authorization: Bearer TOKEN` or in the query; `ctx.callback_url` contains it. A wrong token is refused with `callback_refused`
    (403), a callback before the job is recorded with `callback_too_early` (409: send it again in a moment), and one after the end
    with `external_already_resolved` (409).
    """
    jobs = state_of(request).engine.kernel.external_jobs
    job = await jobs.find_called(request.path_params["job_id"], _token(request))
    resolved = await jobs.resolve(_token(request), _outcome(await _BODY.read(request), job))
    return json_response(CalledBack(resolved.id, resolved.state))


def _token(request: Request) -> str:
    return bearer(request) or request.query_params.get("token", "")


def _outcome(given: dict[str, Any], job: ShownJob) -> dict[str, Json] | ExternalProductionFailure | ExternalProductionHandle:
    """The report as the engine takes it; a job that continues keeps the values that are not reported."""
    if (result := given.get("result")) is not None:
        if len(given) > 1:
            raise InvalidInput("A finished job has a `result` and no other field.")
        return dict[str, Json](result)
    if (detail := given.get("failure_detail")) is not None:
        if given.keys() - {"failure_detail", "error_code"}:
            raise InvalidInput("A failed job has a `failure_detail`, an optional `error_code`, and no other field.")
        return ExternalProductionFailure(detail, given.get("error_code"))
    if not given or "error_code" in given:
        raise InvalidInput("Send `result`, or `failure_detail`, or the progress of the job.")
    known = {name: getattr(job.record, name) for name in ("polling_interval_seconds", "progress_hint", "progress")}
    changed = {name: value for name, value in given.items() if name in known and value is not None}
    return ExternalProductionHandle(job.record.external_job_id, **known | changed)
