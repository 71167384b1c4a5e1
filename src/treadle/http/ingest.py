"""`POST /v1/ingest/github`: GitHub's webhooks about issues become jobs of dispatch. The signature is the access."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Header, Request
from fastapi.responses import Response

from treadle.api.contract import PREFIX, ApiRecord
from treadle.api.wire import to_json
from treadle.dispatch import GitHubIssue, InvalidIssue, coordinator_of, make_issue
from treadle.http.app_state import AppState
from treadle.http.problems import problem_responses
from treadle.http.schemas import content_of
from treadle.model.errors import Forbidden, InvalidInput, Refused, TreadleError
from treadle.model.names import check_key

OPENED = ("opened", "reopened")
"""What happened to an issue that is now a job; and `labeled`, where labels are what chooses."""

_DESCRIPTION = """\
Takes `issues` events. An issue that was opened or reopened and has one of `TREADLE_GITHUB_LABELS` (any issue, if there is none), or
was given one of them, becomes a job of dispatch. Needs no token: `X-Hub-Signature-256` has to be that of the body under
`TREADLE_GITHUB_SECRET`. The same delivery again makes nothing more, nor does an issue whose job has not ended yet. Everything else
is answered with 204.
"""


class SignatureRefused(Forbidden):
    """A webhook without the signature that it should have."""

    code = "signature_refused"

    def __init__(self) -> None:
        TreadleError.__init__(
            self, "The header X-Hub-Signature-256 is not the signature of this body under the secret that was set here."
        )


class NotConfigured(Refused):
    """Webhooks cannot be checked, as no secret was set."""

    code = "github_not_configured"

    def __init__(self) -> None:
        super().__init__("This server takes no webhooks of GitHub: set TREADLE_GITHUB_SECRET to the secret of the webhook.")


@dataclass(frozen=True, slots=True)
class Ingested(ApiRecord):
    """The job that stands for the issue."""

    task_id: str
    created: bool
    """False: there was one already."""


@dataclass(frozen=True, slots=True)
class Pong(ApiRecord):
    """GitHub has asked whether somebody is there."""

    pong: bool


class _Webhook(msgspec.Struct):
    """What of a webhook is looked at before it is known to matter."""

    action: str
    issue: dict[str, Any]
    repository: dict[str, Any]
    label: dict[str, Any] | None = None
    installation: dict[str, Any] | None = None


def make_router(front: AppState) -> APIRouter:
    """The entrance for GitHub."""
    router = APIRouter(prefix=PREFIX, tags=["ingest"])
    engine = front.engine
    secret, labels = engine.kernel.settings.github_secret, engine.kernel.settings.github_labels

    @router.post(
        "/ingest/github",
        response_model=None,
        status_code=202,
        responses={
            200: {"description": "The answer to a `ping`; or there was a job already", "content": _CONTENT},
            202: {"description": "A new job", **content_of(Ingested)},
            204: {"description": "Nothing that becomes a job"},
            **problem_responses(403, 409, 413, 422, 429, 503),
            **problem_responses(500),
        },
        operation_id="ingest_github",
        summary="A webhook of GitHub about an issue",
        description=_DESCRIPTION,
        openapi_extra=_EXTRA,
    )
    async def github(
        request: Request,
        event: Annotated[str | None, Header(alias="X-GitHub-Event", description="`issues` or `ping`")] = None,
        delivery: Annotated[str | None, Header(alias="X-GitHub-Delivery", description="The id of this delivery")] = None,
        signature: Annotated[str | None, Header(alias="X-Hub-Signature-256", description="`sha256=` and the signature")] = None,
    ) -> Response:
        if not secret:
            raise NotConfigured()
        body = await request.body()
        if not is_signed(secret, body, signature or ""):
            raise SignatureRefused()
        if event == "ping":
            return Response(to_json(Pong(True)), media_type="application/json")
        if event != "issues":
            return Response(status_code=204)
        delivery = check_key(delivery or "", "X-GitHub-Delivery")[:200]
        webhook = _read(body)
        issue = wanted(webhook, labels)
        if issue is None:
            return Response(status_code=204)
        made = await coordinator_of(engine).submit(
            issue,
            metadata={"source": "github", "delivery": delivery, "action": webhook.action},
            unique_key=f"github:{issue.repository.id}:{issue.id}",
            idempotency_key=f"github:{delivery}",
            trace_id=delivery,
        )
        return Response(to_json(Ingested(made.id, made.created)), 202 if made.created else 200, media_type="application/json")

    return router


def is_signed(secret: str, body: bytes, signature: str) -> bool:
    """Whether the header `X-Hub-Signature-256` is that of the body; in constant time."""
    expected = "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))


def wanted(webhook: _Webhook, labels: Sequence[str]) -> GitHubIssue | None:
    """The issue that becomes a job; None where the webhook is about something else. Raises `InvalidIssue`.

    A label that was added counts only if it is one that chooses: else every label would make a job again.
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
        raise InvalidIssue(f"This is no `issues` event of GitHub: {error}.") from None
    except (msgspec.DecodeError, RecursionError):
        raise InvalidInput("The body is not JSON: set the content type of the webhook to application/json.") from None


_CONTENT = {
    "application/json": {
        "schema": {"anyOf": [content_of(each)["content"]["application/json"]["schema"] for each in (Ingested, Pong)]}
    }
}
_EXTRA = {
    "security": [],
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}},
}
