"""Webhooks for approvals: a signed POST, retried with backoff until the receiver accepts it.

The worker's settings determine the URL. An approval may name its own URL only if the settings allow it, so that a payload cannot
make this process send requests to arbitrary hosts. Redirects are not followed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import SplitResult, urlsplit

from treadle.kernel.approvals.records import ShownApproval
from treadle.kernel.approvals.service import Approvals
from treadle.model.addresses import is_allowed
from treadle.model.clock import as_text
from treadle.model.errors import ApprovalNotFound, NonRetryable, TreadleError
from treadle.model.retry import RetryPolicy
from treadle.model.values import Json
from treadle.model.webhooks import EVENT_HEADER, ID_HEADER, SIGNATURE_HEADER, sign
from treadle.workers.context import Context

NOTIFY_RETRY = RetryPolicy.of(10, first=2, longest=600, jitter=0.2)
"""About an hour in total; then the notification becomes a dead letter."""

SEND_WITHIN = 10.0
"""Socket timeout in seconds."""

_RESPONSE = 500
"""Characters of a response that are kept."""

_EVENTS_AFTER_END = ("approval.expired",)


class WebhookFailed(TreadleError):
    """The receiver did not accept the webhook; it is sent again."""

    code = "webhook_failed"


class Notifier:
    """Sends the webhooks that tasks of kind `engine.notify` request."""

    def __init__(
        self, approvals: Approvals, now: Callable[[], int], *, url: str = "", secret: str = "", allowed: tuple[str, ...] = ()
    ) -> None:
        self._approvals = approvals
        self._now = now
        self._url = url
        self._secret = secret
        self._allowed = allowed

    async def notify(self, payload: dict[str, Any], ctx: Context) -> dict[str, Json]:
        """Send one event of an approval; events of a decided approval are skipped, except its expiry."""
        event: str = payload["event"]
        try:
            shown = await self._approvals.show(payload["approval_id"])
        except ApprovalNotFound:
            return {"skipped": "the approval is gone"}
        if shown.state != "pending" and event not in _EVENTS_AFTER_END:
            return {"skipped": f"the approval is {shown.state}"}
        place = self._place(shown.approval.request.notify)
        if not self._secret:
            raise NonRetryable("TREADLE_WEBHOOK_SECRET is not set; webhooks are not sent unsigned.", "webhook_unsigned")
        body = json.dumps(_body(event, ctx.task_id, shown), ensure_ascii=False).encode()
        headers = make_headers(event, ctx.task_id, self._secret, self._now() // 1000, body)
        status, _ = await asyncio.to_thread(post, place, body, headers, _shown(place))
        if not 200 <= status < 300:
            raise WebhookFailed(f"{_shown(place)} answered {status} to {event}; anything but 2xx is sent again.")
        return {"status": status}

    def _place(self, own: str | None) -> SplitResult:
        """Return the target: the approval's own URL if it has one and it is allowed, else the URL of the settings."""
        if own is not None and not is_allowed(own, self._allowed):
            raise NonRetryable(
                f"The approval names {_shown(urlsplit(own))} as its webhook, which is not allowed; "
                "TREADLE_WEBHOOK_ALLOW lists the allowed URLs.",
                "webhook_not_allowed",
            )
        place = urlsplit(own or self._url)
        if place.scheme not in ("http", "https") or not place.hostname:
            raise NonRetryable("TREADLE_APPROVAL_WEBHOOK is not set to an http or https URL here.", "webhook_not_set")
        return place


def make_headers(event: str, delivery_id: str, secret: str, at: int, body: bytes) -> dict[str, str]:
    """Return the headers of a webhook signed at that time (seconds since 1970)."""
    return {
        "Content-Type": "application/json",
        "User-Agent": "treadle",
        EVENT_HEADER: event,
        ID_HEADER: delivery_id,
        SIGNATURE_HEADER: sign(secret, at, body),
    }


def post(place: SplitResult, body: bytes, headers: dict[str, str], shown: str, *, public: bool = False) -> tuple[int, str]:
    """POST the body without redirects or proxies, and return the status and the beginning of the response.

    Raises `WebhookFailed` without an answer. With `public`, sends nothing to a private network. Errors name the URL as `shown`.
    """
    import http.client  # slow imports that most workers never need
    import ssl

    path = (place.path or "/") + (f"?{place.query}" if place.query else "")
    host, port = place.hostname or "", place.port
    if place.scheme == "https":
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=SEND_WITHIN, context=ssl.create_default_context()
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=SEND_WITHIN)
    try:
        connection.connect()
        if public and not ipaddress.ip_address(connection.sock.getpeername()[0].partition("%")[0]).is_global:
            raise NonRetryable(
                f"{shown} is in a private network; TREADLE_WEBHOOK_ALLOW lists the URLs there that may be used.",
                "webhook_not_allowed",
            )
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(65536).decode("utf-8", "replace")[:_RESPONSE]
    except (OSError, http.client.HTTPException) as error:
        raise WebhookFailed(f"{shown} could not be reached: {type(error).__name__}.") from None
    finally:
        connection.close()


def _body(event: str, delivery_id: str, shown: ShownApproval) -> dict[str, Json]:
    approval, request = shown.approval, shown.approval.request
    return {
        "id": delivery_id,
        "event": event,
        "approval": {
            "id": shown.id,
            "state": shown.state,
            "title": request.title,
            "context": approval.context,
            "requested_by": request.requested_by,
            "requested_at": as_text(approval.requested_at),
            "expires_at": as_text(approval.expires_at),
            "deciders": list(approval.deciders),
            "escalated": approval.escalated_at is not None,
            "quorum": request.quorum,
            "edits": request.edits,
            "reminders": approval.reminders,
            "round": approval.round,
            "previous_id": approval.previous_id,
            "task_id": shown.task_id,
            "task_name": approval.task_name,
            "run_id": shown.run_id,
        },
    }


def _shown(place: SplitResult) -> str:
    """Return the URL without its possibly secret parts: the user and the query."""
    port = f":{place.port}" if place.port else ""
    return f"{place.scheme}://{place.hostname}{port}{place.path}"
