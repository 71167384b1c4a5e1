"""Ids sort by time, derived ids repeat, and seeded ids are the same on every run."""

from __future__ import annotations

import hashlib
import random
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.model.errors import InvalidInput
from treadle.model.ids import Ids, derived_id, parse_id, uuid7
from treadle.testing import ManualClock, SeededIds

instants = st.integers(0, 2**48 - 1)
entropies = st.binary(min_size=10, max_size=10)


@given(instants, entropies)
def test_an_id_is_a_uuid_of_version_7_with_its_instant_in_front(at, entropy):
    made = uuid.UUID(uuid7(at, entropy))
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == at
    assert parse_id(str(made)) == str(made)


@given(instants, instants, entropies, entropies)
def test_ids_sort_by_their_instants(first, second, one, other):
    if first != second:
        assert (uuid7(first, one) < uuid7(second, other)) == (first < second)


def test_ids_of_one_instant_differ_by_their_entropy():
    rng = random.Random(1)
    assert len({uuid7(1, rng.randbytes(10)) for _ in range(1_000)}) == 1_000


@given(instants, entropies, st.text())
def test_a_derived_id_is_the_same_each_time_and_beside_its_parent(at, entropy, place):
    parent = uuid7(at, entropy)
    made = derived_id(parent, place)
    assert made == derived_id(parent, place)
    assert uuid.UUID(made).int >> 80 == at
    assert uuid.UUID(made).version == 7
    assert made != parent
    assert made == uuid7(at, hashlib.sha256(f"{parent}/{place}".encode()).digest())  # forever: it is how rows are found


def test_derived_ids_differ_by_parent_and_place():
    parents = [uuid7(7, bytes([number] * 10)) for number in range(20)]
    assert len({derived_id(parent, f"step/{place}") for parent in parents for place in range(20)}) == 400


def test_an_id_has_one_canonical_spelling():
    spelled = "0198C3DE-7A10-7C3E-B2A4-5D1F0C9E8A77"
    assert parse_id(spelled) == spelled.lower()
    assert parse_id("{" + spelled.replace("-", "") + "}") == spelled.lower()


@pytest.mark.parametrize("text", ["", "x", "0198c3de", None, 5, "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a7g"])
def test_an_invalid_id_is_refused(text):
    with pytest.raises(InvalidInput, match="run id"):
        parse_id(text, "run id")


def test_seeded_ids_are_ids():
    ids: Ids = SeededIds()
    assert parse_id(ids.new_id())
    assert 0 <= ids.random() < 1


def test_the_same_seed_gives_the_same_ids_and_numbers():
    one, same, other = SeededIds(1), SeededIds(1), SeededIds(2)
    drawn = [(ids.new_id(), ids.random(), ids.new_id()) for ids in (one, same, other)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_seeded_ids_are_all_different_and_sort_in_the_order_in_which_they_were_made():
    ids = SeededIds()
    made = [ids.new_id() for _ in range(1_000)]
    assert made == sorted(set(made))


def test_seeded_ids_follow_a_clock_and_still_sort_when_it_stands():
    clock = ManualClock()
    ids = SeededIds(clock=clock)
    made = [ids.new_id(), ids.new_id()]
    clock.advance(3600)
    made += [ids.new_id(), ids.new_id()]
    assert made == sorted(set(made))
    assert uuid.UUID(made[2]).int >> 80 == clock.now()
