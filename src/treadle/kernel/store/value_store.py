"""How values are kept: small ones in their rows as JSON text, attributes over 8 KiB once each, under their digest.

A stored text that starts with `@` is not plain JSON. `@refs:` is an object some of whose attributes stand elsewhere
(`{"@blob": digest, "size": n, "list": whether it is one}`); `@code:NAME:` is any of these texts after the codec. Plain JSON
never starts with `@`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import msgspec

from treadle.kernel.store.ports import RunStore
from treadle.kernel.store.units import Finish, PutBlob
from treadle.model.errors import TreadleError
from treadle.model.values import PAYLOAD_LIMIT, BlobRef, Json, decode, encode

BIG = 8 * 1024
"""Characters of JSON text from which on an attribute's value is stored once, apart from the row."""

AS_IT_IS = "@code::"
"""What stands before a text that is no JSON and begins like a sealed one: no codec has an empty name."""

_CACHE_LIMIT = 64 * 1024 * 1024
_quick = msgspec.json.Encoder().encode


class ValueLost(TreadleError):
    """A big value that a row refers to is not in the store."""

    code = "value_lost"


class UnreadableValue(TreadleError):
    """A value was written with a codec that this process does not have, or that does not accept it."""

    code = "unreadable_value"


class Codec(Protocol):
    """Turns stored text into something else and back: compression, encryption at rest."""

    name: str

    def encode(self, text: str) -> str:
        """The text as it is to be stored."""

    def decode(self, stored: str) -> str:
        """The text that was given to `encode`; raises for anything else."""


class Folded(NamedTuple):
    """Attributes with references for what is big; the big values to store, and what they are by digest."""

    attributes: dict[str, Json]
    blobs: tuple[PutBlob, ...]
    values: dict[str, Json]


def seal(text: str, codec: Codec) -> str:
    """The text as it is stored with that codec."""
    return f"@code:{codec.name}:{codec.encode(text)}"


class ValueStore:
    """Packs JSON objects for storing and unpacks them; keeps big values that were read lately in memory."""

    def __init__(self, store: RunStore, codec: Codec | None = None) -> None:
        self._store = store
        self._codec = codec
        self._cache: OrderedDict[str, tuple[Json, int]] = OrderedDict()
        self._cached = 0

    def pack(
        self, attributes: dict[str, Json], root_id: str, what: str = "payload", limit: int = PAYLOAD_LIMIT
    ) -> tuple[str, tuple[PutBlob, ...]]:
        """The text to store in a row, and the big values to store beside it for the tree `root_id`.

        A `BlobRef` among the attributes stays a reference to what is stored already.
        """
        referring = any(isinstance(value, BlobRef) for value in attributes.values())
        text = "" if referring else encode(attributes, what, limit)
        if len(text) <= BIG and not referring:
            return self.seal(text), ()
        kept: dict[str, Json] = {}
        blobs = []
        for name, value in attributes.items():
            if isinstance(value, BlobRef):
                kept[name] = ref_json(value)
                continue
            one = encode(value, what, limit)
            if len(one) > BIG:
                blobs.append(self.pack_blob(one, root_id))
                kept[name] = ref_json(BlobRef(blobs[-1].digest, len(one), isinstance(value, list)))
            else:
                kept[name] = wrapped(value)
        if not blobs and not referring:
            return self.seal(text), ()
        return self.seal(f"@refs:{encode(kept, what, 2 * limit)}"), tuple(blobs)

    def pack_known(
        self, attributes: dict[str, Json], root_id: str, what: str = "payload", limit: int = PAYLOAD_LIMIT
    ) -> tuple[str, tuple[PutBlob, ...]]:
        """The same as `pack`, for attributes made of values that were packed or checked before: faster where they are small."""
        text = small_text(attributes)
        return self.pack(attributes, root_id, what, limit) if text is None else (self.seal(text), ())

    def fold(self, attributes: dict[str, Json], root_id: str, what: str = "value") -> Folded:
        """The attributes with references for what is big, what to store for these, and what they stand for."""
        kept: dict[str, Json] = {}
        blobs: list[PutBlob] = []
        values: dict[str, Json] = {}
        for name, value in attributes.items():
            if may_be_big(value):
                text = encode(value, what, 2**31)
                if len(text) > BIG:
                    blob = self.pack_blob(text, root_id)
                    blobs.append(blob)
                    values[blob.digest] = value
                    value = BlobRef(blob.digest, len(text), isinstance(value, list))
            kept[name] = value
        return Folded(kept if blobs else attributes, tuple(blobs), values)

    def pack_end(self, finish: Finish, root_id: str) -> tuple[Finish, tuple[PutBlob, ...]]:
        """The end of a task with its result as it is stored; it comes with plain JSON."""
        if finish.result is None or (len(finish.result) <= BIG and self._codec is None):
            return finish, ()
        result, blobs = self.pack(decode(finish.result), root_id, "result", 2**31)
        return msgspec.structs.replace(finish, result=result), blobs

    def pack_blob(self, text: str, root_id: str) -> PutBlob:
        """One value apart, under its digest."""
        return PutBlob(self.digest(text), self.seal(text), root_id)

    @staticmethod
    def digest(text: str) -> str:
        """The name of a big value: what it is, not where it came from."""
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    async def unpack(self, text: str | None) -> dict[str, Json]:
        """The object that was packed; {} for None."""
        kept = self.unfold(text)
        wanted = [value.digest for value in kept.values() if isinstance(value, BlobRef)]
        if not wanted:
            return kept
        found = await self.load(wanted)
        return {name: found[value.digest] if isinstance(value, BlobRef) else value for name, value in kept.items()}

    def unfold(self, text: str | None) -> dict[str, Json]:
        """The object that was packed, with references for what stands elsewhere; {} for None."""
        if text is None:
            return {}
        text = self.plain(text)
        if not text.startswith("@refs:"):
            plain: dict[str, Json] = decode(text)
            return plain
        return {name: unwrapped(value) for name, value in decode(text[6:]).items()}

    async def open_text(self, text: str) -> str:
        """The object that was packed, as plain JSON text."""
        return encode(await self.unpack(text), "value", 2**31)

    async def load(self, digests: Sequence[str]) -> dict[str, Json]:
        """The big values of those digests; raises `ValueLost` if one is gone."""
        missing = [digest for digest in dict.fromkeys(digests) if digest not in self._cache]
        found: dict[str, Json] = {}
        if missing:
            for digest, stored in (await self._store.find_blobs(missing)).items():
                text = self.plain(stored)
                found[digest] = decode(text)
                self._remember(digest, found[digest], len(text))
        for digest in digests:
            if digest in self._cache:
                self._cache.move_to_end(digest)
                found[digest] = self._cache[digest][0]
        if lost := [digest for digest in digests if digest not in found]:
            raise ValueLost(f"The big value {lost[0]} is not in the store any more; the tree that it belonged to was pruned.")
        return found

    def _remember(self, digest: str, value: Json, size: int) -> None:
        self._cache[digest] = (value, size)
        self._cached += size
        while self._cached > _CACHE_LIMIT and len(self._cache) > 1:
            self._cached -= self._cache.popitem(last=False)[1][1]

    def seal(self, text: str) -> str:
        """The text as it is stored: after the codec, if there is one."""
        return text if self._codec is None else seal(text, self._codec)

    def plain(self, text: str) -> str:
        """The text before the codec."""
        if not text.startswith("@code:"):
            return text
        if text.startswith(AS_IT_IS):
            return text[len(AS_IT_IS) :]
        name, _, stored = text[6:].partition(":")
        if self._codec is None or self._codec.name != name:
            raise UnreadableValue(f"A value was stored with the codec {name!r}; give the engine that codec to read it.")
        try:
            return self._codec.decode(stored)
        except Exception as error:
            raise UnreadableValue(f"The codec {name!r} cannot read a stored value: {error}") from error


def small_text(value: object) -> str | None:
    """JSON text, in one go, of what is made of values that were packed or checked before; None if it has to be looked at.

    That is: big values, references or what looks like one, U+0000, and null, which may have been a NaN.
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
    """Whether it is worth measuring: numbers and short strings are not, nor what stands elsewhere already."""
    if isinstance(value, str):
        return len(value) > BIG // 6
    return isinstance(value, dict | list)


def ref_json(ref: BlobRef) -> dict[str, Json]:
    """A reference as it is stored among attributes."""
    said: dict[str, Json] = {"@blob": ref.digest, "size": ref.size}
    return said if ref.is_list is None else said | {"list": ref.is_list}


def wrapped(value: Json) -> Json:
    """A value as it is stored among attributes: one that looks like a reference is wrapped, so that it is never taken for one."""
    return {"@value": value} if isinstance(value, dict) and ("@blob" in value or "@value" in value) else value


def unwrapped(value: Json) -> Json:
    """The value, or the reference, that was stored."""
    if isinstance(value, dict):
        if "@blob" in value:
            return BlobRef(value["@blob"], value["size"], value.get("list"))
        if "@value" in value:
            return value["@value"]
    return value
