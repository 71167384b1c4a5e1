"""Credentials of callers: `<prefix>_<id>_<secret>`. The id finds the record, which has only a SHA-256 digest of the secret.

A secret has 256 bits from the `Ids` port, so its digest cannot be brute-forced. Digests are compared in constant time, even if
there is no record to compare with, so response times do not reveal which part was wrong.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple, TypeVar, cast

import msgspec

from treadle.kernel.core import Core, Service
from treadle.kernel.record_service import RecordService
from treadle.kernel.store.records import ChangeRecord, PutRecord
from treadle.kernel.store.units import Unit, UnitAnswer, Verdict
from treadle.model.errors import Unauthorized, UnreadableValue
from treadle.model.records import Record
from treadle.model.stored import Stored, read
from treadle.model.values import Json, encode

RECENT_FOR = 5.0
"""Seconds for which a record is cached."""

RECENT_COUNT = 1024
"""Maximum number of cached records."""

NO_DIGEST = "0" * 64
"""The digest to compare with if there is no record: no known secret has it."""

_SHAPE = re.compile(r"([a-z]{3})_([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Credential:
    """The parts of a credential; `repr` omits the secret."""

    record_id: str
    secret: str = field(repr=False)

    def text(self, prefix: str) -> str:
        """Return the credential as callers present it."""
        return f"{prefix}_{self.record_id.replace('-', '')}_{self.secret}"

    def digest(self) -> str:
        """Return the stored digest of the secret."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def derived(self, purpose: str) -> str:
        """Derive another secret, which only the holder of this one can compute and which reveals nothing about it."""
        return _text(hmac.digest(self.secret.encode(), purpose.encode(), "sha256"))


def new_credential(record_id: str, secret: bytes) -> Credential:
    """Return the credential of a new record."""
    return Credential(record_id, _text(secret))


def read_credential(prefix: str, shown: str) -> Credential | None:
    """Parse a credential; return None if it is malformed."""
    match = _SHAPE.fullmatch(shown) if isinstance(shown, str) else None
    if match is None or match[1] != prefix:
        return None
    _, *record_id, secret = match.groups()
    return Credential("-".join(record_id), secret)


def fits(credential: Credential | None, digest: str | None) -> bool:
    """Return whether the digest belongs to the secret, in constant time even if one of them is missing."""
    presented = (credential or Credential("", "")).digest()
    same = hmac.compare_digest(presented, digest or NO_DIGEST)
    return same and credential is not None and digest is not None


def _text(secret: bytes) -> str:
    return base64.urlsafe_b64encode(secret).rstrip(b"=").decode()


class RecentRecords(Service):
    """Records of one entity by id, cached for `RECENT_FOR`, so that a busy server does not read them on every request.

    Changes by other processes become visible after that time; this process calls `forget` for its own.
    """

    def __init__(self, core: Core, entity: str) -> None:
        super().__init__(core)
        self._entity = entity
        self._noted: dict[str, tuple[Record, int, float]] = {}
        """Records, the store's time when they were read, and the process's time then."""
        self._changes = 0

    async def find(self, record_id: str, *, afresh: bool = False) -> tuple[Record, int] | None:
        """Return the record and the store's time, or None if the namespace has no such record (which is not cached)."""
        since = self._clock.monotonic()
        record, read_at, read_since = self._noted.get(record_id, (None, 0, 0.0))
        if not afresh and record is not None and since - read_since < RECENT_FOR:
            return record, read_at + round((since - read_since) * 1000)
        changes = self._changes
        record = await self._store.records.find(record_id)
        if record is None or (record.entity, record.namespace) != (self._entity, self._namespace):
            self._noted.pop(record_id, None)
            return None
        now = await self._store.now()
        if changes == self._changes:  # else a concurrent change may have made the read out of date
            self._noted.pop(record_id, None)  # keeps the oldest first
            self._noted[record_id] = record, now, since
            while len(self._noted) > RECENT_COUNT:
                del self._noted[next(iter(self._noted))]
        return record, now

    def forget(self, record_id: str) -> None:
        """Drop a record that this process has changed from the cache."""
        self._changes += 1
        self._noted.pop(record_id, None)


class Shown(NamedTuple):
    """A presented credential, its record, the store's time, and whether the secret is the record's."""

    credential: Credential
    record: Record
    now: int
    known: bool


class CredentialDocument(Stored, frozen=True, kw_only=True):
    """The stored state of a credential; the digest is removed when it ends."""

    digest: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(...)"


C = TypeVar("C", bound=CredentialDocument)


@lru_cache(maxsize=RECENT_COUNT)
def _decode(kind: type[C], text: str) -> C:
    try:
        return read(kind, text)
    except UnreadableValue:
        return kind()


def load_document(kind: type[C], record: Record) -> C:
    """Decode a document (a busy server reads the same few with every request); one that cannot be read fits no secret."""
    return cast(C, _decode(kind, record.document))


class CredentialService(RecordService[C]):
    """Records that are found by a credential, which only their callers have."""

    prefix: ClassVar[str]

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.recent = RecentRecords(core, self.machine.entity)

    def load(self, record: Record) -> C:
        """Decode the document of a record; one that cannot be read fits no secret and grants nothing."""
        document: C = load_document(self.document, record)
        return document

    async def find_shown(self, text: str) -> Shown:
        """Find the record of a credential, or raise `Unauthorized`; the secret is always compared first."""
        credential = read_credential(self.prefix, text)
        match = None if credential is None else await self.recent.find(credential.record_id)
        matches = fits(credential, None if match is None else self.load(match[0]).digest)
        if credential is None:
            raise Unauthorized("malformed" if text else "missing")
        if match is None:
            raise Unauthorized("unknown")
        return Shown(credential, *match, matches)

    async def put(
        self, credential: Credential, document: C, transition: str, actor: str, data: Json, name: str | None = None
    ) -> UnitAnswer:
        """Store the new record of a credential, which that transition makes valid."""
        text, state = self.save(document), self.machine.initial
        record = Record(
            id=credential.record_id, namespace=self._namespace, entity=self.machine.entity, name=name, state=state, document=text
        )
        to_state = self.machine.transitions[state, transition]
        change = ChangeRecord(record.id, 0, text, transition, state, to_state, actor=actor, data=encode(data))
        return await self.operate(Unit(rows=(PutRecord(record), change)))

    async def end(self, record: Record, transition: str, actor: str | None) -> bool:
        """End the credential and remove its digest; return whether it was done: not if the record has changed since."""
        text = self.save(msgspec.structs.replace(self.load(record), digest=None))
        state = self.machine.transitions[record.state, transition]
        change = ChangeRecord(record.id, record.version, text, transition, record.state, state, ended=True, actor=actor)
        answer = await self.operate(Unit(rows=(change,)))
        self.recent.forget(record.id)
        return answer.verdict is Verdict.DONE
