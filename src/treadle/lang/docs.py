"""Parses doc comments."""

from __future__ import annotations

import re

from treadle.lang.program import Doc

_ENTRY = re.compile(r"@(param|return)s?\s+([A-Za-z_][A-Za-z0-9_]*)\s*(.*)")


def parse_doc(comment: str | None) -> Doc | None:
    """Strip the delimiters and, on each line, blanks, one `*` and one blank; collect `@param` and `@return` lines."""
    if comment is None:
        return None
    text = comment[3:-2]
    described: list[str] = []
    entries: dict[str, list[tuple[str, str]]] = {"param": [], "return": []}
    for raw in text.split("\n"):
        line = raw.strip()
        if line.startswith("*"):
            line = line[1:].removeprefix(" ")
        entry = _ENTRY.match(line)
        if entry:
            entries[entry[1]].append((entry[2], entry[3].strip()))
        else:
            described.append(line.rstrip())
    return Doc("\n".join(described).strip(), tuple(entries["param"]), tuple(entries["return"]))
