"""Sessions: a person presents a token once, and a cookie from then on. A session ends with its token, on logout, or by expiry.

Like a token's, only the digest of a cookie's secret is stored. The CSRF token is derived from that secret and stored nowhere.
Sessions are unusable as soon as they expire; `open` records the end of a few expired ones each time, and retention prunes them
like all records without a tree: the table never has many more than a month's sessions.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field, replace

from treadle.kernel.access.credentials import (
    Credential,
    CredentialDocument,
    CredentialService,
    fits,
    new_credential,
    read_credential,
)
from treadle.kernel.access.tokens import Tokens
from treadle.kernel.core import Core
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.records import RecordFilter
from treadle.model.access import Access
from treadle.model.errors import Unauthorized
from treadle.model.ids import uuid7
from treadle.model.states import SESSION as MACHINE

ENTITY = MACHINE.entity
PREFIX = "tds"
OPENED = "open"
SESSION_FOR = 12 * 3_600_000
"""Maximum duration of a session in milliseconds."""

_ENDED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class SessionAccess:
    """The access of a cookie, and the CSRF token that every change must carry."""

    access: Access
    csrf: str = field(repr=False)

    def accepts(self, csrf: str) -> bool:
        """Return whether this is the session's CSRF token, in constant time."""
        return hmac.compare_digest(csrf.encode("utf-8", "surrogatepass"), self.csrf.encode())


@dataclass(frozen=True, slots=True)
class OpenedSession(SessionAccess):
    """A new session: its access and its cookie, which is returned only once."""

    cookie: str = field(repr=False)


class SessionDocument(CredentialDocument, frozen=True, kw_only=True):
    """The stored state of a session."""

    token_id: str = ""
    actor: str = ""
    expires_at: int = 0


class Sessions(CredentialService[SessionDocument]):
    """The sessions of one namespace, on top of its tokens."""

    machine = MACHINE
    document = SessionDocument
    prefix = PREFIX

    def __init__(self, core: Core, tokens: Tokens) -> None:
        super().__init__(core)
        self._tokens = tokens

    async def open(self, secret: str) -> OpenedSession:
        """Open a session for the bearer of a token's secret, or raise `Unauthorized`."""
        access = await self._tokens.find_access(secret)
        now = await self._store.now()
        await self._end_expired(now)
        expires_at = min(now + SESSION_FOR, access.expires_at or now + SESSION_FOR)
        credential = new_credential(self._ids.new_id(), self._ids.secret())
        document = SessionDocument(
            token_id=access.token_id or "", actor=access.actor, expires_at=expires_at, digest=credential.digest()
        )
        await self.put(credential, document, "open", access.actor, {"token_id": access.token_id})
        access = replace(access, session_id=credential.record_id, expires_at=expires_at)
        return OpenedSession(access, _csrf(credential), credential.text(PREFIX))

    async def find(self, cookie: str) -> SessionAccess:
        """Return the current access of a cookie, or raise `Unauthorized` with a message that does not reveal the reason."""
        presented = await self.find_shown(cookie)
        record, document = presented.record, self.load(presented.record)
        if record.state != OPENED:
            raise Unauthorized(record.state)
        if not presented.known:
            raise Unauthorized("wrong")
        if document.expires_at <= presented.now:
            raise Unauthorized("expired")
        access = await self._tokens.find_access_of(document.token_id)
        return SessionAccess(replace(access, session_id=record.id, expires_at=document.expires_at), _csrf(presented.credential))

    async def check_open(self, session_id: str) -> None:
        """Raise `Unauthorized` if the session has ended, bypassing the cache."""
        entry = await self.recent.find(session_id, afresh=True)
        if entry is None or entry[0].state != OPENED or self.load(entry[0]).expires_at <= entry[1]:
            raise Unauthorized("closed")

    async def close(self, cookie: str) -> None:
        """End the session of that cookie. Idempotent; an unknown cookie is a no-op."""
        credential = read_credential(PREFIX, cookie)

        async def attempt() -> None:
            record = None if credential is None else await self._store.records.find(credential.record_id)
            if record is not None and (record.entity, record.namespace) != (ENTITY, self._namespace):
                record = None
            if (
                not fits(credential, None if record is None else self.load(record).digest)
                or record is None
                or record.state != OPENED
            ):
                return
            if not await self.end(record, "close", self.load(record).actor):
                raise Stale

        await self._committer.transact(attempt, "close the session")

    async def _end_expired(self, now: int) -> None:
        """Record the end of some expired sessions: those that began longer ago than a session lasts."""
        oldest_live = uuid7(max(now - SESSION_FOR, 0), bytes(10))
        which = RecordFilter(ENTITY, self._namespace, live=True, before_id=oldest_live)
        for record in await self._store.records.list_matching(which, _ENDED_AT_ONCE):
            if self.load(record).expires_at <= now:
                await self.end(record, "expire", None)


def _csrf(credential: Credential) -> str:
    return credential.derived("treadle csrf")
