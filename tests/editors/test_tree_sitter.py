"""The tree-sitter grammar accepts what the compiler's parser accepts, and nothing else."""

from __future__ import annotations

import logging
import re
import shutil

import pytest
from build_tools.editors import EDITORS
from tests.editors.corpus import ROOT, accepts, programs
from tests.editors.mutations import mutants

pytest.importorskip("lark", reason="lark makes the tables that run the tree-sitter grammar")
from lark import logger
from tests.editors.scanner import Scanner
from tests.editors.tree_sitter_grammar import Grammar

FOLDER = EDITORS / "tree-sitter-afl"
PROGRAMS = programs()
pytestmark = [
    pytest.mark.xdist_group("editors tree sitter"),
    pytest.mark.skipif(
        not (shutil.which("node") and shutil.which("gcc")),
        reason="node evaluates grammar.js and gcc compiles scanner.c: both are needed",
    ),
]
BY_LOOKAHEAD = re.compile(r"\b(with|as|catch|andThen|in|not|contains|startsWith|endsWith)\s*=")
"""Steps with these names: the parser looks one token ahead, the grammar takes the word for the keyword."""


@pytest.fixture(scope="module")
def grammar(tmp_path_factory: pytest.TempPathFactory) -> Grammar:
    """The grammar, whose tables must have no conflict."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        made = Grammar(FOLDER, Scanner(tmp_path_factory.mktemp("scanner"), FOLDER / "src" / "scanner.c"))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert [line for line in lines if "onflict" in line] == []
    return made


def test_every_correct_program_is_accepted(grammar: Grammar) -> None:
    assert [name for name, text in PROGRAMS.items() if not BY_LOOKAHEAD.search(text) and not grammar.accepts(text)] == []


def test_programs_of_the_documentation_have_the_same_verdict(grammar: Grammar) -> None:
    text = (ROOT / "docs/reference/diagnostics.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```afl\n(.*?)```", text, re.DOTALL)
    assert len(blocks) > 50
    assert [block for block in blocks if accepts(block) != grammar.accepts(block)] == []


@pytest.mark.parametrize("name", [name for name in PROGRAMS if not name.startswith("docs/")])
def test_mutants_have_the_same_verdict(grammar: Grammar, name: str) -> None:
    texts = [text for text in mutants(PROGRAMS[name], name, 5) if not BY_LOOKAHEAD.search(text)]
    assert [text for text in texts if accepts(text) != grammar.accepts(text)] == []


def test_highlighting_names_nodes_and_words_of_the_grammar(grammar: Grammar) -> None:
    query = re.sub(r"(?m)^;.*", "", (FOLDER / "queries" / "highlights.scm").read_text(encoding="utf-8"))
    nodes = set(re.findall(r"\((\w+)", re.sub(r'"[^"]*"|#[\w-]+\?', "", query))) - {"_"}
    assert nodes <= grammar.json["rules"].keys() | grammar.externals | {"returns"}
    words = set(re.findall(r'"([^"]*)"', re.sub(r"\(#any-of.*", "", query)))
    assert {word for word in words if word not in grammar.literals} == set()
