"""Tokens: who may use the server, and for what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.wire import Instant
from treadle.model.access import Scope


@dataclass(frozen=True, slots=True)
class Token(ApiRecord):
    """A token without its secret, which is not stored."""

    id: str
    name: str
    """Who the log says did what is done with it."""
    state: str
    """`active`, `expired` or `revoked`."""
    scopes: list[str]
    """`read`, `work`, `operate`, `admin`, as they were given."""
    task_lists: list[str]
    """The only task lists that it is for; empty: all."""
    created_by: str
    created_at: Instant
    expires_at: Instant | None
    ended_at: Instant | None


@dataclass(frozen=True, slots=True)
class TokenMade(Token):
    """A new token with its secret, which is shown this once."""

    secret: str

    def __repr__(self) -> str:
        return f"TokenMade(id={self.id!r}, name={self.name!r}, secret=...)"


@dataclass(frozen=True, slots=True)
class TokenList(ApiRecord):
    """Tokens, newest first."""

    tokens: list[Token]


class TokensApi(Protocol):
    """Tokens. Making one takes no `Idempotency-Key`: no answer with a secret is kept, and a name is taken only once."""

    @contract.get("/tokens", Scope.ADMIN)
    async def list(self, *, every: Annotated[bool, Doc("Those that have expired or were revoked too")] = False) -> TokenList:
        """Tokens, newest first; never their secrets."""

    @contract.post("/tokens", Scope.ADMIN, status=201)
    async def create(
        self,
        name: Annotated[str, Doc("Who the log says did it: 1 to 100 printable characters without spaces", "ci")],
        scopes: Annotated[Sequence[str], Doc("What it is for: `read`, `work`, `operate` or `admin`, at least one", ["read"])],
        *,
        expires: Annotated[float | None, Doc("Valid for so many seconds; null: until it is revoked", 86_400)] = None,
        task_lists: Annotated[Sequence[str], Doc("Only for these task lists; empty: all. Not with the scope `admin`")] = (),
    ) -> TokenMade:
        """Make a token; the answer has its secret, which cannot be shown again."""

    @contract.delete("/tokens/{token}", Scope.ADMIN)
    async def revoke(
        self, token: Annotated[str, Doc("The token's id, or its name", "01935b8e-7c3a-7000-8000-000000000000")]
    ) -> Token:
        """Revoke a token, and with it the sessions that were opened with it; running servers know within 5 seconds."""
