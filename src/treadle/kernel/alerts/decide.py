"""The consequences of an evaluation for the causes that it found. Pure.

A cause fires once it has lasted for the rule's `lasts_for`, and is resolved once it has been gone for as long. In between, it may
come and go: that neither fires nor resolves anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from treadle.model.alerts import AlertRuleBody, Cause

CAUSES = 100
"""Maximum number of causes that a rule follows at the same time."""


@dataclass(frozen=True, slots=True)
class Found:
    """A cause that exists now, in words; `count` is the number of things that it concerns."""

    text: str
    remedy: str = ""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Decided:
    """The consequences of an evaluation: the new causes of the rule, and the causes by verdict."""

    causes: dict[str, Cause]
    fired: tuple[str, ...]
    """Causes of alerts that begin."""
    told: tuple[str, ...]
    """Causes to report: new ones, those that were silenced before, and those whose repetition is due."""
    resolved: tuple[str, ...]
    """Causes of alerts that end."""
    resolved_told: tuple[str, ...]
    """Those of them whose end is reported, because their beginning was."""


def decide(body: AlertRuleBody, found: Mapping[str, Found], now: int) -> Decided:
    """Compare the known causes with those found now. A fired cause has the alert id "" until its alert is made."""
    silenced = body.silenced_until is not None and now < body.silenced_until
    causes: dict[str, Cause] = {}
    fired, told, resolved = [], [], []
    for cause in dict.fromkeys((*body.causes, *found)):
        known = body.causes.get(cause)
        if cause not in found:
            assert known is not None
            if known.alert_id is None:
                continue  # it did not last
            gone_at = known.gone_at if known.gone_at is not None else now
            if now - gone_at >= body.lasts_for:
                resolved.append(cause)
            else:
                causes[cause] = msgspec.structs.replace(known, gone_at=gone_at)
            continue
        if known is None and len(causes) >= CAUSES:
            continue
        kept = msgspec.structs.replace(known or Cause(since=now), gone_at=None)
        if kept.alert_id is None and now - kept.since >= body.lasts_for:
            fired.append(cause)
            kept = msgspec.structs.replace(kept, alert_id="")
        if kept.alert_id is not None and not silenced and _is_due(kept, body, now):
            told.append(cause)
            kept = msgspec.structs.replace(kept, told_at=now)
        causes[cause] = kept
    reported = [cause for cause in resolved if body.resolved and not silenced and body.causes[cause].told_at is not None]
    return Decided(causes, tuple(fired), tuple(told), tuple(resolved), tuple(reported))


def _is_due(cause: Cause, body: AlertRuleBody, now: int) -> bool:
    if cause.told_at is None:
        return True
    return body.repeat_for is not None and now - cause.told_at >= body.repeat_for
