"""Options of an alert rule, and the body of its record that follows from them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from treadle.api.options import AlertOptions
from treadle.model.alerts import (
    AGE_FOR,
    BUDGET_SPENT,
    CONDITIONS,
    DEAD_LETTERS,
    EVERY_FOR,
    PROBLEM,
    QUEUE_AGE,
    RUN_FAILED,
    VARIABLE,
    WITHIN_FOR,
    AlertRuleBody,
)
from treadle.model.clock import milliseconds
from treadle.model.errors import InvalidAlert, InvalidInput
from treadle.model.names import check_name, check_pattern
from treadle.model.values import shown

SHORTEST_EVERY_FOR = 1000
_LONGEST_URL = 2000
_OF_CONDITION = {
    "workflow": (RUN_FAILED, BUDGET_SPENT),
    "within": (RUN_FAILED, BUDGET_SPENT),
    "task_list": (DEAD_LETTERS, QUEUE_AGE),
    "over": (DEAD_LETTERS,),
    "age": (QUEUE_AGE,),
    "code": (PROBLEM,),
}
"""Options that only some conditions have."""


def make_body(given: Mapping[str, Any]) -> AlertRuleBody:
    """Return the body of a new rule; checks each option."""
    if unknown := [name for name in given if name not in AlertOptions.__annotations__]:
        raise InvalidInput(f"An alert rule has no option {unknown[0]!r}; it has {', '.join(AlertOptions.__annotations__)}.")
    when = given.get("when")
    if when not in CONDITIONS:
        raise InvalidAlert(f"when must be one of {', '.join(CONDITIONS)}, not {shown(when)}.")
    for name, conditions in _OF_CONDITION.items():
        if name in given and when not in conditions:
            raise InvalidAlert(f"{name} is an option of {' and '.join(conditions)}, not of {when}.")
    over = given.get("over", 0)
    if isinstance(over, bool) or not isinstance(over, int) or over < 0:
        raise InvalidAlert(f"over must be a whole number, zero or more, not {shown(over)}.")
    every_for = milliseconds(given.get("every", EVERY_FOR / 1000), "every", positive=True)
    if every_for < SHORTEST_EVERY_FOR:
        raise InvalidAlert(f"The shortest interval between two evaluations is one second, not {every_for} ms.")
    within_for = milliseconds(given.get("within", WITHIN_FOR / 1000), "within", positive=True)
    lasts_for = milliseconds(given.get("lasts", 0), "lasts")
    if when in _OF_CONDITION["within"] and lasts_for and within_for < (needed := lasts_for + 2 * every_for):
        raise InvalidAlert(
            f"A failure counts for {within_for / 1000:g} s (within), too short for lasts and two evaluations: a single one might "
            f"never fire. Set within to at least {needed / 1000:g} s, or lasts to less."
        )
    return AlertRuleBody(
        when=when,
        to=check_target(given.get("to")),
        workflow=check_pattern(given["workflow"], "workflow name") if "workflow" in given else None,
        task_list=check_name(given["task_list"], "task list") if "task_list" in given else None,
        code=check_pattern(given["code"], "problem code") if "code" in given else None,
        over=over,
        age_for=milliseconds(given.get("age", AGE_FOR / 1000), "age", positive=True),
        within_for=within_for,
        lasts_for=lasts_for,
        repeat_for=milliseconds(given["repeat"], "repeat", positive=True) if "repeat" in given else None,
        resolved=bool(given.get("resolved", True)),
        every_for=every_for,
    )


def edit_body(body: AlertRuleBody, changes: Mapping[str, Any]) -> AlertRuleBody:
    """Return the body with changed options; its condition stays, and so do its causes and its silence."""
    if not body.to:
        raise InvalidAlert("The alert rule cannot be read: remove it, and create another.")
    if changes.get("when", body.when) != body.when:
        raise InvalidAlert(f"The condition of a rule stays ({body.when}): remove the rule and add another.")
    durations = {"age": body.age_for, "within": body.within_for, "lasts": body.lasts_for, "every": body.every_for}
    before: dict[str, Any] = {name: value / 1000 for name, value in durations.items()}
    before |= {name: getattr(body, name) for name in ("when", "to", "workflow", "task_list", "code", "over", "resolved")}
    before["repeat"] = None if body.repeat_for is None else body.repeat_for / 1000
    kept = {
        name: value for name, value in before.items() if value is not None and body.when in _OF_CONDITION.get(name, (body.when,))
    }
    return msgspec.structs.replace(
        make_body(kept | dict(changes)), causes=body.causes, silenced_until=body.silenced_until, more=body.more
    )


def check_target(to: Any) -> str:
    """Return the target, or raise `InvalidAlert`: an http or https URL without a user, or the name of a variable."""
    if isinstance(to, str) and re.fullmatch(f"{VARIABLE}[A-Z0-9_]+", to):
        return to
    try:
        parts = urlsplit(to if isinstance(to, str) else "")
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    if not known or "@" in parts.netloc or not to.isprintable() or " " in to or len(to) > _LONGEST_URL:
        raise InvalidAlert(  # it may contain a secret: do not repeat it
            "The target must be an http or https URL without a password, or the name of an environment variable of the workers "
            f"that begins with {VARIABLE}; put URLs of mail and chat (Apprise) and other secrets into such a variable."
        )
    return str(to)


def shown_target(to: str) -> str:
    """Return the variable, or the scheme and host of the URL: its path and query may be secret."""
    if to.startswith(VARIABLE):
        return to
    parts = urlsplit(to)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"
