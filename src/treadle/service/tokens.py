"""Calls about tokens, on an engine."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.api.tokens import Token, TokenCreated, TokenList, TokensApi
from treadle.api.wire import record_of
from treadle.service.group import Group


class Tokens(Group, TokensApi):
    """See `TokensApi`."""

    async def list(self, *, every: bool = False) -> TokenList:
        return TokenList([record_of(Token, each) for each in await self.engine.kernel.tokens.list(ended=every)])

    async def create(
        self, name: str, scopes: Sequence[str], *, expires: float | None = None, task_lists: Sequence[str] = ()
    ) -> TokenCreated:
        made = await self.engine.kernel.tokens.create(name, scopes, expires=expires, task_lists=task_lists, actor=self.actor)
        return record_of(TokenCreated, made.token, secret=made.secret)

    async def revoke(self, token: str) -> Token:
        return record_of(Token, await self.engine.kernel.tokens.revoke(token, actor=self.actor))
