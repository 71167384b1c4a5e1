"""Text of strings, scripts and doc comments.

Escapes are decoded and encoded character by character; the end of a script is found, and its code dedented.
"""

from __future__ import annotations

import re
import unicodedata

from treadle.lang.nodes import DocComment

_ESCAPE = re.compile(
    r"\\(?:u(?P<pair>[dD][89abAB][0-9A-Fa-f]{2}\\u[dD][c-fC-F][0-9A-Fa-f]{2})|(?P<simple>[\"'\\abfnrtv])|(?P<octal>[0-7]{1,3})|x(?P<x>[0-9A-Fa-f]{2})|u(?P<u>[0-9A-Fa-f]{4})"
    r"|U(?P<U>[0-9A-Fa-f]{8})|N\{(?P<N>[^}\n\"]*)\}|(?P<join>\r?\n)|(?P<other>[\s\S]))"
)
_SIMPLE = {'"': '"', "'": "'", "\\": "\\", "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class BadEscape(ValueError):
    """A malformed escape, or one of a character that cannot be stored; `offset` counts from the start of the content."""

    def __init__(self, text: str, offset: int, *, malformed: bool = True) -> None:
        super().__init__(text)
        self.text = text
        self.offset = offset
        self.malformed = malformed


def decode(content: str) -> str:
    """Decode the content of a string literal; raise `BadEscape` for a malformed escape, U+0000 and half a surrogate pair.

    Known: `\\" \\' \\\\ \\a \\b \\f \\n \\r \\t \\v`, octal, `\\xXX`, `\\uXXXX` (also as a surrogate pair), `\\UXXXXXXXX`,
    `\\N{name}`, and a backslash at the end of a line, which joins the lines. Any other escape keeps its backslash.
    """
    if "\\" not in content:
        return content
    return _ESCAPE.sub(_checked, content)


def encode(text: str) -> str:
    """Return a string literal, including quotes, that decodes to the text; newlines become `\\n`."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return f'"{escaped}"'


def _checked(match: re.Match[str]) -> str:
    text = _decode_one(match)
    if _UNSTORABLE.search(text):
        raise BadEscape(match.group(), match.start(), malformed=False)
    return text


def _decode_one(match: re.Match[str]) -> str:
    kind = match.lastgroup
    value = match.group(kind) if kind else ""
    match kind:
        case "pair":
            return bytes.fromhex(value.replace("\\u", "")).decode("utf-16-be")
        case "simple":
            return _SIMPLE[value]
        case "octal":
            return chr(int(value, 8))
        case "x" | "u" | "U":
            code = int(value, 16)
            if code > 0x10FFFF:
                raise BadEscape(match.group(), match.start())
            return chr(code)
        case "N":
            try:
                return unicodedata.lookup(value)
            except (KeyError, UnicodeEncodeError):
                raise BadEscape(match.group(), match.start()) from None
        case "join":
            return ""
        case _:
            if value in "xuUN":
                raise BadEscape(match.group(), match.start())
            return match.group()


# --- raw Python blocks -----------------------------------------------------------------------------------------------

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
    while (match := _INTERESTING.search(text, position)) is not None:
        sign = match.group()
        position = match.end()
        if sign == "{":
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                return match.start()
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
    body = [lines[0].strip(" \t")] + [line[margin:] if line.strip() else "" for line in lines[1:]]
    first = next((number for number, line in enumerate(body) if line), 0)
    while body and not body[-1]:
        body.pop()
    return "\n".join(body[first:]).rstrip(" \t"), first


def _margin(lines: list[str]) -> int:
    """Return the length of the common leading white space."""
    if not lines:
        return 0
    low, high = min(lines), max(lines)
    margin = 0
    while margin < min(len(low), len(high)) and low[margin] == high[margin] and low[margin] in " \t":
        margin += 1
    return margin


# --- doc comments ----------------------------------------------------------------------------------------------------

_ENTRY = re.compile(r"@(param|return)s?\s+([A-Za-z_][A-Za-z0-9_]*)\s*(.*)")


def parse_doc(comment: str | None) -> DocComment | None:
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
    return DocComment("\n".join(described).strip(), tuple(entries["param"]), tuple(entries["return"]))
