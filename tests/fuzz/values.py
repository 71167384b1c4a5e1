"""Targets in values: payloads and plans as JSON, texts that are kept encoded, traces and signatures in headers."""

from __future__ import annotations

import json
import math
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from tests.fuzz.language import text_of

from treadle.engine.codecs import Zlib
from treadle.kernel.store.encoded_store import encoded_store
from treadle.kernel.store.ports import Store
from treadle.kernel.store.value_store import UnreadableValue, ValueStore
from treadle.model.errors import InvalidPayload, InvalidPlan, PayloadTooLarge
from treadle.model.plans import read_plan, resolve
from treadle.model.tasks import LogLine, trace_number
from treadle.model.values import decode, encode
from treadle.model.webhooks import TOLERANCE, sign, verify

SECRET = "a secret between us"
NOW = 1_800_000_000


def payload(data: bytes) -> None:
    """Any JSON: a store's text that reads back as the same value, types and all, or refused with `InvalidPayload`.

    Packed in a value_store, with a codec and without, it comes back too, whatever its keys are called.
    """
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        text = encode(value)
    except (InvalidPayload, PayloadTooLarge) as error:
        assert str(error)
        return
    assert same(decode(text), value)
    assert "\\u0000" not in text.replace("\\\\", "")
    if isinstance(value, dict):
        for value_store in (ValueStore(Nothing()), ValueStore(Nothing(), Zlib(from_size=1))):  # type: ignore[arg-type]
            packed, blobs = value_store.pack(value, "root")[:2]
            assert same(done(ValueStore(Nothing(blobs), Zlib()).unpack(packed)), value)  # type: ignore[arg-type]


def same(left: Any, right: Any) -> bool:
    """Whether both are the same JSON; 1 and 1.0 and true are three values, and so are 0.0 and -0.0."""
    pairs = [(left, right)]
    while pairs:
        a, b = pairs.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, dict | list):
            if len(a) != len(b) or (isinstance(a, dict) and list(a) != list(b)):
                return False
            pairs.extend(zip(a.values(), b.values(), strict=True) if isinstance(a, dict) else zip(a, b, strict=True))
        elif a != b or (isinstance(a, float) and math.copysign(1, a) != math.copysign(1, b)):
            return False
    return True


def done(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits for something")


def plan(data: bytes) -> None:
    """The steps of a declarative plan, as JSON: refused with `InvalidPlan`, or read; what it refers to is found, or refused so."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        steps = read_plan(given)
    except InvalidPlan as error:
        assert str(error)
        return
    known: dict[str, Any] = {"inputs": {"a": [1, {"b": 2}], "": None}}
    for step in steps:
        with suppress(InvalidPlan):
            resolve(step.arguments, known)
        known[step.name] = {"receipt": [step.name]}


class Nothing:
    """A store with those blobs, and lines that were appended: all of its ports at once."""

    url, parallel_commits = "memory://", 1

    def __init__(self, blobs: Any = ()) -> None:
        self._blobs = {blob.digest: blob.value for blob in blobs}
        self.lines: list[LogLine] = []
        for name in {*Store.__annotations__, *vars(Store)}:
            if not hasattr(self, name):
                setattr(self, name, self)

    async def find_blobs(self, digests: list[str]) -> dict[str, str]:
        return {digest: self._blobs[digest] for digest in digests}

    async def append_lines(self, lines: list[LogLine]) -> None:
        self.lines += lines

    async def list_lines(self, task_id: str, limit: int) -> list[LogLine]:
        return self.lines


def encoded(data: bytes) -> None:
    """A handler's line for its log, and the same bytes as a stored text.

    With a codec and without, a line is read as it was written, even one that looks like a stored text. A text that nobody
    stored is opened, or refused with `UnreadableValue`.
    """
    text = data.decode("utf-8", "replace")
    for codec in (None, Zlib(from_size=1)):
        store = encoded_store(Nothing(), codec)  # type: ignore[arg-type]
        line = LogLine(task_id="t", at=0, level="info", message=text)
        found = done(_there_and_back(store, line))
        assert [each.message for each in found] == [text]
    try:
        ValueStore(Nothing(), Zlib()).plain(text)  # type: ignore[arg-type]
    except UnreadableValue as error:
        assert str(error)


async def _there_and_back(store: Any, line: LogLine) -> list[LogLine]:
    await store.log.append_lines([line])
    found: list[LogLine] = await store.log.list_lines("t", 10)
    return found


def signature(data: bytes) -> None:
    """The header of a signed webhook, and below it the body: believed only if it is that of the body under the secret, and new.

    The right header is always believed, also among others; a wrong secret, another body or another time never.
    """
    header, _, body = data.partition(b"\n")
    given = text_of(header)
    right = sign(SECRET, NOW, body)
    assert verify(SECRET, right, body, NOW)
    assert not verify(SECRET, right, body + b".", NOW)
    assert not verify("another", right, body, NOW)
    assert not verify(SECRET, right, body, NOW + TOLERANCE + 1)
    if verify(SECRET, given, body, NOW):
        parts = dict(part.strip().partition("=")[::2] for part in given.split(","))
        assert parts["v1"] == sign(SECRET, int(parts["t"]), body).rpartition("=")[2]
    assert 0 < trace_number(given) < 2**128
