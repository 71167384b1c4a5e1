"""Requests of other services: GitHub webhooks about issues become dispatch jobs, and callbacks report on external jobs.

The signature of a webhook and the token of a job authenticate the callers.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.api.contract import PREFIX, ApiRecord, Doc, Parameter
from treadle.api.external_jobs import ExternalJob
from treadle.dispatch import GitHubIssue, InvalidIssue, coordinator_of, make_issue
from treadle.interfaces.http.access import RequestRefused, bearer
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.openapi import JSON, PUBLIC, BodyOf, Returns, header
from treadle.interfaces.http.parameters import Body
from treadle.interfaces.http.routes import Routes, json_response
from treadle.model.errors import IdempotencyKeyReused, InvalidInput, Refused
from treadle.model.external import ExternalProductionFailure, ExternalProductionHandle
from treadle.model.names import check_key
from treadle.model.values import Json

OPENED = ("opened", "reopened")
"""Actions that make an issue a job; `labeled` does too, for the configured labels."""

_WEBHOOKS = Routes("ingest")


class Ingested(ApiRecord, frozen=True):
    """The job of the issue."""

    task_id: str
    created: bool
    """False: the issue already had one."""


class Pong(ApiRecord, frozen=True):
    """The answer to a ping."""

    pong: bool


class _Webhook(msgspec.Struct):
    """The parts of a webhook that decide whether it becomes a job."""

    action: str
    issue: dict[str, Any]
    repository: dict[str, Any]
    label: dict[str, Any] | None = None
    installation: dict[str, Any] | None = None


@_WEBHOOKS.add(
    "POST",
    f"{PREFIX}/ingest/github",
    "ingest_github",
    "Receive a GitHub webhook about an issue",
    {
        202: Returns("A new job", (Ingested,)),
        200: Returns("The answer to a `ping`, or to an issue that already has a job", (Ingested, Pong)),
        204: Returns("The event does not become a job"),
    },
    parameters=(
        header("X-GitHub-Event", "`issues` or `ping`"),
        header("X-GitHub-Delivery", "The id of this delivery"),
        header("X-Hub-Signature-256", "`sha256=` and the signature"),
    ),
    problems=(403, 409, 413, 422, 429, 500, 503),
    extra={**PUBLIC, "requestBody": {"required": True, "content": {JSON: {"schema": {"type": "object"}}}}},
)
async def ingest_github(request: Request) -> Response:
    """Takes `issues` events. An issue becomes a dispatch job when it is opened or reopened with one of `TREADLE_GITHUB_LABELS`
    (or any issue, if none are set), or when one of them is added. Needs no token: `X-Hub-Signature-256` must be the signature of
    the body with `TREADLE_GITHUB_SECRET`. A repeated body, under any delivery id, creates nothing more; nor does an issue with an
    unfinished job. All other events are answered with 204.
    """
    engine = state_of(request).engine
    if not (secret := engine.kernel.settings.github_secret):
        message = "This server takes no GitHub webhooks: set TREADLE_GITHUB_SECRET to the secret of the webhook."
        raise Refused(message, code="github_not_configured")
    body = await request.body()
    if not is_signed(secret, body, request.headers.get("X-Hub-Signature-256", "")):
        message = "The header X-Hub-Signature-256 is not the signature of this body with the secret of this server."
        raise RequestRefused(message, code="signature_refused")
    event = request.headers.get("X-GitHub-Event")
    if event == "ping":
        return json_response(Pong(True))
    if event != "issues":
        return Response(status_code=204)
    delivery = check_key(request.headers.get("X-GitHub-Delivery", ""), "X-GitHub-Delivery")[:200]
    webhook = _read(body)
    issue = wanted(webhook, engine.kernel.settings.github_labels)
    if issue is None:
        return Response(status_code=204)
    try:
        objective = await coordinator_of(engine).submit(
            issue,
            metadata={"source": "github", "delivery": delivery, "action": webhook.action},
            unique_key=f"github:{issue.repository.id}:{issue.id}",
            idempotency_key=f"github:{hashlib.sha256(body).hexdigest()}",  # the id of a delivery is not signed, the body is
            trace_id=delivery,
            actor="github",
        )
    except IdempotencyKeyReused as reused:  # the same body under another delivery id
        return json_response(Ingested(reused.stored_id or "", False))
    return json_response(Ingested(objective.id, objective.created), 202 if objective.created else 200)


def is_signed(secret: str, body: bytes, signature: str) -> bool:
    """Whether `X-Hub-Signature-256` is the signature of the body; compared in constant time."""
    expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))


def wanted(webhook: _Webhook, labels: Sequence[str]) -> GitHubIssue | None:
    """The issue that becomes a job, or None. Raises `InvalidIssue`.

    An added label counts only if it is one of `labels`; otherwise every label would create another job.
    """
    added = webhook.action == "labeled" and (webhook.label or {}).get("name") in labels
    if webhook.action not in OPENED and not added:
        return None
    issue = make_issue({**webhook.issue, "repository": webhook.repository, "installation": webhook.installation})
    if labels and not any(label.name in labels for label in issue.labels):
        return None
    return issue


def _read(body: bytes) -> _Webhook:
    try:
        return msgspec.json.decode(body, type=_Webhook)
    except UnicodeDecodeError:
        raise InvalidInput("The body is not UTF-8.") from None
    except msgspec.ValidationError as error:
        raise InvalidIssue(f"This is not an `issues` event of GitHub: {error}.") from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInput("The body is not JSON: set the content type of the webhook to application/json.") from None


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
_CALLBACKS = Routes("external_jobs")


class CalledBack(ApiRecord, frozen=True):
    """The report is stored."""

    job_id: str
    state: str
    """The state of the task: `awaiting_external`, `completed` or `failed`."""


@_CALLBACKS.add(
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


def _outcome(given: dict[str, Any], job: ExternalJob) -> dict[str, Json] | ExternalProductionFailure | ExternalProductionHandle:
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
    progress = {name: getattr(job, name) for name in ("polling_interval_seconds", "progress_hint", "progress")}
    changed = {name: value for name, value in given.items() if name in progress and value is not None}
    return ExternalProductionHandle(job.external_job_id, **progress | changed)


ROUTES = (*_CALLBACKS, *_WEBHOOKS)
