"""Declarations: any order of releases ends in those of the newest, changes by hand survive, and nothing is applied twice."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sizes import examples

from treadle.kernel.declarations.decide import ADDED, CHANGED, OVERRIDDEN, REMOVED, SKIPPED, decide
from treadle.kernel.declarations.records import release_key
from treadle.model.declarations import DeclarationsDocument, Value
from treadle.model.stored import read, write

ITEMS = ("max a", "max b", "rate a")
VALUES = st.sampled_from([{"max": 1}, {"max": 2}, {"max": 3}])
SETS = st.dictionaries(st.sampled_from(ITEMS), VALUES)


class World:
    """A store as `Declarations` sees it."""

    def __init__(self) -> None:
        self.document = DeclarationsDocument()
        self.values: dict[str, Value] = dict.fromkeys(ITEMS)

    def sync(self, program: str, release: int, declared: dict[str, Any], crash_after: int | None = None) -> list[str]:
        """Synchronise, or crash after so many writes; return the verdicts on items that are not as declared before."""
        plan = decide(program, str(release), declared, self.document, self.values)
        self.document = read(DeclarationsDocument, write(plan.document))
        for at, (item, value) in enumerate(plan.writes.items()):
            if at == crash_after:
                return []
            self.values[item] = value
        if crash_after is None:
            self.document = read(DeclarationsDocument, write(plan.after))
        return [change.verdict for change in plan.changes]


@settings(max_examples=examples(60))
@given(st.tuples(SETS, SETS), st.lists(st.tuples(st.integers(0, 1), st.sampled_from([None, None, 0, 1, 2])), max_size=8))
def test_any_sequence_of_starts_and_crashes_ends_with_the_newest_release(sets, starts):
    world = World()
    for index, crash_after in starts:
        world.sync("shop", index, sets[index], crash_after)
    world.sync("shop", 1, sets[1])
    assert {item: value for item, value in world.values.items() if value} == sets[1]
    for index in (0, 1):  # an older release changes nothing, and a second start finds nothing to do
        assert {ADDED, CHANGED, REMOVED, OVERRIDDEN}.isdisjoint(world.sync("shop", index, sets[index]))
        assert {item: value for item, value in world.values.items() if value} == sets[1]


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.integers(0, 3), SETS, st.sampled_from([None, None, 0, 1])), max_size=5), SETS, st.sampled_from(ITEMS))
def test_a_manually_set_value_survives_every_start(starts, first, item):
    world = World()
    world.sync("shop", 0, first)
    world.values[item] = {"max": 9}
    for release, declared, crash_after in starts:
        world.sync("shop", release, declared, crash_after)
        assert world.values[item] == {"max": 9}


@given(st.lists(st.tuples(st.sampled_from(["shop", "desk"]), SETS), max_size=8))
def test_an_item_has_one_owner_and_another_program_cannot_change_it(starts):
    world = World()
    for program, declared in starts:
        other = "desk" if program == "shop" else "shop"
        owned = world.document.programs[other].items if other in world.document.programs else {}
        before = {item: world.values[item] for item in owned}
        world.sync(program, 0, declared)
        assert {item: world.values[item] for item in owned} == before
        sets = [set(each.items) for each in world.document.programs.values()]
        assert not set.intersection(*sets) or len(sets) < 2


def test_an_older_release_is_skipped_and_reported():
    world = World()
    world.sync("shop", 2, {"max a": {"max": 1}})
    assert world.sync("shop", 1, {"max a": {"max": 2}}) == [SKIPPED]


def test_releases_are_ordered_by_their_numbers():
    texts = ["0", "1", "1.0.1", "1.9", "1.10", "2027.1.15", "20270115"]
    assert sorted(texts, key=release_key) == texts
    assert release_key("1.0") == release_key("1")
