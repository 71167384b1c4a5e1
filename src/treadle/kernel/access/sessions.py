"""Sessions: a person presents a token once, and a cookie from then on. A session ends with its token, on logout, or by expiry.

Like a token's, only the digest of a cookie's secret is stored. The CSRF token is derived from that secret and stored nowhere.
Sessions are unusable as soon as they expire; `open` records the end of a few expired ones each time, and retention prunes them
like all records without a tree: the table never has many more than a month's sessions.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field, replace

import msgspec

from treadle.kernel.access.credentials import Credential, RecentRecords, find_shown, fits, new_credential, read_credential
from treadle.kernel.access.tokens import Tokens
from treadle.kernel.queue.service import PATIENCE
from treadle.kernel.store.committer import Committer, Stale
from treadle.kernel.store.ports import Store
from treadle.kernel.store.process import reach
from treadle.kernel.store.records import ChangeRecord, PutRecord, RecordFilter
from treadle.kernel.store.units import Unit, Verdict
from treadle.model.access import Access
from treadle.model.clock import Clock, Duration, milliseconds
from treadle.model.errors import Unauthorized, UnreadableValue
from treadle.model.ids import Ids, uuid7
from treadle.model.names import DEFAULT_NAMESPACE
from treadle.model.records import Record
from treadle.model.states import SESSION as MACHINE
from treadle.model.stored import Stored, plain, read
from treadle.model.values import encode

ENTITY = MACHINE.entity
PREFIX = "tds"
NEW, OPENED = "new", "open"
SESSION_FOR = 12 * 3600
"""Default maximum duration of a session in seconds."""

_ENDED_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A new session: its cookie, which is returned only once, and its access."""

    cookie: str = field(repr=False)
    csrf: str = field(repr=False)
    access: Access


@dataclass(frozen=True, slots=True)
class SessionAccess:
    """The access of a cookie, and the CSRF token that every change must carry."""

    access: Access
    csrf: str = field(repr=False)

    def accepts(self, csrf: str) -> bool:
        """Return whether this is the session's CSRF token, in constant time."""
        return hmac.compare_digest(csrf.encode("utf-8", "surrogatepass"), self.csrf.encode())


class SessionBody(Stored, frozen=True, kw_only=True):
    """The stored state of a session; the digest is removed when it ends."""

    token_id: str = ""
    actor: str = ""
    expires_at: int = 0
    digest: str | None = None

    def __repr__(self) -> str:
        return "SessionBody(...)"


class Sessions:
    """The sessions of one namespace, on top of its tokens."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        ids: Ids,
        clock: Clock,
        tokens: Tokens,
        *,
        lasts: Duration = SESSION_FOR,
        namespace: str = DEFAULT_NAMESPACE,
        patience: float = PATIENCE,
    ) -> None:
        self._store = store
        self._committer = committer
        self._ids = ids
        self._tokens = tokens
        self._lasts_for = milliseconds(lasts, "lasts", positive=True)
        self._namespace = namespace
        self._patience = patience
        self._recent = RecentRecords(store, clock, ENTITY, namespace)

    async def open(self, secret: str) -> OpenedSession:
        """Open a session for the bearer of a token's secret, or raise `Unauthorized`."""
        access = await self._tokens.find_access(secret)
        now = await self._store.now()
        await self._end_expired(now)
        expires_at = min(now + self._lasts_for, access.expires_at or now + self._lasts_for)
        credential = new_credential(self._ids.new_id(), self._ids.secret())
        body = _save(
            SessionBody(token_id=access.token_id or "", actor=access.actor, expires_at=expires_at, digest=credential.digest())
        )
        record = Record(id=credential.record_id, namespace=self._namespace, entity=ENTITY, state=NEW, body=body)
        data = encode({"token_id": access.token_id})
        opened = ChangeRecord(record.id, 0, body, "open", NEW, OPENED, actor=access.actor, data=data)
        reach("operate.before_commit")
        await self._committer.submit(Unit(rows=(PutRecord(record), opened)), self._patience)
        reach("operate.after_commit")
        access = replace(access, session_id=record.id, expires_at=expires_at)
        return OpenedSession(credential.text(PREFIX), _csrf(credential), access)

    async def find(self, cookie: str) -> SessionAccess:
        """Return the current access of a cookie, or raise `Unauthorized` with a message that does not reveal the reason."""
        shown = await find_shown(PREFIX, cookie, self._recent, lambda record: _load(record).digest)
        record, body = shown.record, _load(shown.record)
        if record.state != OPENED:
            raise Unauthorized(record.state)
        if not shown.known:
            raise Unauthorized("wrong")
        if body.expires_at <= shown.now:
            raise Unauthorized("expired")
        access = await self._tokens.find_access_of(body.token_id)
        return SessionAccess(replace(access, session_id=record.id, expires_at=body.expires_at), _csrf(shown.credential))

    async def check_open(self, session_id: str) -> None:
        """Raise `Unauthorized` if the session has ended, bypassing the cache."""
        found = await self._recent.find(session_id, afresh=True)
        if found is None or found[0].state != OPENED or _load(found[0]).expires_at <= found[1]:
            raise Unauthorized("closed")

    async def close(self, cookie: str) -> None:
        """End the session of that cookie. Idempotent; an unknown cookie is a no-op."""
        shown = read_credential(PREFIX, cookie)

        async def attempt() -> None:
            record = None if shown is None else await self._store.records.find(shown.record_id)
            if record is not None and (record.entity, record.namespace) != (ENTITY, self._namespace):
                record = None
            if not fits(shown, None if record is None else _load(record).digest) or record is None or record.state != OPENED:
                return
            if not await self._end(record, "close"):
                raise Stale

        await self._committer.transact(attempt, "close the session")

    async def _end_expired(self, now: int) -> None:
        """Record the end of some expired sessions: those that began longer ago than a session lasts."""
        oldest_live = uuid7(max(now - self._lasts_for, 0), bytes(10))
        which = RecordFilter(ENTITY, self._namespace, live=True, before_id=oldest_live)
        for record in await self._store.records.list_matching(which, _ENDED_AT_ONCE):
            if _load(record).expires_at <= now:
                await self._end(record, "expire")

    async def _end(self, record: Record, move: str) -> bool:
        """Return whether it was done: not if the record has changed since it was read."""
        body = _load(record)
        target = MACHINE.moves[(OPENED, move)]
        actor = body.actor if move == "close" else None
        kept = _save(msgspec.structs.replace(body, digest=None))
        change = ChangeRecord(record.id, record.version, kept, move, OPENED, target, ended=True, actor=actor)
        answer = await self._committer.submit(Unit(rows=(change,)), self._patience)
        self._recent.forget(record.id)
        return answer.verdict is Verdict.DONE


def _load(record: Record) -> SessionBody:
    """Decode the body; if it cannot be read here, return one that fits no cookie."""
    try:
        return read(SessionBody, record.body)
    except UnreadableValue:
        return SessionBody()


def _save(body: SessionBody) -> str:
    return encode(plain(body), "session")


def _csrf(credential: Credential) -> str:
    return credential.derived("treadle csrf")
