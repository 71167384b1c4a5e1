"""Script blocks: raw Python within AFL, found, dedented, and mapped to lines of the source."""

from __future__ import annotations

import pytest
from tests.lang.programs import compiled, error, facet

from treadle.lang import nodes as p


def script(text: str) -> p.Script:
    found = facet(f"facet A() {text}", "A").pre_script
    assert found is not None
    return found


@pytest.mark.parametrize("text", ['script "x = 1"', 'script python "x = 1"', "script { x = 1 }", "script python { x = 1 }"])
def test_four_forms_mean_the_same(text: str) -> None:
    assert (script(text).language, script(text).code) == ("python", "x = 1")


@pytest.mark.parametrize(
    "code",
    [
        'x = "}"',
        "x = '}'",
        'x = """ } \' " """',
        "x = '''\n}\n'''",
        "x = {'a': {1: 2}}",
        "x = 1 # }",
        'x = f"{y}}}"',
        r'x = "\"}"',
        r"x = '\\'",
    ],
)
def test_braces_in_python_strings_and_comments_do_not_count(code: str) -> None:
    found = script(f"script {{\n{code}\n}}")
    assert found.code == code


def test_two_slashes_are_not_a_python_comment() -> None:
    assert script("script {\n x = 7 // 2 }").code == "x = 7 // 2"


def test_code_is_dedented_and_blank_lines_at_its_ends_go() -> None:
    assert script("script {\n\n        if a:\n            b()\n\n        c()\n\n    }").code == "if a:\n    b()\n\nc()"


def test_code_may_begin_behind_the_brace() -> None:
    assert script("script { x = 1\n         y = 2\n         }").code == "x = 1\ny = 2"


def test_strings_hold_code_that_is_dedented_too() -> None:
    assert script('script "\n    x = 1\n    y = 2\n"').code == "x = 1\ny = 2"


def test_a_string_that_begins_in_the_first_column_keeps_its_lines() -> None:
    assert script('script "if a:\n    b()\n\n    c()\n"').code == "if a:\n    b()\n\n    c()"
    assert script('script "x = 1\ny = 2"').code == "x = 1\ny = 2"


def test_the_location_names_the_first_line_of_the_code() -> None:
    for text, line in (("script { x = 1 }", 1), ("script {\n\n x = 1 }", 3), ("\n\nscript\n{\n x = 1 }", 5)):
        location = script(text).location
        assert location is not None
        assert location.code_line == line


def test_lines_after_a_script_are_counted_right() -> None:
    found = compiled('facet A() script {\n  x = """\n}\n"""\n}\nfacet B(x: Lnog)').errors[-1]
    assert (found.rule, found.line, found.column) == ("unknown-type", 6, 12)


def test_a_script_without_end_is_reported_at_its_brace() -> None:
    for text in ("facet A()\n  script { x = {1: 2}", "facet A()\n  script { x = '''}"):
        found = error(text)
        assert (found.rule, found.line, found.column) == ("unbalanced-script", 2, 10)


def test_empty_scripts_and_other_languages_are_errors() -> None:
    assert error("facet A() script { }").rule == "empty-script"
    assert error('facet A() script ""').rule == "empty-script"
    found = error("facet A() andThen script ruby { puts 1 }")
    assert (found.rule, found.valid) == ("script-language", ("python",))


def test_a_keyword_after_the_alias_script_names_no_language() -> None:
    for keyword in ("catch", "andThen", "when"):
        found = compiled(f"facet A() with B() as script {keyword} {{\n}}\nfacet B()")
        assert not any(each.rule in ("script-language", "empty-script", "unbalanced-script") for each in found.errors), keyword


def test_non_ascii_code_is_kept() -> None:
    assert script('script { x = "Größe 😀" }').code == 'x = "Größe 😀"'
    assert compiled("facet A() script \"x = 'é'\"").ok
