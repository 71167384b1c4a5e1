"""The verdict on work that was submitted under attack: nothing acknowledged is lost, and nothing is repeated without a reason."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Execution:
    """A handler began."""

    task_id: str
    attempt: int
    pid: int


@dataclass(slots=True)
class Evidence:
    """All that is known about the submitted work."""

    acks: dict[str, set[str]] = field(default_factory=dict)
    """The ids that were acknowledged for each key."""
    ends: dict[str, str] = field(default_factory=dict)
    """The state of each acknowledged task or run, by id."""
    executions: dict[str, list[Execution]] = field(default_factory=dict)
    """By the key of the work, in their order."""
    charges: dict[str, list[str]] = field(default_factory=dict)
    """The dedupe keys of the requests for each effect."""
    killed: set[int] = field(default_factory=set)
    """Processes that were ended without notice; only their executions may be repeated."""


def read_ledger(path: Path, found: Evidence) -> None:
    """Add the executions and effects that handlers noted; a line that a dying process left unfinished does not count."""
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            what, key, of, attempt, pid = json.loads(line)
        except ValueError:
            continue
        if what == "ran":
            found.executions.setdefault(key, []).append(Execution(of, attempt, pid))
        else:
            found.charges.setdefault(key, []).append(of)


def judge(found: Evidence) -> list[str]:
    """Return the broken promises."""
    return [*_lost(found), *_repeated(found), *_charged(found)]


def _lost(found: Evidence) -> Iterator[str]:
    for key, ids in found.acks.items():
        if len(ids) > 1:
            yield f"{key} was acknowledged under several ids: {sorted(ids)}"
        for each in ids:
            if (state := found.ends.get(each, "lost")) != "completed":
                yield f"{key} was acknowledged as {each}, and is {state}"
        if not any(name == key or name.startswith(f"{key}.") for name in found.executions):
            yield f"{key} was never executed"


def _repeated(found: Evidence) -> Iterator[str]:
    for key, executions in found.executions.items():
        if len({each.task_id for each in executions}) > 1:
            yield f"{key} became several tasks"
        for attempt, count in Counter(each.attempt for each in executions).items():
            if count > 1:
                yield f"attempt {attempt} of {key} was executed {count} times"
        for each in executions[:-1]:
            if each.pid not in found.killed:
                yield f"{key} was executed again after attempt {each.attempt}, whose process {each.pid} was not killed"


def _charged(found: Evidence) -> Iterator[str]:
    for key, dedupe_keys in found.charges.items():
        if len(set(dedupe_keys)) > 1:
            yield f"the effect of {key} was requested under several dedupe keys"
        if len(dedupe_keys) > len(found.executions.get(key, ())):
            yield f"the effect of {key} was requested more often than its handler was executed"
