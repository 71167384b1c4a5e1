"""Steps to their stored form and back: nothing is lost, big values stand apart, nothing is taken for a reference."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sizes import examples

from treadle.evaluator import BlobRef, State, StepError, StepKind, StepRow
from treadle.kernel.runs.decide import load_step, once, store_step
from treadle.kernel.store.value_store import BIG, ValueStore
from treadle.model.errors import InvalidPayload, UnreadableValue
from treadle.model.ids import uuid7

RUN = uuid7(1_800_000_000_000, b"0123456789")
STORE: Any = None


class Reversed:
    name = "reversed"

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, stored: str) -> str:
        return stored[::-1]


json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_characters="\0", codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["@blob", "@value", "size", "a", "$step"]), inner, max_size=3)
    ),
    max_leaves=8,
)
attributes = st.dictionaries(st.sampled_from(["a", "b", "@blob", "@value"]), json | st.builds(BlobRef, st.just("d"), st.just(9)))


@given(params=attributes, returns=attributes, loop=attributes)
@settings(max_examples=examples(60), deadline=None)
def test_a_row_round_trips(params: dict[str, Any], returns: dict[str, Any], loop: dict[str, Any]) -> None:
    row = StepRow(
        id=RUN, run_id=RUN, parent_id=RUN, place="W/block-0/a", statement_id="W/0/a", name="a", kind=StepKind.STEP, facet="n.F",
        state=State.EVENT_TRANSMIT, ordinal=3, depth=2, params=params, returns=returns, loop=loop, open=1, failed=2, failed_first=1,
        error=StepError(message="m", type="t", path="W.a", step_id=RUN, origin="handler"), task_id=RUN, timeout_for=5, caught=1,
        round=2, failed_in=State.EVENT_TRANSMIT, expanded=1, total=4,
    )  # fmt: skip
    for codec in (None, Reversed()):
        value_store = ValueStore(STORE, codec)
        step, slim, blobs = store_step(row, value_store, RUN)
        assert blobs == []
        assert slim == row
        assert load_step(step, value_store) == row
        assert (step.kind, step.name, step.facet, step.state, step.ordinal) == ("step", "a", "n.F", State.EVENT_TRANSMIT, 3)


@pytest.mark.parametrize(("value", "is_list"), [("x" * BIG, False), (["x" * BIG], True), ({"@blob": "x" * BIG}, False)])
def test_a_big_value_leaves_the_row(value: Any, is_list: bool) -> None:
    value_store = ValueStore(STORE)
    row = StepRow(id=RUN, run_id=RUN, place="W", statement_id="W", name="W", kind=StepKind.WORKFLOW, params={"v": value, "n": 1})
    step, slim, blobs = store_step(row, value_store, RUN)
    (blob,) = blobs
    assert slim.params == {"v": BlobRef(blob.digest, len(blob.value), is_list), "n": 1}
    assert load_step(step, value_store) == slim
    assert len(step.document) < 500
    assert row.params["v"] == value
    assert value_store.fold({"v": value}, RUN).values == {blob.digest: value}
    assert once([blob, *blobs]) == (blob,)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "a\0b", "\ud800", {"deep": [float("-inf")]}, {"a\0": 1}])
def test_values_that_no_store_accepts_are_refused(value: Any) -> None:
    row = StepRow(id=RUN, run_id=RUN, place="W", statement_id="W", name="W", kind=StepKind.WORKFLOW, params={"v": value})
    with pytest.raises(InvalidPayload):
        store_step(row, ValueStore(STORE), RUN)
    with pytest.raises(InvalidPayload):
        ValueStore(STORE).pack_known({"v": value}, RUN)


@pytest.mark.parametrize(
    "value", [None, "null", "@refs:x", {"digest": "d", "size": 1}, {"@blob": 1}, 2**70, 1e16, -0.0, "\\u0000", (1, 2)]
)
def test_unusual_values_survive_a_round_trip(value: Any) -> None:
    value_store = ValueStore(STORE)
    row = StepRow(id=RUN, run_id=RUN, place="W", statement_id="W", name="W", kind=StepKind.WORKFLOW, returns={"v": value})
    back = load_step(store_step(row, value_store, RUN)[0], value_store).returns["v"]
    assert back == (list(value) if isinstance(value, tuple) else value)
    text, blobs = value_store.pack_known({"v": value}, RUN)
    assert (value_store.unfold(text)["v"], blobs) == (back, ())


def test_values_of_another_codec_are_reported() -> None:
    step, _, _ = store_step(
        StepRow(id=RUN, run_id=RUN, place="W", statement_id="W", name="W", kind=StepKind.WORKFLOW),
        ValueStore(STORE, Reversed()),
        RUN,
    )
    with pytest.raises(UnreadableValue, match="reversed"):
        load_step(step, ValueStore(STORE))
