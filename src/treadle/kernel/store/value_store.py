"""Storage of values: small ones in their rows as JSON text, attributes over 8 KiB once each, under their digest.

A stored text that starts with `@` is not plain JSON. `@refs:` is an object with references to attributes that are stored
apart (`{"@blob": digest, "size": n, "list": whether it is a list}`); `@code:NAME:` is any of these texts after the codec.
Plain JSON never starts with `@`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from treadle.kernel.store.ports import Store
from treadle.kernel.store.units import Finish, PutBlob
from treadle.model.errors import TreadleError, UnreadableValue
from treadle.model.tasks import Task
from treadle.model.values import (
    CODEC_MARK,
    MEASURED,
    PAYLOAD_LIMIT,
    BlobRef,
    Json,
    decode,
    decode_object,
    encode,
    foreign_value,
    unreadable_json,
)

BIG = 8 * 1024
"""The length of JSON text above which an attribute's value is stored once, apart from the row."""

_CACHE_LIMIT = 64 * 1024 * 1024
_quick = msgspec.json.Encoder().encode


class ValueLost(TreadleError, code="value_lost"):
    """A large value that a row refers to is not in the store."""


class Codec(Protocol):
    """Encodes stored text, for compression or encryption at rest."""

    name: str

    def encode(self, text: str) -> str:
        """Return the text to store."""

    def decode(self, stored: str) -> str:
        """Return the text that was given to `encode`; raises for any other input."""


class Folded(NamedTuple):
    """Attributes with references to large values, the large values to store, and their plain values by digest."""

    attributes: dict[str, Json]
    blobs: tuple[PutBlob, ...]
    values: dict[str, Json]


def encode_text(text: str, codec: Codec) -> str:
    """Return the text encoded with the codec."""
    return f"{CODEC_MARK}{codec.name}:{codec.encode(text)}"


class ValueStore:
    """Packs JSON objects for storage and unpacks them; caches recently read large values in memory."""

    def __init__(self, store: Store, codec: Codec | None = None) -> None:
        self._store = store
        self._codec = codec
        self._cache: OrderedDict[str, tuple[Json, int]] = OrderedDict()
        self._cached = 0

    @property
    def has_codec(self) -> bool:
        """Whether a codec encodes stored values."""
        return self._codec is not None

    def pack(
        self, attributes: dict[str, Json], root_id: str, what: str = "payload", limit: int = PAYLOAD_LIMIT
    ) -> tuple[str, tuple[PutBlob, ...]]:
        """Return the text to store in a row, and the large values to store beside it for the tree `root_id`.

        A `BlobRef` among the attributes stays a reference to a stored value.
        """
        referring = any(isinstance(value, BlobRef) for value in attributes.values())
        text = "" if referring else encode(attributes, what, limit)
        if len(text) <= BIG and not referring:
            return self.encode_text(text), ()
        packed: dict[str, Json] = {}
        blobs = []
        for name, value in attributes.items():
            if isinstance(value, BlobRef):
                packed[name] = ref_json(value)
                continue
            one = encode(value, what, limit)
            if len(one) > BIG:
                blobs.append(self.pack_blob(one, root_id))
                packed[name] = ref_json(BlobRef(blobs[-1].digest, len(one), isinstance(value, list)))
            else:
                packed[name] = wrapped(value)
        if not blobs and not referring:
            return self.encode_text(text), ()
        return self.encode_text(f"@refs:{encode(packed, what, 2 * limit)}"), tuple(blobs)

    def pack_known(
        self, attributes: dict[str, Json], root_id: str, what: str = "payload", limit: int = PAYLOAD_LIMIT
    ) -> tuple[str, tuple[PutBlob, ...]]:
        """Pack attributes made of values that were packed or checked before: faster than `pack` for small ones."""
        text = small_text(attributes)
        return self.pack(attributes, root_id, what, limit) if text is None else (self.encode_text(text), ())

    def fold(self, attributes: dict[str, Json], root_id: str, what: str = "value") -> Folded:
        """Replace large attributes by references; return also the values to store."""
        folded: dict[str, Json] = {}
        blobs: list[PutBlob] = []
        values: dict[str, Json] = {}
        for name, value in attributes.items():
            if may_be_big(value):
                text = encode(value, what, MEASURED)
                if len(text) > BIG:
                    blob = self.pack_blob(text, root_id)
                    blobs.append(blob)
                    values[blob.digest] = value
                    value = BlobRef(blob.digest, len(text), isinstance(value, list))
            folded[name] = value
        return Folded(folded if blobs else attributes, tuple(blobs), values)

    def pack_end(self, finish: Finish, root_id: str) -> tuple[Finish, tuple[PutBlob, ...]]:
        """Return the end of a task with its result, given as plain JSON, packed for storage."""
        if finish.result is None or (len(finish.result) <= BIG and self._codec is None):
            return finish, ()
        result, blobs = self.pack(decode(finish.result), root_id, "result", MEASURED)
        return msgspec.structs.replace(finish, result=result), blobs

    def pack_blob(self, text: str, root_id: str) -> PutBlob:
        """Return the row for one large value."""
        return PutBlob(self.digest(text), self.encode_text(text), root_id)

    @staticmethod
    def digest(text: str) -> str:
        """Return the key of a large value, which depends on its content alone."""
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    async def unpack(self, text: str | None) -> dict[str, Json]:
        """Return the object that was packed; {} for None."""
        attributes = self.unfold(text)
        wanted = [value.digest for value in attributes.values() if isinstance(value, BlobRef)]
        if not wanted:
            return attributes
        large_values = await self.load(wanted)
        return {name: large_values[value.digest] if isinstance(value, BlobRef) else value for name, value in attributes.items()}

    def unfold(self, text: str | None) -> dict[str, Json]:
        """Return the object that was packed, with references to values that are stored apart; {} for None."""
        if text is None:
            return {}
        text = self.plain(text)
        if not text.startswith("@refs:"):
            return decode_object(text)
        return {name: unwrapped(value) for name, value in decode_object(text[6:]).items()}

    def same(self, one: str, other: str) -> bool:
        """Whether two packed objects are equal as JSON, whatever the order of their keys and the codec; reads no large values."""
        return self._canonical(one) == self._canonical(other)

    def _canonical(self, text: str) -> bytes:
        """Return one form of an object, whether or not its large values are stored apart."""
        packed = self.pack(self.unfold(text), "", limit=MEASURED)[0]
        return msgspec.json.encode(msgspec.to_builtins(self.unfold(packed)), order="deterministic")

    async def unpack_text(self, text: str) -> str:
        """Return the object that was packed, as plain JSON text."""
        return encode(await self.unpack(text), "value", MEASURED)

    async def unpack_task(self, task: Task) -> Task:
        """Replace stored references in the task's payload and result by their JSON; an unreadable value becomes an error."""
        for name in ("payload", "result"):
            stored = getattr(task, name)
            if stored is not None and stored.startswith("@"):
                try:
                    unpacked = await self.unpack_text(stored)
                except (UnreadableValue, ValueLost) as error:
                    unpacked = encode(unreadable_json(error))
                setattr(task, name, unpacked)
        return task

    async def load(self, digests: Sequence[str]) -> dict[str, Json]:
        """Return the large values with those digests; raises `ValueLost` if one is missing."""
        missing = [digest for digest in dict.fromkeys(digests) if digest not in self._cache]
        values: dict[str, Json] = {}
        if missing:
            for digest, stored in (await self._store.runs.find_blobs(missing)).items():
                text = self.plain(stored)
                values[digest] = decode(text)
                self._remember(digest, values[digest], len(text))
        for digest in digests:
            if digest in self._cache:
                self._cache.move_to_end(digest)
                values[digest] = self._cache[digest][0]
        if lost := [digest for digest in digests if digest not in values]:
            raise ValueLost(f"The large value {lost[0]} is no longer in the store, because its tree was pruned.")
        return values

    def _remember(self, digest: str, value: Json, size: int) -> None:
        self._cache[digest] = (value, size)
        self._cached += size
        while self._cached > _CACHE_LIMIT and len(self._cache) > 1:
            self._cached -= self._cache.popitem(last=False)[1][1]

    def encode_text(self, text: str) -> str:
        """Return the text to store, encoded if there is a codec."""
        return text if self._codec is None else encode_text(text, self._codec)

    def is_foreign(self, text: str) -> bool:
        """Return whether the text was encoded by a codec that this process does not have."""
        return text.startswith(CODEC_MARK) and (self._codec is None or not text.startswith(f"{CODEC_MARK}{self._codec.name}:"))

    def plain(self, text: str) -> str:
        """Return the decoded text."""
        if not text.startswith(CODEC_MARK):
            return text
        if self._codec is None or self.is_foreign(text):
            raise foreign_value(text)
        name = self._codec.name
        try:
            return self._codec.decode(text[len(CODEC_MARK) + len(name) + 1 :])
        except Exception as error:
            raise UnreadableValue(f"The codec {name!r} cannot read a stored value: {error}") from error


def small_text(value: object) -> str | None:
    """Return the JSON text of an object made of values that were packed or checked before; None if it needs a closer look.

    It does for large values, references or objects that look like one, U+0000, and null, which may have been a NaN.
    """
    try:
        text = _quick(value).decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    if len(text) > BIG or "null" in text or '"digest":' in text:
        return None
    odd = ("@" in text and '"@' in text) or ("\\" in text and "\\u0000" in text)  # a single character is found much faster
    return None if odd else text


def may_be_big(value: Json) -> bool:
    """Whether to measure the value: not numbers, short strings, or references."""
    if isinstance(value, str):
        return len(value) > BIG // 6
    return isinstance(value, dict | list)


def ref_json(ref: BlobRef) -> dict[str, Json]:
    """Return the stored form of a reference."""
    stored: dict[str, Json] = {"@blob": ref.digest, "size": ref.size}
    return stored if ref.is_list is None else stored | {"list": ref.is_list}


def wrapped(value: Json) -> Json:
    """Return the stored form of a value: one that looks like a reference is wrapped, so that it is never mistaken for one."""
    return {"@value": value} if isinstance(value, dict) and ("@blob" in value or "@value" in value) else value


def unwrapped(value: Json) -> Json:
    """Return the value, or the reference, that was stored."""
    if isinstance(value, dict):
        if "@blob" in value:
            return _reference(value)
        if "@value" in value:
            return value["@value"]
    return value


def _reference(value: dict[str, Json]) -> BlobRef:
    digest, size = value["@blob"], value.get("size")
    if not isinstance(digest, str) or not isinstance(size, int):
        raise UnreadableValue("A stored reference to a large value cannot be read. It is damaged, or a newer version wrote it.")
    return BlobRef(digest, size, value.get("list"))
