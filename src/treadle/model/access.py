"""Who may do what: scopes, and the access that a token or a session gives to whoever shows it.

A token has scopes. `admin` grants everything; `operate` grants what operators do, and with it `work` and `read`; `work` grants
starting and doing work, and nothing else; `read` grants looking, and nothing else. A token may be held to some task lists.
Nothing here is secret: of a token's secret only a digest is stored, and that is known to `kernel.access.credentials` alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from treadle.model.errors import Forbidden, InvalidInput, ListForbidden
from treadle.model.ids import parse_id


class Scope(StrEnum):
    """What a token is for."""

    READ = "read"
    """Looking: lists, states, results, events, metrics."""
    WORK = "work"
    """Enqueueing, starting published workflows, and the worker protocol: claim, renew, settle."""
    OPERATE = "operate"
    """What operators do: cancel, retry, pause, decide approvals, publish flows, set limits."""
    ADMIN = "admin"
    """Everything, tokens and what loads code among it."""


GRANTS: dict[Scope, frozenset[Scope]] = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.WORK: frozenset({Scope.WORK}),
    Scope.OPERATE: frozenset({Scope.OPERATE, Scope.WORK, Scope.READ}),
    Scope.ADMIN: frozenset(Scope),
}
"""What each scope grants; a token grants what any of its scopes does."""

_LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class Access:
    """What a caller may do, and under whose name it stands in the log."""

    actor: str
    scopes: frozenset[Scope]
    """All that is granted, those that follow from others among them."""
    task_lists: tuple[str, ...] = ()
    """The only task lists that it is for; empty: all."""
    token_id: str | None = None
    expires_at: int | None = None
    session_id: str | None = None
    groups: tuple[str, ...] = ()
    """Groups that the caller is in, where that is known: an operator at the store says so; no token and no request does."""

    def may(self, scope: Scope) -> bool:
        """Whether that is granted."""
        return scope in self.scopes

    def may_use(self, task_list: str) -> bool:
        """Whether it is for that task list."""
        return not self.task_lists or task_list in self.task_lists

    def check(self, scope: Scope) -> None:
        """`Forbidden` unless that is granted."""
        if not self.may(scope):
            raise Forbidden(scope)

    def check_list(self, task_list: str) -> None:
        """`ListForbidden` unless it is for that task list."""
        if not self.may_use(task_list):
            raise ListForbidden(task_list)


OPEN = Access("local", frozenset(Scope))
"""Whoever calls a server that has no tokens, and listens on loopback only."""


@dataclass(frozen=True, slots=True)
class Token:
    """A token as people see it; its secret was shown once, when it was made."""

    id: str
    name: str
    state: str
    """`active`, `expired` (also before the store was told so) or `revoked`."""
    scopes: tuple[Scope, ...]
    """As they were given."""
    task_lists: tuple[str, ...]
    created_by: str
    created_at: int
    expires_at: int | None = None
    ended_at: int | None = None

    def access(self) -> Access:
        """What whoever shows its secret may do."""
        return Access(self.name, granted(self.scopes), self.task_lists, self.id, self.expires_at)


def granted(scopes: Iterable[Scope]) -> frozenset[Scope]:
    """All that the scopes grant."""
    return frozenset().union(*(GRANTS[scope] for scope in scopes))


def parse_scopes(scopes: Iterable[Scope | str]) -> tuple[Scope, ...]:
    """The scopes, each once, in the order of their weight; refuses unknown ones and none at all."""
    given = {scopes} if isinstance(scopes, str) else set(scopes)
    known = {scope.value for scope in Scope}
    if unknown := sorted(str(each) for each in given if each not in known):
        raise InvalidInput(f"{unknown[0]!r} is no scope; a token has one or more of {', '.join(Scope)}.")
    if not given:
        raise InvalidInput(f"A token needs at least one scope: {', '.join(Scope)}.")
    return tuple(scope for scope in Scope if scope in given)


def check_token_name(name: str) -> str:
    """The name itself, or `InvalidInput`: short, printable, without spaces, and not to be mistaken for an id."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable() or " " in name:
        raise InvalidInput(
            f"{name!r} is not a valid name of a token: use 1 to {_LONGEST_NAME} printable characters without spaces, "
            "such as ci, grafana or ada@example.org. It is who the log says did it."
        )
    try:
        parse_id(name)
    except InvalidInput:
        return name
    raise InvalidInput(f"{name!r} is not a valid name of a token: it looks like an id.")
