"""Requests with an idempotency key: the first is executed, and a repeated one gets the same response.

For requests without a key of their own in the kernel. The start of a request is stored before its execution, its response
afterwards: if a server dies in between, a repeated request is executed again after `STUCK_FOR`. So execution is at least once,
and exactly once while no server dies. Only responses of requests that created something are stored; otherwise the key becomes
free again. A key belongs to its caller and route, for `KEPT_FOR`; retention removes it later.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from treadle.kernel.record_service import RecordService
from treadle.kernel.store.committer import Stale
from treadle.kernel.store.records import ChangeRecord, PutRecord
from treadle.kernel.store.units import Unit, Verdict
from treadle.model.errors import IdempotencyKeyReused, InvalidInput, RequestInProgress, UnreadableValue
from treadle.model.ids import uuid7
from treadle.model.names import check_key
from treadle.model.records import Record
from treadle.model.states import REQUEST as MACHINE
from treadle.model.stored import Stored
from treadle.model.values import PAYLOAD_LIMIT

ENTITY = MACHINE.entity
KEPT_FOR = 7 * 86_400_000
"""Milliseconds for which a key stands for its response."""

STUCK_FOR = 60_000
"""Milliseconds after which an unfinished request counts as lost with its server."""

ANSWER_LIMIT = PAYLOAD_LIMIT // 2
"""Maximum size in bytes of a stored response."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A request to execute now, by the holder of this object."""

    record_id: str
    version: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """The response to the first request."""

    status: int
    body: bytes


class RequestDocument(Stored, frozen=True, kw_only=True):
    """The stored state of a request."""

    digest: str = ""
    begun_at: int = 0
    nonce: str = ""
    """Identifies one of several concurrent beginnings; empty: the key is free."""
    status: int | None = None
    answer: str | None = None
    """In base 64, because it may be binary."""


class Requests(RecordService[RequestDocument]):
    """The requests of one namespace."""

    machine = MACHINE
    document = RequestDocument

    def load(self, record: Record) -> RequestDocument:
        """Decode the document of a request."""
        try:
            return super().load(record)
        except UnreadableValue:
            raise InvalidInput(
                "The response under this idempotency key cannot be read: it is damaged, or this server does not have its codec."
            ) from None

    async def begin(self, actor: str, route: str, key: str, request: bytes) -> Begun | StoredAnswer:
        """Begin the request, or return the response to the earlier one.

        Raises `IdempotencyKeyReused` if the key belongs to another request, `RequestInProgress` while the earlier one runs.
        """
        check_key(key, "idempotency key")
        digest = hashlib.sha256(request).hexdigest()
        record_id = _id(self._namespace, actor, route, key)

        async def attempt() -> Begun | StoredAnswer:
            now = await self._store.now()
            mine = RequestDocument(digest=digest, begun_at=now, nonce=self._ids.new_id())
            record = await self._store.records.find(record_id)
            if record is None:
                await self._put(record_id, mine)
                record = await self._store.records.find(record_id)
                if record is not None and self.load(record).nonce == mine.nonce:
                    return Begun(record_id, record.version, digest)
                raise Stale
            document = self.load(record)
            if document.nonce and document.begun_at + KEPT_FOR > now:
                if document.digest != digest:
                    raise IdempotencyKeyReused(key)
                if document.status is not None:
                    return StoredAnswer(document.status, base64.b64decode(document.answer or ""))
                if document.begun_at + STUCK_FOR > now:
                    raise RequestInProgress(key)
            if not await self._change(record_id, record.version, mine):
                raise Stale
            return Begun(record_id, record.version + 1, digest)

        return await self._committer.transact(attempt, f"begin the request with the key {key}")

    async def finish(self, begun: Begun, answer: StoredAnswer) -> None:
        """Store the response, unless the request was begun again meanwhile. A response that is too large frees the key."""
        if len(answer.body) > ANSWER_LIMIT:
            await self.forget(begun)
            return
        text = base64.b64encode(answer.body).decode()
        document = RequestDocument(
            digest=begun.digest, begun_at=await self._store.now(), nonce="-", status=answer.status, answer=text
        )
        await self._change(begun.record_id, begun.version, document)

    async def forget(self, begun: Begun) -> None:
        """Free the key, because nothing was created."""
        await self._change(begun.record_id, begun.version, RequestDocument())

    async def _put(self, record_id: str, document: RequestDocument) -> None:
        """Store a new record. It counts as ended, so that only its age keeps it from being pruned."""
        text = self.save(document)
        record = Record(id=record_id, namespace=self._namespace, entity=ENTITY, state=MACHINE.initial, document=text)
        await self.operate(Unit(rows=(PutRecord(record), ChangeRecord(record_id, 0, text, ended=True))))

    async def _change(self, record_id: str, version: int, document: RequestDocument) -> bool:
        change = ChangeRecord(record_id, version, self.save(document), ended=True)
        answer = await self._committer.submit(Unit(rows=(change,)), self._patience)
        return answer.verdict is Verdict.DONE


def _id(*parts: str) -> str:
    """Return the record id, derived from caller, route and key."""
    return uuid7(0, hashlib.sha256("\0".join(parts).encode()).digest())
