"""Decisions for remote workers: checks of their input, the queues they want, and the form of a claimed task. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from treadle.kernel.external.records import INTENT
from treadle.model.approvals import split_checkpoint
from treadle.model.clock import Duration, milliseconds
from treadle.model.errors import InvalidInput, InvalidPolicy, Refused
from treadle.model.ids import Ref, parse_id
from treadle.model.names import HANDLER, QueueKey, check_name, handles, handles_by_name
from treadle.model.tasks import Claim, ClaimedTask, LogLine, Server, Task
from treadle.model.tasks import log_line as checked_line
from treadle.model.values import Json, decode, shown

MAX_LEASE_FOR = 3_600_000
MAX_TEXT_LENGTH = 64 * 1024
_MAX_PATTERNS = 1000


@dataclass(frozen=True, slots=True)
class Wants:
    """The queues from which a worker wants tasks: only handlers', by its patterns, narrowed down to `only` for one claim.

    A prompt that this engine serves itself must be wanted by name; a glob that happens to match it does not count.
    """

    namespace: str
    handlers: tuple[str, ...]
    only: tuple[str, ...] | None
    task_lists: frozenset[str]
    is_prompt: Callable[[str], bool]

    def __call__(self, queue: QueueKey) -> bool:
        if queue.kind != HANDLER or queue.namespace != self.namespace or queue.task_list not in self.task_lists:
            return False
        if not handles(self.handlers, queue.name) or (self.only is not None and not handles(self.only, queue.name)):
            return False
        return handles_by_name((*self.handlers, *(self.only or ())), queue.name) or not self.is_prompt(queue.name)


def wants_of(
    server: Server,
    namespace: str,
    only: list[str] | None,
    lists: list[str] | None,
    allowed: Collection[str] | None,
    is_prompt: Callable[[str], bool],
) -> Wants:
    """Return the queues for one claim of the worker, or raise `Refused` if there are none."""
    served = set(server.task_lists) if lists is None else set(server.task_lists).intersection(lists)
    if allowed is not None:
        served = served.intersection(allowed)
    if not served:
        raise Refused("This worker serves none of those task lists, or its token does not allow them: nothing can be claimed.")
    return Wants(namespace, tuple(server.handlers), None if only is None else tuple(only), frozenset(served), is_prompt)


def claimed(task: Task) -> ClaimedTask:
    """Return the task in the form that a remote worker receives."""
    decisions, own = split_checkpoint(decode(task.checkpoint))
    if isinstance(own, dict):
        own = {name: value for name, value in own.items() if name != INTENT} or None  # it has the key that signs callbacks
    until_at = task.wake_at or 0
    left_for = max(until_at - (task.claimed_at or 0), 0)
    return ClaimedTask(task, decode(task.payload), until_at, left_for, own, tuple(decisions))


def claim_of(worker_id: str, task_id: Ref, claim_version: int) -> Claim:
    """Return the claim that a request names, or raise `InvalidInput`."""
    if type(claim_version) is not int or not 0 < claim_version < 2**31:
        raise InvalidInput(f"claim_version must be the number with which the task was claimed, not {shown(claim_version)}.")
    return Claim(parse_id(task_id, "task id"), claim_version, parse_id(worker_id, "worker id"))


def lease_of(lease_for: Duration | None, default_for: int) -> int:
    """Return the requested lease in milliseconds, or raise `InvalidPolicy`."""
    if lease_for is None:
        return default_for
    wanted = milliseconds(lease_for, "lease_for", positive=True)
    if wanted > MAX_LEASE_FOR:
        raise InvalidPolicy(f"lease_for must be at most {MAX_LEASE_FOR // 1000} s, not {shown(lease_for)}: renew it instead.")
    return wanted


def log_line(task: Task, at: int, given: Mapping[str, Json]) -> LogLine:
    """Return the log line that a worker sent, or raise `InvalidInput`."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"A log line must be a dict with a message, not {type(given).__name__}.")
    details = given.get("details")
    if details is not None and not isinstance(details, dict):
        raise InvalidInput(f"The details of a log line must be a dict (a JSON object), not {type(details).__name__}.")
    return checked_line(task, at, check_text(given.get("message"), "message"), given.get("level", "info"), details)


def check_text(given: object, what: str) -> str:
    """Return the text, or raise `InvalidInput`."""
    if not isinstance(given, str) or len(given) > MAX_TEXT_LENGTH:
        raise InvalidInput(f"{what} must be text of at most {MAX_TEXT_LENGTH} characters.")
    return given


def check_names(given: Iterable[str], what: str, check: Callable[[str], str]) -> list[str]:
    """Return the names without duplicates, each checked."""
    names = list(dict.fromkeys([given] if isinstance(given, str) else given))
    if not 0 < len(names) <= _MAX_PATTERNS:
        raise InvalidInput(f"{what} must be 1 to {_MAX_PATTERNS} names, not {len(names)}.")
    return [check(name) for name in names]


def check_list(name: str) -> str:
    """Return the name of a task list, or raise `InvalidName`."""
    return check_name(name, "task list")
