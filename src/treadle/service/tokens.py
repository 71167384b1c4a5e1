"""Calls about tokens, on an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treadle.api.tokens import Token, TokenList, TokenMade, TokensApi
from treadle.model import access as model
from treadle.service.group import Group
from treadle.service.shaping import instant


class Tokens(Group, TokensApi):
    """See `TokensApi`."""

    async def list(self, *, every: bool = False) -> TokenList:
        return TokenList([Token(**_fields(each)) for each in await self.engine.tokens.list(ended=every)])

    async def create(
        self, name: str, scopes: Sequence[str], *, expires: float | None = None, task_lists: Sequence[str] = ()
    ) -> TokenMade:
        made = await self.engine.tokens.create(name, scopes, expires=expires, task_lists=task_lists, actor=self.actor)
        return TokenMade(**_fields(made.token), secret=made.secret)

    async def revoke(self, token: str) -> Token:
        return Token(**_fields(await self.engine.tokens.revoke(token, actor=self.actor)))


def _fields(token: model.Token) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "state": token.state,
        "scopes": [str(scope) for scope in token.scopes],
        "task_lists": list(token.task_lists),
        "created_by": token.created_by,
        "created_at": instant(token.created_at),
        "expires_at": instant(token.expires_at),
        "ended_at": instant(token.ended_at),
    }
