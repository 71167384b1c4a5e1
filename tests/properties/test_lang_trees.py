"""Printing a tree and parsing the text gives the tree again; a program that compiles survives it with its digest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lang.printer import print_file
from tests.lang.programs import tree_of
from tests.sizes import examples

from treadle.lang import compile_sources, format_source, nodes
from treadle.lang.builtins import FUNCTIONS
from treadle.lang.emit import print_expr
from treadle.lang.literals import dedent
from treadle.lang.nodes import DocComment, Name, Span
from treadle.lang.statements import NOT_STEPS

EXAMPLES = sorted((Path(__file__).parents[1] / "golden" / "lang").glob("*.afl"))
AT = Span(1, 1, 1, 1)
WORDS = ["a", "b", "Foo", "in", "with", "yield", "script", "null", "case", "andThen", "x1", "_y", "val", "None"]
names = st.sampled_from(WORDS).map(lambda text: Name(text, AT))
dotted = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(lambda parts: Name(".".join(parts), AT))
step_names = st.sampled_from([word for word in WORDS if word not in NOT_STEPS]).map(lambda text: Name(text, AT))
texts = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=8)

literals = st.one_of(
    texts.map(lambda value: nodes.Literal(value, span=AT)),
    st.integers(0, 10**20).map(lambda value: nodes.Literal(value, span=AT)),
    st.floats(0, 1e300, allow_nan=False).map(lambda value: nodes.Literal(abs(value), span=AT)),
    st.booleans().map(lambda value: nodes.Literal(value, span=AT)),
    st.just(nodes.Literal(None, span=AT)),
)
paths = st.lists(st.sampled_from(WORDS), min_size=2, max_size=3).map(tuple)
references: st.SearchStrategy[Any] = st.one_of(
    paths.map(lambda path: nodes.InputRef(path, span=AT)), paths.map(lambda path: nodes.Ref(path, span=AT))
)
OPERATORS = ["+", "-", "*", "/", "%", "==", "!=", "<", ">", "<=", ">=", "&&", "||"]
OPERATORS += ["in", "not in", "contains", "startsWith", "endsWith"]


functions = st.sampled_from(sorted(FUNCTIONS))


def _grow(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    entries = st.builds(nodes.Arg, st.one_of(names, texts.map(lambda text: Name(text, AT))), inner)
    return st.one_of(
        st.builds(
            lambda operator, left, right: nodes.Binary(operator, left, right, span=AT), st.sampled_from(OPERATORS), inner, inner
        ),
        st.builds(lambda operator, operand: nodes.Unary(operator, operand, span=AT), st.sampled_from("-!"), inner),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: nodes.Concat(tuple(parts), span=AT)),
        st.lists(inner, max_size=3).map(lambda parts: nodes.ArrayLiteral(tuple(parts), span=AT)),
        st.lists(entries, max_size=2).map(lambda parts: nodes.MapLiteral(tuple(parts), span=AT)),
        st.builds(lambda target, index: nodes.Index(target, index, False, span=AT), inner, inner),
        st.builds(
            lambda name, parts: nodes.FunctionCall(Name(name, AT), tuple(parts), span=AT),
            functions,
            st.lists(inner, min_size=1, max_size=2),
        ),
    )


expressions = st.recursive(st.one_of(literals, references), _grow, max_leaves=8)
args = st.lists(st.builds(nodes.Arg, names, expressions), max_size=2).map(tuple)
mixins = st.lists(st.builds(nodes.Mixin, dotted, args, st.none() | names, span=st.just(AT)), max_size=2).map(tuple)
calls = st.builds(nodes.Call, dotted, args, mixins, span=st.just(AT))
kinds = st.recursive(
    dotted.map(lambda name: nodes.NamedType(name, span=AT)),
    lambda inner: (
        inner.map(lambda each: each if isinstance(each, nodes.OptionalType) else nodes.OptionalType(each, span=AT))
        | inner.map(lambda each: nodes.ListType(each, span=AT))
    ),
    max_leaves=2,
)
value_calls = expressions.map(
    lambda value: nodes.Call(Name(nodes.WRITTEN_VALUE, AT), (nodes.Arg(Name("value", AT), value),), (), span=AT)
)
params = st.lists(st.builds(nodes.Param, names, kinds, st.none() | expressions), max_size=2).map(tuple)
scripts = st.builds(
    nodes.Script,
    st.sampled_from(["x = 1", "if a:\n    b()", "}", 'x = "}"', "", "# {"]),
    st.just(Name("python", AT)),
    st.just(1),
    span=st.just(AT),
)
foreachs = st.builds(
    lambda variable, iterable, mode: nodes.Foreach(variable, iterable, *mode, span=AT), names, references,
    st.just((None, None)) | st.just((Name("failFast", AT), None)) | names.map(lambda name: (Name("collectErrors", AT), name)),
)  # fmt: skip
afters = st.lists(names, max_size=2).map(tuple)


def _bodies(plain: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The possible successors of `andThen`: a block, a loop, cases."""
    loops = st.builds(lambda block, foreach: nodes.Block(block.statements, foreach, span=AT), plain, foreachs)
    return plain | loops | _cases(plain)


def _cases(plain: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    conditions = expressions | st.none()
    cases = st.builds(nodes.Case, conditions, plain, span=st.just(AT))
    return st.lists(cases, max_size=2).map(lambda found: nodes.Block(cases=tuple(found), span=AT))


def _plain(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A block of statements whose steps have bodies and catches."""
    catches = st.none() | inner | _cases(inner)
    steps = st.builds(nodes.Step, step_names, calls, st.none() | _bodies(inner), catches, span=st.just(AT), after=afters)
    steps |= st.builds(nodes.Step, step_names, value_calls, st.none(), st.none(), span=st.just(AT))
    sys = st.builds(nodes.Sys, st.just(nodes.SysKind.LOG), args, st.none(), span=st.just(AT), after=afters)
    sys |= st.builds(nodes.Sys, st.just(nodes.SysKind.ASSERT), st.just(()), expressions, span=st.just(AT), after=afters)
    yields = st.builds(nodes.Yield, calls, span=st.just(AT))
    return st.lists(steps | sys | yields, max_size=3).map(lambda found: nodes.Block(tuple(found), span=AT))


plain_blocks = st.recursive(st.just(nodes.Block(span=AT)), _plain, max_leaves=3)
script_blocks = scripts.map(lambda script: nodes.Block(script=script, span=AT))
thens = st.lists(_bodies(plain_blocks) | script_blocks, max_size=2).map(tuple)


@st.composite
def facets(draw: st.DrawFn) -> nodes.Facet:
    kind = draw(st.sampled_from(nodes.FacetKind))
    doc = draw(st.none() | st.just(DocComment("doc")))
    return nodes.Facet(
        draw(names), kind, draw(params), draw(params), draw(mixins), draw(st.none() | scripts), draw(thens), None,
        draw(st.none() | plain_blocks | _cases(plain_blocks)), doc, span=AT,
    )  # fmt: skip


items = st.one_of(
    facets(),
    st.builds(nodes.Implicit, names, calls, span=st.just(AT)),
    st.builds(
        lambda name, fields: nodes.Schema(name, tuple(nodes.Param(field.name, field.type) for field in fields), None, span=AT),
        names,
        params,
    ),
    st.builds(nodes.Use, dotted, span=st.just(AT)),
)
namespaces = st.builds(
    lambda name, inner, doc: nodes.Namespace(name, tuple(inner), False, doc, span=AT),
    dotted,
    st.lists(items, max_size=2),
    st.none() | st.just(DocComment("n")),
)
files = st.lists(items | namespaces, max_size=3).map(lambda found: nodes.File("t.afl", tuple(found)))


@settings(max_examples=examples(60), deadline=None)
@given(expressions)
def test_a_printed_expression_parses_to_the_same_tree(expr: nodes.Expr) -> None:
    file = tree_of(f"facet A(x: Json = {print_expr(expr)})")
    facet = file.items[0]
    assert isinstance(facet, nodes.Facet)
    assert facet.params[0].default == expr


@settings(max_examples=examples(24), deadline=None)
@given(files)
def test_a_printed_file_parses_to_the_same_tree_and_is_formatted(file: nodes.File) -> None:
    text = print_file(file)
    assert tree_of(text) == file
    once = format_source(text)
    assert tree_of(once) == file
    assert format_source(once) == once


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_keeps_its_digest_when_printed(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    file = tree_of(text)
    printed = print_file(file)
    assert tree_of(printed) == file
    assert compile_sources([("a", printed)]).digest == compile_sources([("a", text)]).digest


@settings(max_examples=examples(80), deadline=None)
@given(st.text(st.sampled_from(" \tab\n"), max_size=30))
def test_dedented_code_in_a_new_frame_is_the_same_code(code: str) -> None:
    once, _ = dedent(code)
    assert dedent("\n" + once)[0] == once
