"""The query language: what is printed parses to the same tree, errors name the place, and conditions mean what they say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sizes import examples

from treadle.kernel.search.plan import Subject, has_words, matches, plan
from treadle.kernel.search.query import (
    Ago,
    Condition,
    Field,
    Instant,
    Prefix,
    Query,
    QueryGroup,
    parse,
    print_query,
    words,
)
from treadle.model.errors import InvalidQuery, InvalidTag
from treadle.model.tags import check_tags, decode_tag, encode_tag

_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
_parts = st.one_of(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), st.integers(0, 99))
_values = st.one_of(
    _text.filter(lambda text: not text[:4].isdigit()),
    st.integers(-(2**53), 2**53),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.booleans(),
    st.none(),
)
_conditions: st.SearchStrategy[Query] = st.one_of(
    st.builds(
        Condition,
        st.builds(Field, st.sampled_from(["input", "output"]), st.lists(_parts, min_size=1, max_size=3).map(tuple)),
        st.sampled_from(["=", "!="]),
        st.tuples(_values),
    ),
    st.builds(
        Condition,
        st.just(Field("tag", ("customer",))),
        st.just("in"),
        st.lists(_text.filter(lambda t: not t[:4].isdigit()), min_size=1).map(tuple),
    ),
    st.builds(Condition, st.just(Field("tag", ("a.b-c",))), st.just("exists")),
    st.builds(
        Condition,
        st.just(Field("created")),
        st.sampled_from(["<", ">="]),
        st.tuples(st.builds(Instant, st.integers(0, 10**12))),
    ),
    st.builds(
        Condition,
        st.just(Field("finished")),
        st.sampled_from(["<", ">="]),
        st.tuples(st.integers(0, 10**6).map(lambda s: Ago(s * 1000))),
    ),
    st.builds(
        Condition,
        st.just(Field("name")),
        st.just("="),
        st.tuples(st.builds(Prefix, st.sampled_from(["import", "shop.", "a-b"]))),
    ),
    st.builds(Condition, st.just(Field("state")), st.just("="), st.tuples(st.sampled_from(["failed", "running"]))),
)
_queries = st.recursive(
    _conditions,
    lambda inner: st.one_of(
        inner.map(lambda part: QueryGroup("not", (part,))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: QueryGroup("and", tuple(parts))),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: QueryGroup("or", tuple(parts))),
    ),
    max_leaves=6,
)


@given(_queries)
@settings(max_examples=examples(60))
def test_a_printed_query_parses_to_the_same_tree(query: Query) -> None:
    text = print_query(query)
    assert parse(text) == query, text
    assert print_query(parse(text)) == text


@given(st.text(max_size=40))
@settings(max_examples=examples(60))
def test_any_text_parses_or_is_refused_with_a_place(text: str) -> None:
    for tasks in (False, True):
        position = 0
        try:
            parse(text, tasks=tasks)
        except InvalidQuery as error:
            position = error.position
        assert 0 <= position <= len(text)


@pytest.mark.parametrize(
    ("text", "position", "hint"),
    [
        ("", 0, "state = failed"),
        ("state", 5, "state = ..."),
        ("state failed", 6, "state = failed"),
        ("state = faild", 8, "Did you mean failed?"),
        ("stat = failed", 0, "did you mean state?"),
        ("customer = acme", 0, "tag.customer"),
        ("created = 2d ago", 8, "created >= 2026-11-01"),
        ("created > yesterday", 10, "created > 2d ago"),
        ("created > 2026-13-01", 10, "is not a time"),
        ('error = "x"', 6, 'error ~ "timeout"'),
        ("(state = failed", 15, "a closing parenthesis is missing"),
        ("state = failed)", 14, "the end"),
        ('error ~ "open', 8, "not closed"),
        ("tag > 3", 0, "tag.customer"),
        ("input.a. = 3", 0, "dot"),
        ("state in failed", 9, "a list"),
        ("state in (failed", 16, "comma"),
        ("tag.9x = 1", 0, "key of a tag"),
        ("state > failed", 6, "= or !="),
        ("activity = waiting", 11, "waiting_for_worker"),
        ("run = x", 0, "use id"),
    ],
)
def test_an_invalid_query_names_its_place_and_the_right_form(text: str, position: int, hint: str) -> None:
    with pytest.raises(InvalidQuery) as caught:
        parse(text)
    assert caught.value.position == position
    assert hint in str(caught.value)


def test_the_queries_of_the_documentation_are_valid() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/query.md").read_text()
    (block,) = re.findall(r"```query\n(.*?)```", page, re.DOTALL)
    assert len([parse(line) for line in block.splitlines()]) > 5
    guide = (Path(__file__).parents[2] / "docs/how-to/find-runs.md").read_text()
    asked = re.findall(r"treadle (runs|tasks) list --where '(.*?)'", guide)
    assert len([parse(text, tasks=kind == "tasks") for kind, text in asked]) > 4


RUN = Subject(
    {
        "state": "failed",
        "name": "import.Files",
        "kind": "workflow",
        "list": "default",
        "id": "0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77",
    },
    created_at=1_000_000,
    finished_at=2_000_000,
    error="handler_error Connection timeout to host-7",
    tags=check_tags({"customer": "acme", "n": 5, "paid": True, "due": "2026-11-01T00:00:00Z"}),
    input={"order": {"id": 7, "name": "x", "none": None, "a b": [1, {"c": True}]}},
    output={"total": 10.5},
)
TRUE = (
    "state = failed",
    "STATE = failed AND NAME = import*",
    "name = import.Files",
    "workflow = import.Files",
    'not name = "import*"',
    "name ~ files",
    "state in (completed, failed)",
    "state not in (completed)",
    "state != completed",
    "id = 0198c3de*",
    "tag.customer = acme",
    "tag = acme",
    "tag in (3, acme)",
    "not tag = other",
    "tag.customer = ac*",
    'tag.customer > "aaa"',
    "tag.n = 5 and tag.n >= 4.5 and not tag.n > 5",
    'not tag.n = "5"',
    "tag.paid = true",
    "tag.due = 2026-11-01 and tag.due < 2026-11-02",
    "created > 5000s ago and finished <= 0s ago",
    'error ~ "TIMEOUT connection" and error ~ "host 7" and error ~ "time*"',
    "not error ~ tim",
    "input.order.id = 7 and input.order.id < 7.5",
    'input.order.name = x and not input.order.id = "7"',
    "input.order.none = null and input.order.none exists",
    'input.order."a b"[1].c = true and input.order."a b"[0] = 1',
    "output.total >= 10 and output.total < 11",
    "not (input.missing = 1 or input.missing != 1 or input.order.id.deeper = 1)",
    "not activity exists and not tag.other != 1",
)


@pytest.mark.parametrize("text", TRUE)
def test_a_true_condition_matches_the_run(text: str) -> None:
    assert matches(parse(text), RUN, now=3_000_000), text


def test_the_most_selective_index_is_chosen() -> None:
    def by(text: str, **more: Any) -> tuple[str, tuple[str, ...]]:
        found = plan(parse(text), 10_000, **more)
        return found.by, found.keys

    assert by('state = failed and tag.a = 1 and error ~ "disk full"') == ("words", ("disk full",))
    assert by("error ~ disk and state = failed", words_indexed=False) == ("state", ("failed",))
    assert by("tag.a = x and state = failed") == ("tag", ("sx",))
    assert by("name = a and state = completed") == ("name", ("a",))
    assert by("name = a*") == ("prefix", ("a",))
    assert by("activity = sleeping") == ("state", ("pending", "running", "paused"))
    assert by("state = failed or tag.a = x") == ("created", ("",))
    found = plan(parse("created > 2s ago and created <= 1s ago"), 10_000)
    assert (found.after, found.before, found.exact) == (8001, 9001, True)


def test_the_plan_of_a_query_excludes_its_impossible_states() -> None:
    def known(text: str) -> tuple[tuple[str, ...], bool]:
        found = plan(parse(text), 10_000)
        return found.states, found.exact

    assert known("tag.a = x") == ((), True)
    assert known("tag.a = x and created > 2s ago") == ((), True)
    assert known("tag.a = x and state = failed") == (("failed",), False)
    assert known("tag.a = x and state in (failed, running) and state != running") == (("failed",), False)
    assert known("tag.a = x and state != completed") == (("canceled", "failed", "paused", "pending", "running"), False)
    assert known("tag.a = x and not state = failed") == ((), False)
    assert known("tag.a = x or state = failed") == ((), False)


@given(_text, _text)
@settings(max_examples=examples(20))
def test_a_text_has_its_own_words_and_their_beginnings(text: str, more: str) -> None:
    assert has_words(f"{text} {more}", text)
    assert all(has_words(text, word[:-1] + "*") for word in words(text) if not word.endswith("*"))


_numbers = st.one_of(st.integers(-(2**53), 2**53), st.floats(-(2.0**53), 2.0**53))


@given(_numbers, _numbers)
@settings(max_examples=examples(40))
def test_stored_tags_have_the_order_of_their_values(one: float, other: float) -> None:
    assert (encode_tag(one) < encode_tag(other)) == (one < other)
    assert (encode_tag(one) == encode_tag(other)) == (one == other)
    assert decode_tag(encode_tag(one)) == one


@pytest.mark.parametrize(
    "tags",
    [
        [("a", 1)],
        {"": 1},
        {"a b": 1},
        {"9a": 1},
        {"a" * 65: 1},
        {"a": None},
        {"a": []},
        {"a": "x" * 257},
        {"a": float("inf")},
        {"a": 2**60},
        {"a": "\0"},
        {"a": "\ud800"},
        {1: "a"},
        {f"k{number}": 1 for number in range(21)},
    ],
)
def test_an_invalid_tag_is_refused(tags: Any) -> None:
    with pytest.raises(InvalidTag):
        check_tags(tags)
