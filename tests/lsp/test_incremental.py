"""An edit parses one declaration where possible, in little time, with the same result as parsing the whole text."""

from __future__ import annotations

import random
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from msgspec.structs import astuple

from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import Parser
from treadle.interfaces.lsp.workspace import Workspace
from treadle.lang.nodes import Node

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "examples").rglob("*.afl"), *(ROOT / "tests/golden/lang").glob("*.afl")])
PART = """event facet Fetch{n}(url: String, size: Long = {n}) => (body: String)
workflow Flow{n}(url: String) => (out: String) andThen {{
    first = Fetch{n}(url = $.url)
    second = Fetch{n}(
        url = first.body ++ $.url,
        size = 3 + 4
    )
    yield Flow{n}(out = second.body)
}}
"""


def everything(node: Any) -> Any:
    """Return all parts of a tree, spans included, which equality of nodes leaves out."""
    if isinstance(node, tuple):
        return tuple(everything(each) for each in node)
    if isinstance(node, Node):
        return (type(node), *(everything(each) for each in astuple(node)))
    return node


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.parent.name + "/" + path.name)
def test_a_parsed_edit_equals_a_parse_of_the_whole_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    chance = random.Random(path.name)
    for _ in range(40):
        at = chance.randrange(len(text))
        edited = text[:at] + chance.choice(["", "x", "1", " ", "/*", "}", '"', ")", "é", "\n"]) + text[at + chance.randrange(3) :]
        parser = Parser()
        parser.parse("a", text)
        again, whole = parser.parse("a", edited), Parser().parse("a", edited)
        assert again.broken == whole.broken
        assert again.diagnostics == whole.diagnostics
        if not whole.broken:
            assert everything(again.tree) == everything(whole.tree)


def test_an_edit_of_2000_lines_is_checked_within_100_milliseconds() -> None:
    """CPU time of this process; the best of several counts, and twice the promise is allowed, because others share the machine."""
    text = "".join(PART.format(n=number) for number in range(2000 // PART.count("\n") + 1))
    workspace = Workspace()
    best = 1e9
    for number in range(9):
        changed = text.replace("size = 3 + 4", f"size = 3 + {number}", 1)
        started = process_time()
        workspace.set("/big.afl", Document(changed, number))
        assert workspace.diagnostics("/big.afl") == []
        best = min(best, process_time() - started)
    assert best < 0.2


def test_only_the_edited_declaration_is_parsed() -> None:
    text = "namespace n {\n" + PART.format(n=1) + PART.format(n=2) + "}\n" + PART.format(n=3)
    parser = Parser()
    before = parser.parse("a", text).tree
    after = parser.parse("a", text.replace("size = 3 + 4", "size = 3 + 5", 1)).tree
    assert all(one is other for one, other in zip(before.items[1:], after.items[1:], strict=True))
    inner = list(zip(before.items[0].items, after.items[0].items, strict=True))  # type: ignore[union-attr]
    assert [one is other for one, other in inner] == [True, False, True, True]
