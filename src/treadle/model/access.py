"""Scopes, and the access that a token or a session grants to its bearer.

A token has scopes; `GRANTS` lists what each implies. Creating work, executing it, operating it, approving, publishing flows and
registering Python code are separate permissions. A token may be restricted to some task lists.
Nothing here is secret: the store holds only a digest of a token's secret, which only `kernel.access.credentials` reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from treadle.model.errors import Forbidden, InvalidInput, ListForbidden, Refused, RestrictedToken
from treadle.model.ids import parse_id


class Scope(StrEnum):
    """The permissions that a token can carry."""

    READ = "read"
    """Read lists, states, results, events and metrics."""
    ENQUEUE = "enqueue"
    """Create work, and nothing else: enqueue tasks and jobs, start published workflows and functions."""
    WORK = "work"
    """Create work, send signals, and use the worker protocol: claim, renew, settle."""
    APPROVE = "approve"
    """Decide approvals, and approve objectives."""
    OPERATE = "operate"
    """Operator actions: cancel, retry, pause, schedule, watch, set limits."""
    PUBLISH = "publish"
    """Publish flows, and run workflows of unpublished AFL."""
    REGISTER = "register"
    """Register, change and test handlers: Python code below the handler roots of the machine."""
    ADMIN = "admin"
    """Everything, including tokens, retention, and watchers of any path or URL."""


GRANTS: dict[Scope, frozenset[Scope]] = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.ENQUEUE: frozenset({Scope.ENQUEUE}),
    Scope.WORK: frozenset({Scope.WORK, Scope.ENQUEUE}),
    Scope.APPROVE: frozenset({Scope.APPROVE, Scope.READ}),
    Scope.OPERATE: frozenset({Scope.OPERATE, Scope.WORK, Scope.ENQUEUE, Scope.READ}),
    Scope.PUBLISH: frozenset({Scope.PUBLISH, Scope.ENQUEUE, Scope.READ}),
    Scope.REGISTER: frozenset({Scope.REGISTER, Scope.READ}),
    Scope.ADMIN: frozenset(Scope),
}
"""The scopes that each scope implies; a token grants the union over its scopes."""

PRESETS: dict[str, tuple[Scope, ...]] = {
    "viewer": (Scope.READ,),
    "approver": (Scope.APPROVE,),
    "operator": (Scope.OPERATE, Scope.APPROVE),
}
"""The scopes of people by what they do."""

PRESET_DAYS = 90
"""How long a token of a preset is valid by default."""

ONCE_OPERATE = frozenset({Scope.OPERATE, Scope.APPROVE, Scope.PUBLISH})
"""The scopes that `operate` stands for in tokens created before these were separate."""

_NAME_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Access:
    """The permissions of a caller, and its name in the log."""

    actor: str
    scopes: frozenset[Scope]
    """Granted scopes; implied ones may be left out."""
    task_lists: tuple[str, ...] = ()
    """The task lists that it is restricted to; empty means all."""
    token_id: str | None = None
    expires_at: int | None = None
    session_id: str | None = None
    groups: tuple[str, ...] = ()
    """Groups of the caller; only an operator with direct access to the store states them, never a token or a request."""
    for_model: bool = False
    """Whether a model acts, over MCP: whatever its scopes, it cannot approve its own request."""

    def may(self, scope: Scope) -> bool:
        """Return whether the scope is granted."""
        return scope in self.scopes or any(scope in GRANTS[granted] for granted in self.scopes)

    def may_use(self, task_list: str) -> bool:
        """Return whether the task list is permitted."""
        return not self.task_lists or task_list in self.task_lists

    def check(self, scope: Scope, *, lists: bool = True) -> None:
        """Raise `Forbidden` unless the scope is granted; without `lists`, also if it is restricted to task lists."""
        if not self.may(scope):
            raise Forbidden(scope)
        if self.task_lists and not lists:
            raise RestrictedToken()

    def check_own(self, asked_by: str | None, what: str) -> None:
        """Raise `Refused` if a model is about to approve its own request."""
        if self.for_model and asked_by == self.actor:
            raise Refused(f"{asked_by} asked for {what} and cannot approve it over MCP; a person or another token has to.")

    def check_list(self, task_list: str) -> None:
        """Raise `ListForbidden` unless the task list is permitted."""
        if not self.may_use(task_list):
            raise ListForbidden(task_list)

    def one_list(self, task_list: str | None) -> str | None:
        """Return the requested task list, or the only one that is permitted; None: all."""
        if task_list is None and len(self.task_lists) == 1:
            return self.task_lists[0]
        if task_list is not None:
            self.check_list(task_list)
        elif self.task_lists:
            raise InvalidInput(f"Give a task list: this token is for {', '.join(self.task_lists)}.")
        return task_list


OPEN = Access("local", frozenset(Scope))
"""The access of callers without a token, of a server that was started with `--open`."""


def granted(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """Return all scopes that these imply."""
    return _granted(frozenset(scopes))


@cache
def _granted(scopes: frozenset[Scope]) -> frozenset[Scope]:
    return frozenset().union(*(GRANTS[scope] for scope in scopes))


def parse_scopes(scopes: Iterable[Scope | str]) -> tuple[Scope, ...]:
    """Return the scopes in order of weight, without duplicates; raise `InvalidInput` for unknown ones or none."""
    requested = {scopes} if isinstance(scopes, str) else set(scopes)
    names = {scope.value for scope in Scope}
    if unknown := sorted(str(scope) for scope in requested if scope not in names):
        raise InvalidInput(f"{unknown[0]!r} is not a scope; a token has one or more of {', '.join(Scope)}.")
    if not requested:
        raise InvalidInput(f"A token needs at least one scope: {', '.join(Scope)}.")
    return tuple(scope for scope in Scope if scope in requested)


def check_token_name(name: str) -> str:
    """Return the name, or raise `InvalidInput`: short, printable, without spaces, and distinguishable from an id."""
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_LIMIT or not name.isprintable() or " " in name:
        raise InvalidInput(
            f"{name!r} is not a valid token name: use 1 to {_NAME_LIMIT} printable characters without spaces, "
            "such as ci, grafana or ada@example.org. The log shows it as the actor."
        )
    try:
        parse_id(name)
    except InvalidInput:
        return name
    raise InvalidInput(f"{name!r} is not a valid token name: it looks like an id.")
