"""What callers show: `<prefix>_<id>_<secret>`. The id finds the record; of the secret only a SHA-256 digest is stored.

A secret has 256 bits from the `Ids` port, so that a plain digest cannot be searched for. Digests are compared in constant time,
and compared too where there is nothing to compare with, so that a caller cannot tell by time which of its parts was wrong.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from treadle.kernel.store.ports import RecordStore
from treadle.model.clock import Clock
from treadle.model.errors import Unauthorized
from treadle.model.ids import parse_id
from treadle.model.records import Record

RECENT_FOR = 5.0
"""Seconds for which a record that was looked up is taken to be as it was."""

RECENT_COUNT = 1024
"""Records that are remembered at most."""

NO_DIGEST = "0" * 64
"""What a secret is compared with where there is no record: the digest of nothing that anybody knows."""

_SHAPE = re.compile(r"([a-z]{3})_([0-9a-f]{32})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True, slots=True)
class Credential:
    """What was shown, taken apart; the secret is in no `repr`."""

    record_id: str
    secret: str = field(repr=False)

    def text(self, prefix: str) -> str:
        """As it is shown."""
        return f"{prefix}_{self.record_id.replace('-', '')}_{self.secret}"

    def digest(self) -> str:
        """What is stored of the secret."""
        return hashlib.sha256(self.secret.encode()).hexdigest()

    def derived(self, purpose: str) -> str:
        """Another secret that only who knows this one can make, and that tells nothing about it."""
        return _text(hmac.digest(self.secret.encode(), purpose.encode(), "sha256"))


def new_credential(record_id: str, secret: bytes) -> Credential:
    """For a new record."""
    return Credential(record_id, _text(secret))


def read_credential(prefix: str, shown: str) -> Credential | None:
    """What was shown taken apart, or None where it has not that shape."""
    match = _SHAPE.fullmatch(shown) if isinstance(shown, str) else None
    if match is None or match[1] != prefix:
        return None
    return Credential(parse_id(match[2]), match[3])


def fits(shown: Credential | None, digest: str | None) -> bool:
    """Whether the digest is that of the secret; takes the same time whatever is missing or wrong."""
    given = (shown or Credential("", "")).digest()
    same = hmac.compare_digest(given, digest or NO_DIGEST)
    return same and shown is not None and digest is not None


def _text(secret: bytes) -> str:
    return base64.urlsafe_b64encode(secret).rstrip(b"=").decode()


class _Noted(NamedTuple):
    record: Record
    now: int
    since: float


class RecentRecords:
    """Records of one entity by id, looked up at most once in `RECENT_FOR`, so that a busy server need not ask at every request.

    What is changed elsewhere is seen that much later; whoever changes one here says so with `forget`.
    """

    def __init__(self, store: RecordStore, clock: Clock, entity: str, namespace: str) -> None:
        self._store = store
        self._clock = clock
        self._entity = entity
        self._namespace = namespace
        self._noted: dict[str, _Noted] = {}
        self._changes = 0

    async def find(self, record_id: str, *, afresh: bool = False) -> tuple[Record, int] | None:
        """The record and the store's time, or None if there is none such in the namespace (which is not remembered)."""
        since = self._clock.monotonic()
        noted = self._noted.get(record_id)
        if not afresh and noted is not None and since - noted.since < RECENT_FOR:
            return noted.record, noted.now + round((since - noted.since) * 1000)
        changes = self._changes
        record = await self._store.find_record(record_id)
        if record is None or (record.entity, record.namespace) != (self._entity, self._namespace):
            self._noted.pop(record_id, None)
            return None
        now = await self._store.now()
        if changes == self._changes:  # else what was read may be what was changed just now
            self._note(record_id, _Noted(record, now, since))
        return record, now

    def forget(self, record_id: str) -> None:
        """It was changed by this process: look it up again when it is next asked for."""
        self._changes += 1
        self._noted.pop(record_id, None)

    def _note(self, record_id: str, noted: _Noted) -> None:
        self._noted.pop(record_id, None)  # so that the oldest stay in front
        self._noted[record_id] = noted
        while len(self._noted) > RECENT_COUNT:
            del self._noted[next(iter(self._noted))]


class Shown(NamedTuple):
    """What was shown, the record that it names, the store's time, and whether the secret is that record's."""

    credential: Credential
    record: Record
    now: int
    known: bool


async def find_shown(prefix: str, text: str, recent: RecentRecords, digest_of: Callable[[Record], str | None]) -> Shown:
    """What was shown and its record, or `Unauthorized`; whatever is wrong, the secret is compared first."""
    credential = read_credential(prefix, text)
    found = None if credential is None else await recent.find(credential.record_id)
    known = fits(credential, None if found is None else digest_of(found[0]))
    if credential is None:
        raise Unauthorized("malformed" if text else "missing")
    if found is None:
        raise Unauthorized("unknown")
    return Shown(credential, *found, known)
