"""Messages of alerts: a signed webhook, or mail and chat through Apprise (the extra `alerts`).

The targets may contain secrets: results, errors and logs show at most the scheme and host of a URL, and of an Apprise URL (whose
host may be a token) only the scheme.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from treadle.kernel.alerts.options import check_target, shown_target
from treadle.kernel.alerts.service import Alerts
from treadle.kernel.triggers.service import ACTIVE
from treadle.model.addresses import is_allowed
from treadle.model.alerts import FAILED_TEST, RESOLVED, TEST, VARIABLE
from treadle.model.errors import AlertRuleNotFound, InvalidAlert, NonRetryable
from treadle.model.values import Json
from treadle.workers.context import Context
from treadle.workers.webhooks import WebhookFailed, make_headers, post

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
            rule = await self._alerts.get(payload["rule_id"])
        except AlertRuleNotFound:
            return {"skipped": "the alert rule is gone"}
        if rule.state != ACTIVE:
            return {"skipped": f"the alert rule is {rule.state}"}
        target = self._target(rule.body.to)
        message = {"id": ctx.task_id, **payload, "when": rule.body.when}
        if not target.startswith(("http://", "https://")):
            return await asyncio.to_thread(_notify, target, payload)
        return await self._post(target, payload["event"], ctx.task_id, message)

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

    async def _post(self, target: str, event: str, delivery_id: str, message: dict[str, Any]) -> dict[str, Json]:
        if not self._secret:
            raise NonRetryable("TREADLE_WEBHOOK_SECRET is not set; webhooks are not sent unsigned.", "webhook_unsigned")
        body = json.dumps(message, ensure_ascii=False).encode()
        headers = make_headers(event, delivery_id, self._secret, self._now() // 1000, body)
        shown = shown_target(target)
        public = not is_allowed(target, self._allowed)
        status, text = await asyncio.to_thread(post, urlsplit(target), body, headers, shown, public=public)
        if not 200 <= status < 300:
            raise WebhookFailed(f"{shown} answered {status} to {event}; anything but 2xx is sent again.")
        return {"to": shown, "status": status, "response": text}


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
        f"- {each['text']}" + (f" ({each['remedy']})" if state == "firing" and each["remedy"] else "") for each in payload["alerts"]
    ]
    if count > len(lines):
        lines.append(f"and {count - len(lines)} more")
    return f"Treadle: {rule}: {count} alert{'' if count == 1 else 's'} {state}", "\n".join(lines)
