"""Finds the end of a raw Python block and dedents its code."""

from __future__ import annotations

import re

_INTERESTING = re.compile(r"\"\"\"|'''|[\"'#{}]")
_REST = {
    '"""': re.compile(r"[^\"\\]*(?:(?:\\[\s\S]|\"(?!\"\"))[^\"\\]*)*\"\"\""),
    "'''": re.compile(r"[^'\\]*(?:(?:\\[\s\S]|'(?!''))[^'\\]*)*'''"),
    '"': re.compile(r"[^\"\\\n]*(?:\\[\s\S][^\"\\\n]*)*(?:\"|(?=\n)|\Z)"),
    "'": re.compile(r"[^'\\\n]*(?:\\[\s\S][^'\\\n]*)*(?:'|(?=\n)|\Z)"),
    "#": re.compile(r"[^\n]*"),
}


def find_end(text: str, start: int) -> int | None:
    """Return the index of the brace that closes the block whose code begins at `start`; None if there is none.

    Braces within Python strings and comments do not count. The time is linear: an unterminated triple-quoted string means that
    the block never ends, and any other string ends with its line at the latest.
    """
    depth = 1
    position = start
    while (found := _INTERESTING.search(text, position)) is not None:
        sign = found.group()
        position = found.end()
        if sign == "{":
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                return found.start()
        else:
            rest = _REST[sign].match(text, position)
            if rest is None:
                return None
            position = rest.end()
    return None


def dedent(code: str, *, flush: bool = False) -> tuple[str, int]:
    """Return the code without its common indentation, and the number of lines dropped before its first line.

    The first line is stripped on its own, because it may follow the brace; blank lines at both ends are removed. With `flush`,
    code that begins in the first column keeps its indentation.
    """
    lines = [line.rstrip("\r") for line in code.split("\n")]
    margin = 0 if flush and code[:1].strip() else _margin([line for line in lines[1:] if line.strip()])
    shown = [lines[0].strip(" \t")] + [line[margin:] if line.strip() else "" for line in lines[1:]]
    first = next((number for number, line in enumerate(shown) if line), 0)
    while shown and not shown[-1]:
        shown.pop()
    return "\n".join(shown[first:]).rstrip(" \t"), first


def _margin(lines: list[str]) -> int:
    """Return the length of the common leading white space."""
    if not lines:
        return 0
    low, high = min(lines), max(lines)
    margin = 0
    while margin < min(len(low), len(high)) and low[margin] == high[margin] and low[margin] in " \t":
        margin += 1
    return margin
