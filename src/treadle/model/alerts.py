"""Alert rules: the condition to look for, the target of the messages, and the causes seen so far. Pure."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from treadle.model.stored import Stored, words

CONDITIONS = RUN_FAILED, DEAD_LETTERS, QUEUE_AGE, TRIGGER_FAILING, WORKER_LOST, BUDGET_SPENT, PROBLEM = (
    "run_failed",
    "dead_letters",
    "queue_age",
    "trigger_failing",
    "worker_lost",
    "budget_spent",
    "problem",
)

FIRING, RESOLVED, TEST = "alert.firing", "alert.resolved", "alert.test"
"""The events of alert messages."""

FAILED_TEST = "failed"
"""The field of a test message's result that has the reason why it could not be sent."""

VARIABLE = "TREADLE_ALERT_"
"""Prefix of the environment variables that hold targets with secrets."""

EVERY_FOR = 15_000
AGE_FOR = 300_000
WITHIN_FOR = 900_000


class Cause(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """A cause that a rule has seen and that is not resolved yet."""

    since: int
    gone_at: int | None = None
    """When it was first missed; None while it lasts."""
    alert_id: str | None = None
    """The alert that it fired, once it had lasted long enough."""
    reported_at: int | None = None
    """When a message about it was last created."""


class AlertRuleDocument(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The document of a rule's record."""

    when: Annotated[str, words(CONDITIONS)]
    to: str
    """An http or https URL, or the name of an environment variable of the workers."""
    workflow: str | None = None
    task_list: str | None = None
    code: str | None = None
    over: int = 0
    age_for: int = AGE_FOR
    within_for: int = WITHIN_FOR
    lasts_for: int = 0
    """How long a cause must last before it fires, and be gone before it resolves."""
    repeat_for: int | None = None
    resolved: bool = True
    every_for: int = EVERY_FOR
    silenced_until: int | None = None
    causes: dict[str, Cause] = msgspec.field(default_factory=dict)


DEFINITION = (
    "when",
    "to",
    "workflow",
    "task_list",
    "code",
    "over",
    "age_for",
    "within_for",
    "lasts_for",
    "repeat_for",
    "resolved",
    "every_for",
)
"""The fields that people set; the others are progress."""


class AlertDocument(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The document of an alert's record."""

    rule_id: str
    rule: str
    """The name of the rule."""
    cause: str
    text: str
    remedy: str = ""
    count: int = 1
    since: int
    """When the cause was first seen."""
    deliveries: tuple[str, ...] = ()
    """The tasks that send its messages, oldest first; the last few."""


def shown_target(to: str) -> str:
    """Return the variable, or the scheme and host of the URL: its path and query may be secret."""
    if to.startswith(VARIABLE):
        return to
    parts = urlsplit(to)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
