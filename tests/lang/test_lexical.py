"""The lexical rules of AFL: names, contextual keywords, literals, comments, doc comments."""

from __future__ import annotations

import pytest
from tests.lang.programs import assert_clean, block, default, error, facet, program

from treadle.lang import nodes as p
from treadle.lang.diagnostics import Source
from treadle.lang.tokens import KEYWORDS


def test_every_word_with_a_role_can_be_a_parameter() -> None:
    words = [*KEYWORDS, "python", "String", "Long", "Int", "Double", "Boolean", "Json"]
    words = [word for word in words if "." not in word]
    found = facet(f"facet A({', '.join(f'{word}: Long' for word in words)})", "A")
    assert [param.name for param in found.params] == words


@pytest.mark.parametrize("word", ["with", "in", "foreach", "as", "catch", "when", "not", "model", "system", "template", "python"])
def test_a_word_with_a_role_can_name_a_step(word: str) -> None:
    text = f"facet F(v: Long)\nworkflow W() andThen {{\n a = F(v = 1)\n {word} = F(v = a.v)\n b = F(v = {word}.v)\n}}"
    assert [step.name for step in block(text).steps] == ["a", word, "b"]


@pytest.mark.parametrize(
    "word", ["namespace", "use", "facet", "event", "workflow", "implicit", "schema", "andThen", "prompt", "script", "true", "null"]
)
def test_a_keyword_that_the_reference_rejects_cannot_name_a_step(word: str) -> None:
    found = error(f"facet F(v: Long)\nworkflow W() andThen {{\n {word} = F(v = 1)\n}}")
    assert (found.rule, found.line, found.column) == ("syntax-error", 3, 2)
    assert f"`{word}` is a keyword" in found.message


def test_yield_with_an_equals_sign_is_a_typo_with_a_fix() -> None:
    text = "workflow W() => (x: Long) andThen {\n yield = W(x = 1)\n}"
    found = error(text)
    assert (found.line, found.message) == (2, "unexpected `=` after `yield`")
    assert Source("s", text).apply(found.fixes[0].edits) == text.replace("yield =", "yield")


@pytest.mark.parametrize(
    ("written", "column"),
    [
        (r'"\u0000"', 22),
        (r'"a\0"', 23),
        (r'"\x00"', 22),
        (r'"\ud800"', 22),
        (r'"ab\udfff!"', 24),
        (r'"\N{NULL}"', 22),
        ('"\0"', 22),
    ],
)
def test_a_character_that_no_store_takes_is_an_error_at_its_place(written: str, column: int) -> None:
    found = error(f"facet A(x: String = {written})")
    assert (found.rule, found.line, found.column) == ("bad-character", 1, column)


@pytest.mark.parametrize("word", ["null", "in", "with", "true", "case", "template"])
def test_a_word_with_a_role_can_name_an_argument_and_a_map_key(word: str) -> None:
    text = f"facet F({word}: Json) workflow W() andThen {{ a = F({word} = #{{{word}: 1}}) }}"
    assert block(text).steps[0].call.args[0].name == word


def test_names_are_case_sensitive() -> None:
    assert_clean("facet A()\nfacet a()\nworkflow W() andThen { x = A() X = a() }")


def test_a_qualified_name_has_no_blanks_around_its_dots() -> None:
    assert error("namespace a { facet F() } workflow W() andThen { x = a . F() }").rule == "syntax-error"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r'"a\"b"', 'a"b'),
        (r'"a\\b"', "a\\b"),
        (r'"\n\t\r"', "\n\t\r"),
        (r'"\u00e9"', "é"),
        (r'"\x41\101"', "AA"),
        (r'"\ud83d\ude00"', "😀"),
        (r'"\U0001F600"', "😀"),
        (r'"\N{BULLET}"', "•"),
        (r'"\q\d{2}"', r"\q\d{2}"),
        ('"raw\nnewline"', "raw\nnewline"),
        ('"// no comment /* none */"', "// no comment /* none */"),
    ],
)
def test_strings_decode_defined_escapes_and_keep_others(written: str, meant: str) -> None:
    assert default(written) == p.Literal(meant)


@pytest.mark.parametrize("written", [r'"\u12"', r'"\x4"', r'"\U00110000"', r'"\N{NO SUCH NAME}"', r'"\uzzzz"'])
def test_a_malformed_escape_is_a_syntax_error_at_the_escape(written: str) -> None:
    found = error(f"facet A(x: String = {written})")
    assert (found.rule, found.line, found.column) == ("bad-escape", 1, 22)


def test_the_position_of_a_malformed_escape_counts_lines_within_the_string() -> None:
    found = error('facet A(x: String = "a\nbc\\u1")')
    assert (found.line, found.column) == (2, 3)


@pytest.mark.parametrize(("written", "meant"), [("3.14", 3.14), ("1.0e10", 1.0e10), ("2.5E-3", 0.0025), ("1.5e+2", 150.0)])
def test_floats_have_digits_on_both_sides_of_the_dot(written: str, meant: float) -> None:
    assert default(written) == p.Literal(meant)


@pytest.mark.parametrize("written", ["1.", ".5", "1e5", "1.e5", "'a'", "0x10", "1_000"])
def test_other_spellings_of_numbers_and_strings_are_rejected(written: str) -> None:
    assert error(f"facet A(x: Json = {written})").rule == "syntax-error"


def test_integers_may_have_leading_zeros_and_any_size() -> None:
    assert default("007") == p.Literal(7)
    assert default("9" * 100) == p.Literal(int("9" * 100))


@pytest.mark.parametrize("written", ["9" * 5000, "1.0e999"])
def test_a_number_that_cannot_be_represented_is_an_error(written: str) -> None:
    assert error(f"facet A(x: Json = {written})").rule == "number-too-large"


def test_negative_numbers_are_unary_minus_and_unary_plus_disappears() -> None:
    assert default("-3") == p.Unary("-", p.Literal(3))
    assert default("--1") == p.Unary("-", p.Unary("-", p.Literal(1)))
    assert default("+3") == p.Literal(3)


def test_true_false_and_null_are_literals() -> None:
    assert default("[true, false, null]") == p.ArrayLiteral((p.Literal(True), p.Literal(False), p.Literal(None)))


def test_comments_separate_tokens_and_do_not_nest() -> None:
    assert_clean("facet/* a */A(/* b */) // c\n/**/ /* /* */ facet B()")
    assert error("/* /* */ */").rule == "syntax-error"


def test_an_unfinished_comment_or_string_is_reported_where_it_begins() -> None:
    assert (error("facet A()\n /* x").line, error("facet A()\n /* x").column) == (2, 2)
    assert error('facet A(x: String = "abc)').column == 21


def test_a_doc_comment_belongs_to_the_declaration_that_follows() -> None:
    loaded = program(
        "/** ns */ namespace n {\n/** one */ facet A()\n/** two */ event facet B()\n/** three */ schema S { a: Long }\n"
        "/** old */ /** four */ workflow C()\nfacet D() }"
    )
    docs = {name: each.doc.description if each.doc else None for name, each in loaded.facets.items()}
    assert docs == {"n.A": "one", "n.B": "two", "n.C": "four", "n.D": None}
    assert loaded.schemas["n.S"].doc == p.DocComment("three")
    namespace = loaded.declarations[0]
    assert isinstance(namespace, p.Namespace)
    assert namespace.doc == p.DocComment("ns")


def test_doc_text_loses_its_frame_and_gives_up_params_and_returns() -> None:
    text = "/**\n * Does a thing.\n *\n *   Indented.\n * @param a the a\n * @return r the r\n * @param b\n */\nfacet A()"
    assert facet(text, "A").doc == p.DocComment("Does a thing.\n\n  Indented.", (("a", "the a"), ("b", "")), (("r", "the r"),))


def test_a_banner_counts_as_a_doc_comment() -> None:
    doc = facet("/***** x *****/\nfacet A()", "A").doc
    assert doc is not None
    assert "x" in doc.description


def test_a_doc_comment_anywhere_else_is_ignored() -> None:
    assert_clean(
        "namespace n { /** a */ use n /** b */ implicit i = F() /** c */ facet F(/** d */) schema S { /** e */ a: Long }\n"
        "workflow W() andThen { /** f */ x = F() /** g */ } /** h */ } /** i */"
    )


def test_crlf_and_a_byte_order_mark_are_accepted() -> None:
    assert_clean("\ufefffacet A()\r\nworkflow W() andThen {\r\n  a = A()\r\n}\r\n")
    found = error("\ufefffacet A(x: Lnog)\r\n")
    assert (found.line, found.column, found.text) == (1, 12, "facet A(x: Lnog)")


def test_an_empty_source_is_a_program() -> None:
    assert program("").declarations == ()
    assert program("// nothing\n").declarations == ()
