"""Names that people give: handlers, task lists, namespaces, keys; and the lane that they make together."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import NamedTuple

from treadle.model.errors import InvalidInput, InvalidName

DEFAULT_NAMESPACE = "default"
DEFAULT_LIST = "default"
HANDLER = "handler"
"""The kind of tasks that call a user's handler."""
ADVANCE = "afl.advance"
"""The kind of tasks that take in what was left in inboxes of a run, and go on with big expansions."""
SCRIPT = "afl.script"
"""The kind of tasks that run the scripts of a flow."""
LOCK = "lock"
"""The kind of tasks that are locks on keys: live while one is held, due when it has run out."""

FUNCTION = "function"
"""The kind of tasks that execute a durable function; their name is `NAME@VERSION`."""
PLAN = "treadle.plan"
"""The function that executes declarative plans; every worker has it."""
APPROVAL = "approval"
"""The kind of tasks that ask a person for a function."""
SCHEDULE = "schedule"
"""The kind of tasks that fire schedules, one for each."""
WATCHER = "watcher"
"""The kind of tasks that look at what is watched, one for each watcher."""
NOTIFY = "engine.notify"
"""The kind of tasks that tell the outside by a signed webhook."""

GOAL_READINESS = "goal.readiness"
"""The kind of tasks that decide whether an objective is executable, and emit its readiness event if so."""
GOAL_SCHEDULE = "goal.schedule"
"""The kind of tasks that make a workorder of a readiness event, one for each."""
GOAL_RUN = "goal.run"
"""The kind of tasks that call the handler of a workorder; their name is that of the handler."""
GOAL_GATE = "goal.gate"
"""The kind of tasks that judge what a workorder brought, one for each."""
GOAL_DEADLINE = "goal.deadline"
"""The kind, name and unique key of the task that looks for overdue objectives of a namespace."""
GOAL_KINDS = frozenset({GOAL_READINESS, GOAL_SCHEDULE, GOAL_RUN, GOAL_GATE, GOAL_DEADLINE})
EXTERNAL_CANCEL = "external.cancel"
"""The kind of tasks that cancel a job at an outside service; their name is that of the specialist."""

PRUNE = "engine.prune"
"""The kind, name and unique key of the task that prunes a namespace."""

ENGINE_LIST = "engine"
"""The task list of tasks that belong to no user; every worker serves those of the engine's own kinds."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[.:/-][A-Za-z0-9_]+)*")
_LONGEST_NAME = 200
_LONGEST_KEY = 512


class Lane(NamedTuple):
    """What a worker chooses to claim from: (namespace, kind, task_list, name)."""

    namespace: str
    kind: str
    task_list: str
    name: str


def check_name(name: str, what: str = "handler name") -> str:
    """The name itself, or `InvalidName`: letters, digits and underscores, joined by single `.`, `:`, `/` or `-`."""
    if not isinstance(name, str) or len(name) > _LONGEST_NAME or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{name!r} is not a valid {what}: use letters, digits and underscores, joined by . : / or -, "
            f"at most {_LONGEST_NAME} characters (e.g. billing.Charge)."
        )
    return name


def check_key(key: str, what: str = "key") -> str:
    """The key itself, or `InvalidInput`: 1 to 512 printable characters."""
    if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY or not key.isprintable():
        raise InvalidInput(f"{key!r} is not a valid {what}: use 1 to {_LONGEST_KEY} printable characters.")
    return key


def check_pattern(pattern: str, what: str = "handler name") -> str:
    """The name or glob itself, or `InvalidName`; `*` in a glob stands for any characters."""
    check_name(pattern.replace("*", "x") if isinstance(pattern, str) else pattern, what)
    return pattern


def handles(patterns: Collection[str], name: str) -> bool:
    """Whether the name, its short name or a glob for it is among the patterns."""
    return handles_by_name(patterns, name) or any("*" in each and fnmatchcase(name, each) for each in patterns)


def handles_by_name(patterns: Collection[str], name: str) -> bool:
    """Whether the name or its short name is among the patterns."""
    return name in patterns or short_name(name) in patterns


def short_name(name: str) -> str:
    """The part after the last dot: `Charge` of `billing.Charge`."""
    return name.rpartition(".")[2]
