"""Prompts, tool names, schemas, prices and answers: everything that needs neither a service nor a store."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.llm.config import HIDDEN, scrubbed
from treadle.llm.conversation import fill
from treadle.llm.exchange import Answer
from treadle.llm.ledger import LIST_PRICES, LIST_PRICES_AS_OF, Price, Prices, most_tokens, parse_prices
from treadle.llm.tools import check_object, make_toolbox, object_schema, tool_names
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.model.usage import micros
from treadle.testing.workflows import compile_program

PROGRAM = compile_program("""
namespace a.b {
  schema Node { name: String, children: [Node], extra: Json }
  /** Draws a tree.
   * @param depth how deep
   * @return root where it starts */
  event facet Draw(depth: Long, wide: Boolean) => (root: Node, sizes: [[Double]], title: String)
  event facet Free(x: String)
}
""")
DRAW, FREE = PROGRAM.facets["a.b.Draw"], PROGRAM.facets["a.b.Free"]


def test_a_prompt_that_would_be_too_long_is_never_built():
    with pytest.raises(NonRetryable, match="limit is") as refused:
        fill("{v}" * 300_000, {"v": "x" * 1_000_000})
    assert refused.value.error_code == "payload_too_large"
    assert len(fill("{v}" * 1_000, {"v": "x" * 1_000})) == 1_000_000


def test_only_identifiers_in_braces_are_replaced():
    text = 'Hi {name}, {"json": {"x": 1}}, {}, { name }, {other}, {list}, {name.x}, {{name}}'
    filled = fill(text, {"name": "Ada {list}", "list": [1, "é"]})
    assert filled == 'Hi Ada {list}, {"json": {"x": 1}}, {}, { name }, {other}, [1, "é"], {name.x}, {Ada {list}}'


def test_tool_names_are_legal_short_distinct_and_reversible():
    names = ["a.b.C", "a__b.C", "x" * 90, "x" * 91, "ns.Größe", "plain"]
    tools = tool_names(names)
    made = [tools[name] for name in names]
    assert made[0] == "a__b__C"
    assert len(set(made)) == len(names)
    assert all(len(tool) <= 64 and all(c.isascii() and (c.isalnum() or c in "_-") for c in tool) for tool in made)
    assert list(tool_names(names).values()) == made


def test_returns_become_a_json_schema_with_documentation():
    schema = object_schema(PROGRAM, DRAW.returns, DRAW.doc.returns)
    assert schema["properties"] == {
        "root": {"$ref": "#/$defs/a__b__Node", "description": "where it starts"},
        "sizes": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "title": {"type": "string"},
    }
    assert schema["required"] == ["root", "sizes", "title"]
    assert schema["$defs"]["a__b__Node"]["properties"] == {
        "name": {"type": "string"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/a__b__Node"}},
        "extra": {},
    }
    assert object_schema(PROGRAM, FREE.returns) == {"type": "object", "properties": {}}


GOOD: dict[str, Any] = {"root": {"name": "r", "children": [], "extra": None}, "sizes": [[1, 2.5]], "title": "t"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"title": None}, "title must be a String, not null"),
        ({"title": 3}, "title must be a String, not the number 3"),
        ({"sizes": [[True]]}, "sizes[0][0] must be a Double, not a Boolean"),
        ({"sizes": [1]}, "sizes[0] must be a list, not the number 1"),
        ({"root": []}, "root must be an object, not a list"),
        ({"root": {"name": "r", "children": [{"name": "c"}], "extra": 1}}, "root.children[0].children is missing"),
        ({"more": 1}, "more is not declared"),
    ],
)
def test_a_type_mismatch_is_reported_with_its_path(change, problem):
    assert check_object(PROGRAM, DRAW.returns, GOOD) == (GOOD, [])
    assert problem in check_object(PROGRAM, DRAW.returns, GOOD | change)[1]


def test_integral_floats_are_integers_and_a_facet_without_returns_accepts_any_object():
    assert check_object(PROGRAM, DRAW.params, {"depth": 3.0, "wide": True}) == ({"depth": 3, "wide": True}, [])
    assert check_object(PROGRAM, DRAW.params, {"depth": 3.5, "wide": True})[1] == ["depth must be a Long, not the number 3.5"]
    assert check_object(PROGRAM, FREE.returns, {"anything": 1}) == ({"anything": 1}, [])


async def test_an_unknown_tool_is_an_error_for_the_model():
    box = make_toolbox(PROGRAM, DRAW, None)
    assert (box.target, len(box.definitions)) == ("a__b__Draw", 1)
    assert box.definitions[0]["description"].startswith("Draws a tree.")
    assert await box.call("other", {}) == ("There is no tool other.", True)
    assert "Parameters: x: String" in make_toolbox(PROGRAM, FREE, None).definitions[0]["description"]


def test_costs_are_whole_millionths_rounded_up():
    price = Price(3, 15)
    assert price.cost(1000, 100) == 3000 + 1500
    assert price.cost(0, 0, cache_write_tokens=1000, cache_read_tokens=1000) == 3750 + 300
    assert Price(0.25, 1).cost(1, 0) == 1
    assert micros(0.5) == 500_000


@given(st.text(), st.text(), st.integers(1, 5000), st.floats(0, 100), st.floats(0, 100))
def test_a_reservation_covers_the_maximum_cost_of_a_request(prompt, system, max_tokens, price_in, price_out):
    """For any tokenizer, a token is at least one byte, and no answer exceeds its limit."""
    request = {"model": "m", "max_tokens": max_tokens, "system": system, "messages": [{"role": "user", "content": prompt}]}
    price = Price(price_in, price_out)
    reserved = price.cost(most_tokens(request), max_tokens)
    longest = len((prompt + system).encode("utf-8", "replace"))
    assert price.cost(longest, max_tokens) <= reserved
    assert price.cost(longest // 2, max_tokens // 2) <= reserved


def test_the_built_in_prices_are_dated_defaults_that_the_page_shows():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "llm.md").read_text("utf-8")
    assert f"list prices as of {LIST_PRICES_AS_OF}" in page
    for model, price in LIST_PRICES.items():
        assert f"| `{model}` | {price.input:g} | {price.output:g} |" in page
    other = Prices(parse_prices('{"claude-haiku-4-5": [7, 8]}'))
    assert (other.find("claude-haiku-4-5"), other.find("claude-haiku-4-5-20251001")) == (Price(7, 8), Price(7, 8))
    assert other.find("claude-sonnet-4-6") == LIST_PRICES["claude-sonnet-4-6"]


def test_prices_are_found_by_name_and_dated_name_and_can_be_given():
    prices = Prices(parse_prices('{"m": [1, 2], "claude-haiku-4-5": [9, 9]}'))
    assert prices.find("m") == Price(1, 2)
    assert prices.find("claude-haiku-4-5-20251001") == Price(9, 9)
    assert prices.find("m-1") is None
    assert parse_prices("") == {}
    for bad in ("[]", "{", '{"m": 3}', '{"m": [1]}', '{"m": [-1, 2]}', '{"m": ["a", 2]}'):
        with pytest.raises(InvalidInput, match="TREADLE_LLM_PRICES"):
            parse_prices(bad)


def test_secrets_are_taken_out_of_texts():
    assert scrubbed("key abc, abc", ("abc", "")) == f"key {HIDDEN}, {HIDDEN}"


def test_an_incomplete_stream_is_malformed():
    answer = Answer()
    with pytest.raises(ValueError, match="not a stream"):
        answer.check()
    usage = SimpleNamespace(input_tokens=3, output_tokens=1)
    answer.add(SimpleNamespace(type="message_start", message=SimpleNamespace(model="m", usage=usage)))
    answer.add(SimpleNamespace(type="ping"))
    with pytest.raises(ValueError, match="within the message"):
        answer.check()
    with pytest.raises(ValueError, match="without a type"):
        answer.add(SimpleNamespace())
