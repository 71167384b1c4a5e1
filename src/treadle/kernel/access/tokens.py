"""Tokens: created, listed and revoked by operators, each a transition in the log with its actor; and found by their secret.

`create` returns the secret once, and it is never stored; only the record's document has its digest. Expiry is checked against the
store's time at each use. A token revoked by this process is refused immediately, one revoked by another process within
`RECENT_FOR` seconds. Ended tokens are kept for a month, like all records without a tree.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from functools import lru_cache

import msgspec

from treadle.api.tokens import Token, TokenCreated, TokenList
from treadle.api.wire import record_of
from treadle.kernel.access.credentials import (
    RECENT_COUNT,
    CredentialDocument,
    CredentialService,
    load_document,
    new_credential,
)
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.lookups import every_record
from treadle.kernel.store.records import RecordFilter
from treadle.model.access import ONCE_OPERATE, Access, Scope, check_token_name, granted, parse_scopes
from treadle.model.clock import Duration, as_text, milliseconds
from treadle.model.errors import InvalidInput, Refused, Unauthorized
from treadle.model.names import check_key, check_name
from treadle.model.records import UNREADABLE, Record
from treadle.model.states import TOKEN as MACHINE

ENTITY = MACHINE.entity
PREFIX = "tdl"
NEW, ACTIVE, EXPIRED = "new", "active", "expired"


class TokenDocument(CredentialDocument, frozen=True, kw_only=True):
    """The stored state of a token."""

    scopes: tuple[Scope, ...] = ()
    task_lists: tuple[str, ...] = ()
    created_by: str = ""
    expires_at: int | None = None
    separate: bool = False
    """Whether `operate` excludes `approve` and `publish`; tokens of older versions include them."""


class Tokens(CredentialService[TokenDocument]):
    """The tokens of one namespace."""

    machine = MACHINE
    document = TokenDocument
    prefix = PREFIX

    # changes by operators

    async def create(
        self,
        name: str,
        scopes: Iterable[Scope | str],
        *,
        expires: Duration | None = None,
        task_lists: Iterable[str] = (),
        actor: str = "operator",
    ) -> TokenCreated:
        """Create a token; its name is the actor in the log. Raises `Refused` (`token_exists`) if a live token has the name.

        It is valid for `expires` (None: until revoked) and only for `task_lists`, if given. A token with `admin` cannot be
        restricted to lists: it could create another one that is not.
        """
        check_token_name(name)
        document = TokenDocument(
            scopes=parse_scopes(scopes),
            task_lists=_lists(task_lists),
            created_by=check_key(actor, "actor"),
            separate=True,
        )
        if document.task_lists and Scope.ADMIN in document.scopes:
            raise InvalidInput("A token with the scope admin cannot be restricted to task lists: it could create one that is not.")
        expires_for = None if expires is None else milliseconds(expires, "expires", positive=True)
        now = await self._store.now()
        await self._end_expired(now)
        credential = new_credential(self._ids.new_id(), self._ids.secret())
        document = msgspec.structs.replace(
            document, expires_at=None if expires_for is None else now + expires_for, digest=credential.digest()
        )
        data = {
            "name": name,
            "scopes": list(document.scopes),
            "task_lists": list(document.task_lists),
            "expires_at": as_text(document.expires_at),
        }
        answer = await self.put(credential, document, "create", actor, data, name)
        if name in answer.existing:
            raise Refused(f"A token {name} already exists; revoke it first, or choose another name.", code="token_exists")
        return record_of(TokenCreated, await self.get(credential.record_id), secret=credential.text(PREFIX))

    async def revoke(self, token: str, *, actor: str = "operator") -> Token:
        """Revoke the token and the sessions opened with it; an ended token does not change."""
        check_key(actor, "actor")

        async def attempt() -> Token:
            record = await self.get_record(token, exact=True)
            if record.state != ACTIVE:
                return _shown(record, await self._store.now())
            if not await self.end(record, "revoke", actor):
                raise Stale
            return await self.get(record.id)

        return await self._committer.transact(attempt, f"revoke the token {token}")

    async def get(self, id_or_name: str) -> Token:
        """Return the live token of that name, or the token of that id; or raise `NotFound`."""
        return _shown(await self.get_record(id_or_name), await self._store.now())

    async def list(self, *, every: bool = False) -> TokenList:
        """Return the valid tokens, newest first; with `every` also expired and revoked ones."""
        now = await self._store.now()
        tokens = [_shown(record, now) async for record in self._records(live=None if every else True)]
        return TokenList([token for token in tokens if every or token.state in (ACTIVE, UNREADABLE)])

    async def any_live(self) -> bool:
        """Return whether a valid token exists: without one, nobody can use a server from another machine."""
        now = await self._store.now()
        async for record in self._records(live=True):
            if _state(record, _load(record), now) in (ACTIVE, UNREADABLE):
                return True
        return False

    # access by secret

    async def find_access(self, secret: str) -> Access:
        """Return the access of a secret, or raise `Unauthorized` with a message that does not reveal the reason."""
        presented = await self.find_shown(secret)
        access = _valid(presented.record, presented.now)
        if not presented.known:
            raise Unauthorized("wrong")
        return access

    async def find_access_of(self, token_id: str, *, afresh: bool = False) -> Access:
        """Return the current access of a known token, or raise `Unauthorized`. `afresh` bypasses the cache."""
        entry = await self.recent.find(token_id, afresh=afresh)
        if entry is None:
            raise Unauthorized("unknown")
        return _valid(*entry)

    # records

    def _records(self, *, live: bool | None) -> AsyncIterator[Record]:
        return every_record(self._store, RecordFilter(ENTITY, self._namespace, live=live))

    async def _end_expired(self, now: int) -> None:
        """Record the expiry of tokens, so that their names become free and retention prunes them."""
        for record in [record async for record in self._records(live=True)]:
            if _state(record, _load(record), now) == EXPIRED:
                await self.end(record, "expire", None)


def _load(record: Record) -> TokenDocument:
    return load_document(TokenDocument, record)


def _lists(task_lists: Iterable[str]) -> tuple[str, ...]:
    names = (task_lists,) if isinstance(task_lists, str) else task_lists
    return tuple(dict.fromkeys(check_name(name, "task list") for name in names))


def _shown(record: Record, now: int) -> Token:
    document = _load(record)
    return record_of(
        Token, record, document, name=record.name or "", state=_state(record, document, now), scopes=[*_scopes(document)]
    )


def _state(record: Record, document: TokenDocument, now: int) -> str:
    """The state of a token; it is expired even before the store records it."""
    expired = document.expires_at is not None and document.expires_at <= now
    return record.state if record.state != ACTIVE else UNREADABLE if not document.scopes else EXPIRED if expired else ACTIVE


def _scopes(document: TokenDocument) -> tuple[Scope, ...]:
    if document.separate or Scope.OPERATE not in document.scopes:
        return document.scopes
    return parse_scopes(ONCE_OPERATE.union(document.scopes))


def _valid(record: Record, now: int) -> Access:
    """Return the token's access, or raise `Unauthorized` unless it is active."""
    access = _access(record)
    if access is None or (access.expires_at is not None and access.expires_at <= now):
        raise Unauthorized(_state(record, _load(record), now))
    return access


@lru_cache(maxsize=RECENT_COUNT)
def _access(record: Record) -> Access | None:
    """The access that a token grants until it expires; None if it has ended, or cannot be read."""
    document = _load(record)
    if _state(record, document, 0) != ACTIVE:
        return None
    return Access(record.name or "", granted(_scopes(document)), document.task_lists, record.id, document.expires_at)
