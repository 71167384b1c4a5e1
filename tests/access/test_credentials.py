"""Credentials are parsed, compared in constant time, and cached for a few seconds."""

from __future__ import annotations

import hashlib
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.kernel.access import credentials
from treadle.kernel.access.credentials import NO_DIGEST, Credential, RecentRecords, fits, new_credential, read_credential
from treadle.kernel.core import Core
from treadle.kernel.store.process import SystemIds
from treadle.model.ids import parse_id
from treadle.model.records import Record
from treadle.testing import ManualClock, SeededIds

ids = SeededIds(5)


@given(st.binary(min_size=32, max_size=32))
def test_a_credential_text_parses_back_to_the_credential(secret):
    made = new_credential(ids.new_id(), secret)
    shown = made.text("tdl")
    assert read_credential("tdl", shown) == made
    assert read_credential("tds", shown) is None
    assert fits(made, made.digest())


@given(st.text())
def test_any_other_text_is_not_a_credential(text):
    assert read_credential("tdl", text) is None


@pytest.mark.parametrize("change", ["{} ", " {}", "{}x", "{}\n", "Tdl{}", "Bearer {}"])
def test_a_credential_with_surrounding_text_is_refused(change):
    shown = new_credential(ids.new_id(), ids.secret()).text("tdl")
    assert read_credential("tdl", change.format(shown)) is None


def test_a_repr_omits_the_secret_and_the_digest_is_its_hash():
    made = new_credential(ids.new_id(), ids.secret())
    assert made.secret not in repr(made)
    assert made.digest() == hashlib.sha256(made.secret.encode()).hexdigest()
    assert parse_id(made.record_id) == made.record_id


def test_a_derived_secret_is_the_same_each_time_and_another_for_each_purpose_and_secret():
    one, other = (new_credential(ids.new_id(), ids.secret()) for _ in range(2))
    assert one.derived("csrf") == one.derived("csrf")
    assert len({one.secret, one.derived("csrf"), one.derived("else"), other.derived("csrf")}) == 4


def test_a_missing_credential_never_fits():
    made = new_credential(ids.new_id(), ids.secret())
    assert not fits(made, None)
    assert not fits(None, None)
    assert not fits(None, made.digest())
    assert not fits(None, Credential("", "").digest())
    assert not fits(made, NO_DIGEST)


def test_comparisons_take_constant_time_even_without_a_stored_digest(monkeypatch):
    compared = []
    real = credentials.hmac.compare_digest
    monkeypatch.setattr(credentials.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b))
    made = new_credential(ids.new_id(), ids.secret())
    assert [fits(made, made.digest()), fits(made, "f" * 64), fits(made, None), fits(None, None)] == [True, False, False, False]
    assert [(len(a), len(b)) for a, b in compared] == [(64, 64)] * 4


def test_random_secrets_have_32_bytes_and_differ():
    system = SystemIds()
    drawn = {system.secret() for _ in range(100)}
    assert {len(each) for each in drawn} == {32}
    assert len(drawn) == 100


def test_seeded_secrets_repeat():
    assert SeededIds(1).secret() == SeededIds(1).secret() != SeededIds(2).secret()


# --- looking up ---


class Shelf:
    """A store of records that counts how often it is asked."""

    def __init__(self) -> None:
        self.kept: dict[str, Record] = {}
        self.records = self
        self.asked = 0
        self.at = 1_000
        self.meanwhile = lambda: None

    def put(self, **fields: object) -> Record:
        record = Record(**{"id": ids.new_id(), "entity": "token", "state": "active"} | fields)
        self.kept[record.id] = record
        return record

    async def find(self, record_id: str) -> Record | None:
        self.asked += 1
        found = self.kept.get(record_id)
        self.meanwhile()
        return found

    async def now(self) -> int:
        return self.at


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


@pytest.fixture
def recent(shelf, clock) -> RecentRecords:
    return RecentRecords(Core(shelf, *[cast(Any, None)] * 3, clock), "token")


async def test_a_record_is_cached_for_five_seconds(shelf, recent, clock):
    record = shelf.put()
    assert [await recent.find(record.id) for _ in range(100)] == [(record, 1_000)] * 100
    clock.advance(4.999)
    assert await recent.find(record.id) == (record, 5_999)  # the store's time, as far as it has passed since
    assert shelf.asked == 1
    clock.advance(0.001)
    shelf.at = 7_777
    assert await recent.find(record.id) == (record, 7_777)
    assert shelf.asked == 2


async def test_a_change_by_another_process_is_visible_after_five_seconds(shelf, recent, clock):
    record = shelf.put()
    await recent.find(record.id)
    changed = shelf.put(id=record.id, state="revoked")
    clock.advance(4.999)
    assert (await recent.find(record.id))[0] == record
    clock.advance(0.001)
    assert (await recent.find(record.id))[0] == changed


async def test_a_local_change_invalidates_the_cached_record(shelf, recent):
    record = shelf.put()
    await recent.find(record.id)
    changed = shelf.put(id=record.id, state="revoked")
    recent.forget(record.id)
    assert (await recent.find(record.id))[0] == changed


async def test_a_read_that_overlaps_a_local_change_is_not_cached(shelf, recent):
    record = shelf.put()

    def change() -> None:
        shelf.meanwhile = lambda: None
        shelf.put(id=record.id, state="revoked")
        recent.forget(record.id)

    shelf.meanwhile = change
    assert (await recent.find(record.id))[0].state == "active"  # it was asked before
    assert (await recent.find(record.id))[0].state == "revoked"


async def test_missing_records_and_records_of_another_kind_or_namespace_are_not_cached(shelf, recent):
    others = [ids.new_id(), shelf.put(entity="session").id, shelf.put(namespace="other").id]
    assert [await recent.find(each) for each in others * 2] == [None] * 6
    assert shelf.asked == 6
    assert recent._noted == {}


async def test_the_cache_keeps_a_bounded_number_of_recently_used_entries(shelf, recent, monkeypatch):
    monkeypatch.setattr(credentials, "RECENT_COUNT", 3)
    records = [shelf.put() for _ in range(10)]
    for record in records:
        await recent.find(record.id)
    assert list(recent._noted) == [record.id for record in records[-3:]]
