"""Messages to people and systems outside: webhooks, with their signatures and retries, and the channels of alerts."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import SplitResult, urlsplit

from treadle.kernel.alerts.service import Alerts, check_target
from treadle.kernel.approvals.service import Approvals
from treadle.kernel.triggers import ACTIVE
from treadle.model.alerts import FAILED_TEST, RESOLVED, TEST, VARIABLE, shown_target
from treadle.model.approvals import Approval
from treadle.model.clock import as_text
from treadle.model.errors import InvalidAlert, NonRetryable, NotFound, TreadleError
from treadle.model.records import Record
from treadle.model.retry import RetryPolicy
from treadle.model.values import Json
from treadle.model.watchers import is_allowed
from treadle.model.webhooks import EVENT_HEADER, ID_HEADER, SIGNATURE_HEADER, sign
from treadle.workers.context import Context

NOTIFY_RETRY = RetryPolicy.of(10, first=2, longest=600, jitter=0.2)
"""About an hour in total; then the notification becomes a dead letter."""

SEND_WITHIN = 10.0
"""Socket timeout in seconds."""

_RESPONSE = 500
"""Characters of a response that are kept."""

_EVENTS_AFTER_END = ("approval.expired",)


class WebhookFailed(TreadleError, code="webhook_failed"):
    """The receiver did not accept the webhook; it is sent again."""


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
            record, approval = await self._approvals.find_request(payload["approval_id"])
        except NotFound:
            return {"skipped": "the approval is gone"}
        if record.state != "pending" and event not in _EVENTS_AFTER_END:
            return {"skipped": f"the approval is {record.state}"}
        place = self._place(approval.request.notify)
        message = _body(event, ctx.task_id, record, approval)
        status, _ = await _post_signed(place, event, message, self._secret, self._now(), _shown(place))
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


async def _post_signed(
    place: SplitResult, event: str, message: dict[str, Any], secret: str, now: int, label: str, *, public: bool = False
) -> tuple[int, str]:
    """POST the message, which has its `id`, as a signed webhook; raise `WebhookFailed` unless the receiver accepts it."""
    if not secret:
        raise NonRetryable("TREADLE_WEBHOOK_SECRET is not set; webhooks are not sent unsigned.", "webhook_unsigned")
    body = json.dumps(message, ensure_ascii=False).encode()
    headers = make_headers(event, message["id"], secret, now // 1000, body)
    status, text = await asyncio.to_thread(post, place, body, headers, label, public=public)
    if not 200 <= status < 300:
        raise WebhookFailed(f"{label} answered {status} to {event}; anything but 2xx is sent again.")
    return status, text


def post(place: SplitResult, body: bytes, headers: dict[str, str], label: str, *, public: bool = False) -> tuple[int, str]:
    """POST the body without redirects or proxies, and return the status and the beginning of the response.

    Raises `WebhookFailed` without an answer. With `public`, sends nothing to a private network. Errors name the URL as `label`.
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
                f"{label} is in a private network; TREADLE_WEBHOOK_ALLOW lists the URLs there that may be used.",
                "webhook_not_allowed",
            )
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read(65536).decode("utf-8", "replace")[:_RESPONSE]
    except (OSError, http.client.HTTPException) as error:
        raise WebhookFailed(f"{label} could not be reached: {type(error).__name__}.") from None
    finally:
        connection.close()


def _body(event: str, delivery_id: str, record: Record, approval: Approval) -> dict[str, Json]:
    request = approval.request
    return {
        "id": delivery_id,
        "event": event,
        "approval": {
            "id": record.id,
            "state": record.state,
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
            "task_id": record.task_id,
            "task_name": approval.task_name,
            "run_id": record.run_id,
        },
    }


def _shown(place: SplitResult) -> str:
    """Return the URL without its possibly secret parts: the user and the query."""
    port = f":{place.port}" if place.port else ""
    return f"{place.scheme}://{place.hostname}{port}{place.path}"


_sending = 0
"""Messages that Apprise is sending, in threads of its own."""
_lock = threading.Lock()


class AlertSender:
    """Sends the messages of alert rules."""

    def __init__(
        self,
        alerts: Alerts,
        read_target: Callable[[str], str],
        now: Callable[[], int],
        *,
        secret: str,
        allowed: tuple[str, ...],
    ) -> None:
        """`read_target` returns the value of an environment variable."""
        self._alerts = alerts
        self._read_target = read_target
        self._now = now
        self._secret = secret
        self._allowed = allowed

    async def send(self, payload: dict[str, Any], ctx: Context) -> dict[str, Json]:
        """Send one message to the current target of its rule; those of a removed rule are skipped.

        A test message that cannot be sent is not a failed task: its result is the reason.
        """
        try:
            return await self._send(payload, ctx)
        except (NonRetryable, WebhookFailed) as error:
            if payload["event"] != TEST:
                raise
            return {FAILED_TEST: str(error)}

    async def _send(self, payload: dict[str, Any], ctx: Context) -> dict[str, Json]:
        try:
            state, rule = await self._alerts.find_target(payload["rule_id"])
        except NotFound:
            return {"skipped": "the alert rule is gone"}
        if state != ACTIVE:
            return {"skipped": f"the alert rule is {state}"}
        target = self._target(rule.to)
        message = {"id": ctx.task_id, **payload, "when": rule.when}
        if not target.startswith(("http://", "https://")):
            return await asyncio.to_thread(_notify, target, payload)
        label, public = shown_target(target), not is_allowed(target, self._allowed)
        status, text = await _post_signed(
            urlsplit(target), payload["event"], message, self._secret, self._now(), label, public=public
        )
        return {"to": label, "status": status, "response": text}

    def _target(self, to: str) -> str:
        if not to.startswith(VARIABLE):
            return to
        target = self._read_target(to)
        if not target:
            raise NonRetryable(
                f"The worker's environment has no variable {to}; set it and restart the worker.", "alert_target_missing"
            )
        if target.startswith(("http:", "https:")):
            try:
                return check_target(target)
            except InvalidAlert:
                raise NonRetryable(f"The variable {to} is not a valid http or https URL.", "alert_target_invalid") from None
        return target


def _notify(target: str, payload: dict[str, Any]) -> dict[str, Json]:
    """Send the message through Apprise; its logs, which may contain secrets, are dropped."""
    try:
        apprise = import_module("apprise")
    except ImportError:
        raise NonRetryable(
            "Mail and chat need the package apprise: pip install 'treadle[alerts]'.", "alert_target_unsupported"
        ) from None
    scheme = target.partition(":")[0]
    service = apprise.Apprise()
    title, text = words(payload)
    with _unlogged():
        try:
            added = service.add(target)
            sent = added and service.notify(title=title, body=text)
        except Exception as error:  # its message may contain the URL
            raise WebhookFailed(f"The message could not be sent by {scheme}: {type(error).__name__}; it is sent again.") from None
    if not added:
        raise NonRetryable(f"Apprise does not accept the {scheme} URL of the alert rule.", "alert_target_invalid")
    if not sent:
        raise WebhookFailed(f"The message could not be sent by {scheme}; it is sent again.")
    return {"to": scheme, "sent": True}


@contextmanager
def _unlogged() -> Iterator[None]:
    """Drop the log lines of Apprise and its HTTP client, which contain URLs."""
    global _sending
    for name in ("apprise", "urllib3.connectionpool"):
        logging.getLogger(name).addFilter(_is_loud)
    with _lock:
        _sending += 1
    try:
        yield
    finally:
        with _lock:
            _sending -= 1


def _is_loud(_: logging.LogRecord) -> bool:
    return not _sending


def words(payload: dict[str, Any]) -> tuple[str, str]:
    """Return the title and the text of a message for people."""
    event, rule, count = payload["event"], payload["rule"], payload["count"]
    if event == TEST:
        return f"Treadle: test of the alert rule {rule}", payload["text"]
    state = "resolved" if event == RESOLVED else "firing"
    lines = [
        f"- {alert['text']}" + (f" ({alert['remedy']})" if state == "firing" and alert["remedy"] else "")
        for alert in payload["alerts"]
    ]
    if count > len(lines):
        lines.append(f"and {count - len(lines)} more")
    return f"Treadle: {rule}: {count} alert{'' if count == 1 else 's'} {state}", "\n".join(lines)
