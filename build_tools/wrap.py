"""Wrap the prose of Markdown pages: `python -m build_tools.wrap`, or `--check` to list paragraphs with lines that are too long.

Paragraphs and list items with a line of more than `MAX_COLUMNS` columns are filled to `WIDTH`. Tables, code, HTML, headings and
link definitions stay as they are; links and code spans are not divided.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_COLUMNS, WIDTH = 132, 120
OMITTED = ("src/", "tests/", "bench/RESULTS.md")
"""Texts that programs read, and results that a benchmark writes."""

_FENCE = re.compile(r" *(```+|~~~+)")
_START = re.compile(r"(?P<prefix> *(?:(?:[-*+]|\d+\.) +|> ?)?)(?P<text>\S.*)")
_FIXED = re.compile(r" *(?:\||#|<|\[[^\]]+\]:|---|!!!|\?\?\?|\d+\.$)")
_NEW_ITEM = re.compile(r" *(?:[-*+] |\d+\. |> ?)")
_TOKEN = re.compile(r"(?:!?\[(?:[^\[\]]|\[[^\]]*\])*\]\([^)\s]*\)|`[^`\n]+`|\S)+")
_LOOKS_LIKE_SYNTAX = re.compile(r"(?:[-*+=#>|]|\d+[.)]|:?-+)(?:$|\s)|[#>|]")


def wrapped(text: str) -> str:
    """Return the page with filled paragraphs; wrapping it again changes nothing."""
    return "\n".join(line for block, prose in _blocks(text.split("\n")) for line in (_filled(block) if prose else block))


def long_lines(text: str) -> list[int]:
    """Return the numbers of prose lines that are too long."""
    found, number = [], 0
    for block, prose in _blocks(text.split("\n")):
        if prose and _filled(block) != block:
            found += [number + offset for offset, line in enumerate(block, 1) if len(line) > MAX_COLUMNS]
        number += len(block)
    return found


def _blocks(lines: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Divide a page into paragraphs and list items (True), and single lines that stay as they are (False)."""
    fence, block = "", list[str]()
    front_matter = lines[:1] == ["---"]
    for number, line in enumerate(lines):
        mark = _FENCE.match(line)
        quoted = bool(block) and block[-1].startswith(">") and line.startswith(">")
        item = _NEW_ITEM.match(line) and not quoted
        indented = line.startswith("    ") and not block and not item
        verbatim = bool(fence or mark or front_matter or indented or not line.strip() or _FIXED.match(line))
        if block and (verbatim or item):
            yield block, True
            block = []
        if verbatim:
            yield [line], False
        else:
            block.append(line)
        if mark:
            fence = "" if fence and mark[1].startswith(fence) else fence or mark[1]
        front_matter = front_matter and (number == 0 or line != "---")
    if block:
        yield block, True


def _filled(block: list[str]) -> list[str]:
    match = _START.fullmatch(block[0])
    if match is None or max(map(len, block)) <= MAX_COLUMNS or any(line.endswith("  ") for line in block):
        return block
    tokens = _TOKEN.findall(" ".join([match["text"], *(line.strip().removeprefix("> ") for line in block[1:])]))
    indent = match["prefix"] if match["prefix"].lstrip().startswith(">") else " " * len(match["prefix"])
    lines, current = list[str](), match["prefix"] + tokens[0]
    for token in tokens[1:]:
        if len(current) + 1 + len(token) > WIDTH and not _LOOKS_LIKE_SYNTAX.match(token):
            lines.append(current)
            current = indent + token
        else:
            current += f" {token}"
    return [*lines, current]


def pages() -> list[Path]:
    """All Markdown pages of the repository that people read."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in listed if not name.startswith(OMITTED)]


def main() -> int:
    found = 0
    for page in pages():
        text = page.read_text("utf-8")
        for number in long_lines(text):
            found += 1
            sys.stdout.write(f"{page.relative_to(ROOT)}:{number}: more than {MAX_COLUMNS} columns\n")
        if "--check" not in sys.argv and wrapped(text) != text:
            page.write_text(wrapped(text), "utf-8")
    return bool(found and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
