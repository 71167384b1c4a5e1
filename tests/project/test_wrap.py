"""Prose of the pages has short lines: long paragraphs are filled, and nothing else changes."""

from __future__ import annotations

import pytest
from build_tools.wrap import MAX_COLUMNS, WIDTH, long_lines, pages, wrapped

WORDS = " ".join(["word"] * 40)


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_has_no_long_lines_of_prose(page):
    assert long_lines(page.read_text("utf-8")) == [], "run `make fmt`"


@pytest.mark.parametrize("prefix", ["", "- ", "  - ", "12. ", "> "])
def test_a_long_paragraph_is_filled_below_its_prefix(prefix: str):
    lines = wrapped(f"{prefix}{WORDS}").split("\n")
    indent = prefix if prefix == "> " else " " * len(prefix)
    assert lines[0].startswith(prefix)
    assert all(line.startswith(f"{indent}word") for line in lines[1:])
    assert max(map(len, lines)) <= WIDTH
    assert wrapped("\n".join(lines)) == "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        f"| a | {WORDS} |",
        f"```text\n{WORDS}\n```",
        f"````\n```\n{WORDS}\n```\n{WORDS}\n````",
        f"    {WORDS}",
        f"# {WORDS}",
        f"<!-- {WORDS} -->",
        f"---\ntitle: {WORDS}\n---",
        "short\nlines stay",
    ],
)
def test_tables_code_headings_and_short_lines_stay(text: str):
    assert wrapped(text) == text
    assert long_lines(text) == []


def test_links_and_code_are_not_divided_and_no_line_begins_with_syntax():
    part = "[a link of words](target.md#anchor) and `code of words` - or # 12. more "
    lines = wrapped(part * 9).split("\n")
    assert max(map(len, lines)) <= MAX_COLUMNS
    for line in lines:
        assert line.count("[") == line.count("](")
        assert line.count("`") % 2 == 0
        assert not line.startswith(("- ", "# ", "12."))


def test_a_long_quotation_is_filled_as_one_paragraph():
    assert wrapped(f"> {WORDS}\n> last") == wrapped(f"> {WORDS} last")
