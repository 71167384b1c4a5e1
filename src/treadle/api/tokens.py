"""Tokens: callers of the server and their scopes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.access import Scope


class Token(ApiRecord, frozen=True):
    """A token without its secret, which is not stored."""

    id: str
    name: str
    """The actor recorded in the log."""
    state: str
    """`active`, `expired` or `revoked`."""
    scopes: list[str]
    """`read`, `enqueue`, `work`, `approve`, `operate`, `publish`, `register` or `admin`, as given on creation."""
    task_lists: list[str]
    """The task lists that it is restricted to; empty: all."""
    created_by: str
    created_at: Instant
    expires_at: Instant | None
    ended_at: Instant | None


class TokenCreated(Token, frozen=True):
    """A new token with its secret, which is shown only once."""

    secret: str

    def __repr__(self) -> str:
        return f"TokenCreated(id={self.id!r}, name={self.name!r}, secret=...)"


class TokenList(ApiRecord, frozen=True):
    """Tokens, newest first."""

    tokens: list[Token]


View(
    Token,
    columns=(
        "id",
        "name",
        "state",
        Column("scopes", lambda token: token.scopes or "encoded"),
        Column("lists", lambda token: token.task_lists or "all"),
        Column("made", "created_at"),
        Column("by", "created_by"),
        "expires_at",
    ),
    brief=("id", "name", "state", "scopes", "expires_at"),
    empty="No tokens.",
    changed="Token {name} ({id}) is {state}.",
)


class TokensApi(Protocol):
    """Tokens. Creating one takes no `Idempotency-Key`: responses with a secret are not stored, and names are unique."""

    @contract.get("/tokens", Scope.ADMIN)
    async def list(self, *, every: Annotated[bool, Doc("Include expired and revoked tokens")] = False) -> TokenList:
        """Tokens, newest first, without secrets."""

    @contract.post("/tokens", Scope.ADMIN, status=201)
    async def create(
        self,
        name: Annotated[str, Doc("The actor recorded in the log: 1 to 100 printable characters without spaces", "ci")],
        scopes: Annotated[
            Sequence[str],
            Doc("At least one of `read`, `enqueue`, `work`, `approve`, `operate`, `publish`, `register`, `admin`", ["read"]),
        ],
        *,
        expires: Annotated[float | None, Doc("Lifetime in seconds; null: until it is revoked", 86_400)] = None,
        task_lists: Annotated[
            Sequence[str], Doc("Restrict the token to these task lists; empty: all. Not with the scope `admin`")
        ] = (),
    ) -> TokenCreated:
        """Create a token; the response contains its secret, which cannot be shown again."""

    @contract.delete("/tokens/{token}", Scope.ADMIN)
    async def revoke(
        self, token: Annotated[str, Doc("The token's id, or its name", "01935b8e-7c3a-7000-8000-000000000000")]
    ) -> Token:
        """Revoke a token and the sessions opened with it; running servers follow within 5 seconds."""
