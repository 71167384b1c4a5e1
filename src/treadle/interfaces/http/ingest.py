"""`POST /v1/ingest/github`: GitHub webhooks about issues become dispatch jobs. The signature authenticates the caller."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from treadle.api.contract import PREFIX, ApiRecord, record
from treadle.dispatch import GitHubIssue, InvalidIssue, coordinator_of, make_issue
from treadle.interfaces.http.app_state import state_of
from treadle.interfaces.http.openapi import JSON, PUBLIC, Returns, header
from treadle.interfaces.http.routes import Routes, json_response
from treadle.model.errors import Forbidden, IdempotencyKeyReused, InvalidInput, Refused, TreadleError
from treadle.model.names import check_key

OPENED = ("opened", "reopened")
"""Actions that make an issue a job; `labeled` does too, for the configured labels."""

ROUTES = Routes("ingest")


class SignatureRefused(Forbidden):
    """A webhook without a valid signature."""

    code = "signature_refused"

    def __init__(self) -> None:
        TreadleError.__init__(
            self, "The header X-Hub-Signature-256 is not the signature of this body with the secret of this server."
        )


class NotConfigured(Refused):
    """Webhooks cannot be verified, as no secret is set."""

    code = "github_not_configured"

    def __init__(self) -> None:
        super().__init__("This server takes no GitHub webhooks: set TREADLE_GITHUB_SECRET to the secret of the webhook.")


@record
class Ingested(ApiRecord):
    """The job of the issue."""

    task_id: str
    created: bool
    """False: the issue already had one."""


@record
class Pong(ApiRecord):
    """The answer to a ping."""

    pong: bool


class _Webhook(msgspec.Struct):
    """The parts of a webhook that decide whether it becomes a job."""

    action: str
    issue: dict[str, Any]
    repository: dict[str, Any]
    label: dict[str, Any] | None = None
    installation: dict[str, Any] | None = None


@ROUTES.add(
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
        raise NotConfigured()
    body = await request.body()
    if not is_signed(secret, body, request.headers.get("X-Hub-Signature-256", "")):
        raise SignatureRefused()
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
        made = await coordinator_of(engine).submit(
            issue,
            metadata={"source": "github", "delivery": delivery, "action": webhook.action},
            unique_key=f"github:{issue.repository.id}:{issue.id}",
            idempotency_key=f"github:{hashlib.sha256(body).hexdigest()}",  # the id of a delivery is not signed, the body is
            trace_id=delivery,
            actor="github",
        )
    except IdempotencyKeyReused as reused:  # the same body under another delivery id
        return json_response(Ingested(reused.stored_id or "", False))
    return json_response(Ingested(made.id, made.created), 202 if made.created else 200)


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
