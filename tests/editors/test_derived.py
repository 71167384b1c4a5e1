"""The editors' files are up to date, and highlighters agree with the compiler about every token."""

from __future__ import annotations

import json
import tomllib

import pytest
from build_tools.editors import EDITORS, ROOT, outdated
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, String, _TokenType
from tests.editors.corpus import differences, programs

from treadle.interfaces.lsp.pygments import AflLexer
from treadle.interfaces.lsp.scan import Class, scan

PROGRAMS = programs()
PYGMENTS: dict[_TokenType, Class] = {
    Keyword.Constant: Class.CONSTANT,
    Keyword.Type: Class.TYPE,
    Keyword: Class.KEYWORD,
    Comment: Class.COMMENT,
    String: Class.STRING,
    Number: Class.NUMBER,
    Name.Variable: Class.INPUT,
    Name: Class.NAME,
    Operator: Class.OPERATOR,
    Punctuation: Class.PUNCTUATION,
}


def test_derived_files_are_up_to_date() -> None:
    assert [str(path.relative_to(ROOT)) for path in outdated()] == [], "run `python -m build_tools.editors`"


def test_the_corpus_is_large_enough() -> None:
    assert len(PROGRAMS) > 25
    assert "tricky" in PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_tolerant_scanner_agrees_with_the_compiler(name: str) -> None:
    text = PROGRAMS[name]
    theirs = [""] * len(text)
    for token in scan(text):
        theirs[token.start : token.end] = [token.class_] * len(token.text)
    assert differences(text, theirs) == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_pygments_agrees_with_the_compiler(name: str) -> None:
    text = PROGRAMS[name]
    assert "".join(part for _, _, part in AflLexer().get_tokens_unprocessed(text)).replace("\ufeff", "") == text.replace(
        "\ufeff", ""
    )
    theirs = [""] * len(text)
    for at, type_, part in AflLexer().get_tokens_unprocessed(text):
        class_ = next((class_ for known, class_ in PYGMENTS.items() if type_ in known), "")
        theirs[at : at + len(part)] = [class_] * len(part)
    codes = [token for token in scan(text) if token.class_ is Class.CODE]
    for token in codes:  # coloured as Python
        theirs[token.start : token.end] = [Class.CODE] * len(token.text)
    assert differences(text, theirs) == []


def test_pygments_finds_the_lexer_by_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pygments.lexers"] == {"afl": "treadle.interfaces.lsp.pygments:AflLexer"}


def test_any_text_has_tokens_that_cover_it_in_order() -> None:
    text = PROGRAMS["tricky"]
    for end in range(0, len(text), 7):
        at = 0
        for token in scan(text[:end]):
            assert token.start >= at
            at = token.end
        assert at <= end


def test_json_files_of_the_extension_are_valid_and_name_files_that_exist() -> None:
    package = json.loads((EDITORS / "vscode/package.json").read_text(encoding="utf-8"))
    contributes = package["contributes"]
    paths = [contributes["languages"][0]["configuration"], contributes["grammars"][0]["path"], contributes["snippets"][0]["path"]]
    for path in paths:
        assert json.loads((EDITORS / "vscode" / path).read_text(encoding="utf-8"))
