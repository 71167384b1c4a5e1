"""Globs on file names, compiled to expressions that match in time linear in the name, for any glob. Pure."""

from __future__ import annotations

import re

from treadle.model.errors import InvalidWatcher

LONGEST = 1000
MOST_DEPTHS = 4
"""Maximum number of `**` in a glob: each slows matching by the depth of the name."""

_ANY_PARTS = r"(?:[^./][^/]*/)*"


def compile_pattern(pattern: str, *, recursive: bool = False) -> re.Pattern[str]:
    """Compile a glob on names with `/`: `*` and `?` stay within one part, `**` matches any number of parts.

    Wildcards do not match a name that begins with a dot. With `recursive`, a pattern of one part matches at any depth.
    Raises `InvalidWatcher` for an invalid glob.
    """
    if not isinstance(pattern, str) or not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise InvalidWatcher(f"{pattern!r} is not a valid pattern: it must be relative to the directory, e.g. *.csv or **/*.csv.")
    parts = pattern.split("/")
    if len(pattern) > LONGEST or parts.count("**") > MOST_DEPTHS:
        raise InvalidWatcher(f"A pattern has at most {LONGEST} characters, and `**` at most {MOST_DEPTHS} times.")
    if recursive and "**" not in parts:
        parts = ["**", *parts]
    text = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            text += _ANY_PARTS + (r"[^./][^/]*" if last else "")
            continue
        text += _part(part) + ("" if last else "/")
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise InvalidWatcher(f"{pattern!r} is not a valid pattern: {error}.") from None


def _part(part: str) -> str:
    """Compile one part. The text between two stars matches at its first occurrence, without backtracking."""
    text = r"(?!\.)" if part[:1] in ("*", "?", "[") else ""
    first, *others = _pieces(part)
    text += first
    for index, piece in enumerate(others):
        text += rf"[^/]*{piece}" if index == len(others) - 1 else rf"(?>[^/]*?{piece})"
    return text


def _letters(inner: str) -> str:
    """Compile the text between brackets, escaping characters that are special only in expressions."""
    if "--" in inner:
        raise InvalidWatcher(f"[{inner}] is not a valid set of letters: it has a range that ends in a dash.")
    no = "^" if inner.startswith("!") else ""
    return no + re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[len(no) :])


def _pieces(part: str) -> list[str]:
    """Split at the stars; each piece matches names of one length only."""
    pieces, index = [""], 0
    while index < len(part):
        letter = part[index]
        closing = part.find("]", index + 2) if letter == "[" else -1
        if letter == "*":
            pieces.append("")
        elif letter == "?":
            pieces[-1] += r"[^/]"
        elif closing > 0:
            pieces[-1] += rf"(?!/)[{_letters(part[index + 1 : closing])}]"
            index = closing
        else:
            pieces[-1] += re.escape(letter)
        index += 1
    return pieces
