"""Names chosen by users: handlers, task lists, namespaces, keys; the engine's own task kinds; and queues."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import NamedTuple

from treadle.model.errors import InvalidInput, InvalidName
from treadle.model.values import shown

DEFAULT_NAMESPACE = "default"
DEFAULT_LIST = "default"
HANDLER = "handler"
"""Tasks that call a user's handler."""
ADVANCE = "afl.advance"
"""Tasks that process the inboxes of a run's steps, and continue large expansions."""
SCRIPT = "afl.script"
"""Tasks that run the scripts of a flow."""
PARAM = "param:"
"""Prefix of script parameters in a script task's payload, beside `script` itself."""
LOCK = "lock"
"""Tasks that are locks on keys: live while the lock is held, due when it expires."""

FUNCTION = "function"
"""Tasks that execute a durable function; their name is `NAME@VERSION`."""
FLOW_PREFIX = "fn:"
"""Prefix of the flow ids of functions."""
PLAN = "treadle.plan"
"""The function that executes declarative plans; every worker has it."""
APPROVAL = "approval"
"""Tasks that ask a person on behalf of a function."""
SCHEDULE = "schedule"
"""Tasks that fire schedules, one for each schedule."""
WATCHER = "watcher"
"""Tasks that scan the source of a watcher, one for each watcher."""
ALERT = "alert"
"""Tasks that evaluate alert rules, one for each rule."""
NOTIFY = "engine.notify"
"""Tasks that send a signed webhook, or the message of an alert."""
EXTERNAL_CANCEL = "external.cancel"
"""Tasks that cancel a job at an external service; their name is the specialist's."""

PRUNE = "engine.prune"
"""Kind, name and unique key of the task that prunes a namespace."""
METRICS = "engine.metrics"
"""Kind, name and unique key of the task that rolls up a namespace's transitions."""
UPKEEP = frozenset({PRUNE, METRICS})
"""Kinds of the tasks that wait in every namespace that had a worker."""
RUN_DEADLINE = "engine.deadline"
"""Tasks that cancel a run at its deadline."""
CANCEL = "engine.cancel"
"""Tasks that cancel tasks and runs: those that a function no longer needs, and a run whose cleanup takes too long."""

ENGINE_LIST = "engine"
"""The task list of the engine's own tasks; every worker serves its kinds."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[.:/-][A-Za-z0-9_]+)*")
_NAME_LIMIT = 200
_KEY_LIMIT = 512


class QueueKey(NamedTuple):
    """The key of a queue, the group of tasks that a worker claims from: (namespace, kind, task_list, name)."""

    namespace: str
    kind: str
    task_list: str
    name: str


def check_name(name: str, what: str = "handler name") -> str:
    """Return the name, or raise `InvalidName`: letters, digits and underscores, joined by single `.`, `:`, `/` or `-`."""
    if not isinstance(name, str) or len(name) > _NAME_LIMIT or not _NAME.fullmatch(name):
        raise InvalidName(
            f"{shown(name)} is not a valid {what}: use letters, digits and underscores, joined by . : / or -, "
            f"at most {_NAME_LIMIT} characters (e.g. billing.Charge)."
        )
    return name


def check_key(key: str, what: str = "key") -> str:
    """Return the key, or raise `InvalidInput`: 1 to 512 printable characters."""
    if not isinstance(key, str) or not 0 < len(key) <= _KEY_LIMIT or not key.isprintable():
        raise InvalidInput(f"{shown(key)} is not a valid {what}: use 1 to {_KEY_LIMIT} printable characters.")
    return key


def check_pattern(pattern: str, what: str = "handler name") -> str:
    """Return the name or glob, or raise `InvalidName`; `*` in a glob matches any characters."""
    check_name(pattern.replace("*", "x") if isinstance(pattern, str) else pattern, what)
    return pattern


def handles(patterns: Collection[str], name: str) -> bool:
    """Return whether the name, its short name or a glob for it is among the patterns."""
    return handles_by_name(patterns, name) or any("*" in pattern and fnmatchcase(name, pattern) for pattern in patterns)


def handles_by_name(patterns: Collection[str], name: str) -> bool:
    """Return whether the name or its short name is among the patterns."""
    return name in patterns or short_name(name) in patterns


def short_name(name: str) -> str:
    """Return the part after the last dot: `Charge` of `billing.Charge`."""
    return name.rpartition(".")[2]


def is_function(flow_id: str | None) -> bool:
    """Whether a run, or its task, belongs to a function."""
    return flow_id is not None and flow_id.startswith(FLOW_PREFIX)


_RUN = "run:"


def run_key(key: str) -> str:
    """The stored form of a key of a run, which the task that executes it has; keys of tasks are apart from it."""
    return f"{_RUN}{key}"


def is_run_key(key: str) -> bool:
    """Whether a limit key counts live runs, so that a suspended one keeps its slot."""
    return key.startswith(_RUN)
