"""Splits AFL into tokens in one pass with one regular expression, and reports text that cannot be read.

Keywords are contextual, so words are all of one kind and the parser decides; it marks keywords with their role. Only `{` after
`script` needs context here: it opens raw Python. Text that cannot be read becomes the token that was probably meant.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from treadle.lang import literals
from treadle.lang.diagnostics import Edit, Fix, Reporter, Source, replace
from treadle.lang.nodes import Span
from treadle.lang.tokens import KEYWORDS, PATTERNS, WORDS, Token

_BLANK = re.compile(PATTERNS["blank"])
_TOKEN = re.compile(
    r"[ \t\r\f]*(?:"
    + "|".join(f"(?P<{kind}>{rule})" for kind, rule in PATTERNS.items() if kind != "blank")
    + r"|(?P<lines>\n[ \t\r\n\f]*)|(?P<other>[\s\S]))"
)
_WORD, _INPUT, _STRING, _SIGN, _LINES = (_TOKEN.groupindex[kind] for kind in ("word", "input", "string", "sign", "lines"))
_PLAIN = re.compile(r'"[^"\\\n]+"').fullmatch  # a string that needs no decoding
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_NUMBER_TAIL = re.compile(r"[0-9A-Za-z_]+")
_REST_OF_LINE = re.compile(r"[^\n]*")
_TRIPLE = re.compile(r'"""([\s\S]*?)"""')
NO_QUOTE = 'the string that begins here has no closing `"`'
_FOREIGN_STRING = re.compile(r"'((?:[^'\n\\]|\\.)*)'|“([^”\n]*)”|`([^`\n]*)`")
_TEMPLATE = re.compile(r"`[^`\n]*\$\{[^`\n]*`")
_DOLLAR = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)\}?")
_FOREIGN_NAME = re.compile(r"[^\W\d]\w*")
_MEANT = {"&": "&&", "|": "||", "→": "=>", "⇒": "=>", "≠": "!=", "≤": "<=", "≥": ">="}
_NULLS = ("null", "None", "nil", "undefined", "Null", "NULL")
_OR_NULL = re.compile(rf"\|[ \t]*(?:{'|'.join(_NULLS)})\b")
_OR_TYPE = re.compile(r"\|[ \t]*(\[+[A-Za-z][\w.]*\]+|[A-Z][\w.]*)\??")
_NAME_FOLLOWS = frozenset(["namespace", "schema", "use", "uses"])  # after these, `script` is a name
_MAX_DIGITS = 4000


@dataclass(slots=True)
class Lexed:
    """The tokens, of which the last has the kind `end`; comments are apart."""

    tokens: list[Token] = field(default_factory=list)
    comments: list[Token] = field(default_factory=list)


def lex(source: Source, reporter: Reporter, unclosed: Mapping[int, str] = {}) -> Lexed:
    """Split a whole source; takes linear time and never raises.

    `unclosed` has the offsets of quotes that the parser found to be wrong, with the messages: such a string ends with its line.
    """
    return _Lexer(source, reporter, unclosed).run()


class _Lexer:
    def __init__(self, source: Source, reporter: Reporter, unclosed: Mapping[int, str]) -> None:
        self.unclosed = unclosed
        self.source, self.text, self.reporter = source, source.text, reporter
        self.found = Lexed()
        self.position = self.line_start = 1 if source.text.startswith("\ufeff") else 0
        self.line = 1
        self.doc: str | None = None
        self.broken = False  # there was a newline since the last token

    def run(self) -> Lexed:
        text, append = self.text, self.found.tokens.append
        self._check_characters()
        position, line, line_start, broken, doc = self.position, self.line, self.line_start, self.broken, self.doc
        while True:
            for match in _TOKEN.finditer(text, position):
                kind = match.lastindex or 0
                if kind == _LINES:
                    line += match[kind].count("\n")
                    position = match.end()
                    line_start = text.rindex("\n", 0, position) + 1
                    broken = True
                    continue
                word, end = match[kind], match.end()
                if kind == _WORD:
                    token = Token("dotted" if "." in word else "name", word, end - len(word), end, line, line_start, broken)
                elif kind == _SIGN and not (word == "{" and self._opens_script()):
                    token = Token(word, word, end - len(word), end, line, line_start, broken)
                elif kind == _INPUT:
                    token = Token("input", word, end - len(word), end, line, line_start, broken)
                elif kind == _STRING and _PLAIN(word) and not self.unclosed:
                    token = Token("string", word, end - len(word), end, line, line_start, broken, word[1:-1])
                else:
                    break
                if doc is not None:
                    token.doc, doc = doc, None
                append(token)
                broken, position = False, end
            else:
                match = None
            self.position, self.line, self.line_start, self.broken, self.doc = position, line, line_start, broken, doc
            if match is None or match.lastgroup == "other":
                if not self._unreadable():
                    return self.found
            else:
                self.position = end - len(word)
                self._other(str(match.lastgroup), word, end)
            position, line, line_start, broken, doc = self.position, self.line, self.line_start, self.broken, self.doc

    def _check_characters(self) -> None:
        if self.text.isascii() and "\0" not in self.text:
            return
        if (bad := _UNSTORABLE.search(self.text)) is not None:
            line = self.text.count("\n", 0, bad.start()) + 1
            column = bad.start() - (self.text.rfind("\n", 0, bad.start()) + 1) + 1
            code_point = f"U+{ord(bad.group()):04X}"
            self.reporter.report("bad-character", self.source, Span(line, column, line, column + 1), shown=code_point)

    def _opens_script(self) -> bool:
        """Return whether the last tokens are `script`, as a keyword, or that and a language, which no keyword names."""
        tokens = self.found.tokens
        for back in (1, 2):
            if len(tokens) < back or tokens[-back].kind != "name":
                return False
            if tokens[-back].text == "script":
                if back == 2 and tokens[-1].text in KEYWORDS:
                    return False
                before = [token.text for token in tokens[-back - 3 : -back]]
                iterable = before[-1:] == ["in"] and before[0] == "foreach"
                return not (iterable or (before and before[-1] in _NAME_FOLLOWS and before[-2:-1] != ["as"]))
        return False

    def _other(self, kind: str, word: str, end: int) -> None:
        """Add a token that may span lines or needs decoding."""
        match kind:
            case "comment" | "doc":
                self.found.comments.append(self._token("comment", end))
                if kind == "doc":
                    self.doc = word
            case "string":
                self._string(word, end)
            case "sign":
                self._script()
            case "float" | "integer":
                self._number(kind, word, end)
            case _:
                self._add(kind, end)

    def _string(self, word: str, end: int) -> None:
        start = self.position
        if start in self.unclosed:
            self._unclosed(self.unclosed[start])
            return
        if word == '""' and (triple := _TRIPLE.match(self.text, start)) is not None:
            token = self._add("string", triple.end())
            token.value = triple[1]
            fix = replace("Use one quote at each end", token.span, '"' + triple[1].replace('"', '\\"') + '"')
            self._report(token, 'unexpected `"""`', 'a string has one `"` at each end and may span lines', [fix])
            return
        try:
            value = literals.decode(word[1:-1])
        except literals.BadEscape as bad:
            value = word[1:-1]
            line, column = self._place(start + 1 + bad.offset)
            key = "bad-escape" if bad.malformed else "bad-character:escape"
            self.reporter.report(key, self.source, Span(line, column, line, column + len(bad.text)), text=bad.text)
        self._add("string", end).value = value

    def _unclosed(self, message: str) -> None:
        token = self._add("string", _end(_REST_OF_LINE, self.text, self.position))
        inside = message != NO_QUOTE and self.text[token.start - 1 : token.start].isspace()
        self._report(token, message, 'end it before, or write `\\"` for a quote inside it' if inside else None)
        token.value = token.text[1:]

    def _place(self, offset: int) -> tuple[int, int]:
        """Return line and column of an offset within the token that begins here."""
        newlines = self.text.count("\n", self.position, offset)
        start = self.text.rindex("\n", self.position, offset) + 1 if newlines else self.line_start
        return self.line + newlines, offset - start + 1

    def _number(self, kind: str, word: str, end: int) -> None:
        if (tail := _NUMBER_TAIL.match(self.text, end)) is not None:
            token = self._add("integer", tail.end())
            fixes = [replace(f"Write `{meant}`", token.span, meant)] if (meant := _number_meant(token.text)) else []
            self._report(token, f"malformed number `{token.text[:40]}`", "write `1.0e5`, not `1e5`; `1000`, not `1_000`", fixes)
            token.text = "0"
            return
        token = self._add(kind, end)
        if len(word) > _MAX_DIGITS or (kind == "float" and float(word) == float("inf")):
            self._report(token, "this number is too large", rule="number-too-large")
            token.text = "0"

    def _script(self) -> None:
        end = literals.find_end(self.text, self.position + 1)
        if end is None:
            token = self._add("bad", self.position + 1)
            self._report(token, "the script that begins here has no closing `}`", rule="unbalanced-script")
            self._advance(len(self.text))
            return
        code, dropped = literals.dedent(self.text[self.position + 1 : end])
        line = self.line + dropped
        token = self._add("code", end + 1)
        token.value, token.code_line = code, line

    def _unreadable(self) -> bool:
        """Handle text that is no token; at the end of the text, add the last token and return False."""
        if (blank := _BLANK.match(self.text, self.position)) is not None:
            self.broken = self.broken or "\n" in blank.group()
            self._advance(blank.end())
        at = self.position
        if at >= len(self.text):
            self._add("end", at)
            return False
        char, text = self.text[at], self.text
        if char == '"':
            self._unclosed(self.unclosed.get(at, NO_QUOTE))
        elif text.startswith("/*", at):
            self._report(self._token("bad", at + 1), "the comment that begins here has no closing `*/`")
            self._advance(len(text))
        elif char == "#":
            token = self._token("comment", _end(_REST_OF_LINE, text, at))
            fix = replace("Write `//`", token.span.part(0, 1), "//")
            self._report(token, "`#` does not begin a comment", "AFL comments begin with `//`", [fix])
        elif text.startswith("```", at):
            self._fence()
        elif (char == "$" and text.startswith('"', at + 1)) or (char == "`" and _TEMPLATE.match(text, at) is not None):
            self._add("name", at if char == "`" else at + 1).text = "f"
            if char == "`" and (string := _FOREIGN_STRING.match(text, at)) is not None:
                self._add("string", string.end()).value = string[3]
        elif char in "'“`" and (string := _FOREIGN_STRING.match(text, at)) is not None:
            token = self._add("string", string.end())
            token.value = string[1] or string[2] or string[3] or ""
            fix = replace("Use double quotes", token.span, literals.encode(token.value))
            self._report(token, f"unexpected character `{char}`", "use double quotes for strings", [fix])
        elif char == "$" and (name := _DOLLAR.match(text, at)) is not None:
            token = self._add("input", name.end())
            token.text = f"$.{name[1]}"
            fix = replace(f"Write `{token.text}`", token.span, token.text)
            self._report(token, "unexpected character `$`", "an input is written `$.name`", [fix])
        elif char == ".":
            self._add(char, at + 1)
        elif char == "|" and (self._nullable() or self._union()):
            pass
        elif char in _MEANT:
            token = self._add(_MEANT[char], at + 1)
            token.text = token.kind
            fix = replace(f"Write `{token.kind}`", token.span, token.kind)
            piped = char in "&|" and self.found.tokens[-2:-1] and self.found.tokens[-2].kind == ")"
            hint = f"write `{token.kind}`" + (" between conditions; steps need nothing between them" if piped else "")
            self._report(token, f"unexpected character `{char}`", hint, [] if piped else [fix])
        elif (name := _FOREIGN_NAME.match(text, at)) is not None:
            token = self._add("name", name.end())
            self._report(token, f"unexpected character `{char}`", "names consist of ASCII letters, digits and `_`")
        else:
            token = self._add("bad", at + 1)
            self._report(token, f"unexpected character `{char}`")
        return True

    def _nullable(self) -> bool:
        """Read the rest of a type such as `Long | null` as `Long?`, if one ends here."""
        match, before = _OR_NULL.match(self.text, self.position), self.found.tokens[-2:]
        if match is None or len(before) < 2:
            return False
        last = before[1]
        named = before[0].kind in (":", "[") and last.kind in WORDS and last.text[0].isupper()
        if not named and not (last.kind in ("]", "?") and not last.broken):
            return False
        token = self._add("?", match.end())
        token.text = "?"
        fix = replace("Write `?`", last.span.end.to(token.span), "" if last.kind == "?" else "?")
        type_name = "T" if not named else last.text
        self._report(token, f"unexpected `{match[0]}` after a type", f"an optional type is written `{type_name}?`", [fix])
        if last.kind == "?":
            self.found.tokens.pop()
        return True

    def _union(self) -> bool:
        """Report a type such as `null | Long` or `Long | String`, if one stands here, and read it as its second part."""
        match, before = _OR_TYPE.match(self.text, self.position), self.found.tokens[-2:]
        if match is None or len(before) < 2 or before[0].kind not in (":", "[") or before[1].kind not in WORDS:
            return False
        first, nullable = before[1], before[1].text in _NULLS
        if not nullable and not first.text[0].isupper():
            return False
        meant, hint = f"{match[1]}?", f"an optional type is written `{match[1]}?`"
        if not nullable:
            meant, hint = "Json", "AFL has no union types: `Json` takes any value, and `Long?` a Long or null"
        whole = first.span.to(self._token("bad", match.end()).span)
        self._report(first, "unexpected `|` in a type", hint, [replace(f"Write `{meant}`", whole, meant)], span=whole)
        first.text = "Json"
        return True

    def _fence(self) -> None:
        token = self._token("comment", _end(_REST_OF_LINE, self.text, self.position))
        fix = Fix("Remove the fence", (Edit(Span(token.span.line, 1, token.span.line + 1, 1), ""),))
        self._report(token, "unexpected Markdown fence", "give only the AFL between the fences", [fix])

    def _report(
        self,
        token: Token,
        message: str,
        hint: str | None = None,
        fixes: list[Fix] | None = None,
        *,
        rule: str = "",
        span: Span | None = None,
    ) -> None:
        self.reporter.report(rule or "syntax-error", self.source, span or token.span, text=message, hint=hint, fixes=fixes or ())
        token.reported = True

    def _add(self, kind: str, end: int) -> Token:
        token = self._token(kind, end)
        token.doc = self.doc
        self.found.tokens.append(token)
        self.broken, self.doc = False, None
        return token

    def _token(self, kind: str, end: int) -> Token:
        """Return the token from here to `end`, and advance to `end`."""
        start, line, line_start = self.position, self.line, self.line_start
        self._advance(end)
        token = Token(kind, self.text[start:end], start, end, line, line_start, self.broken)
        if self.line > line:
            token.span = Span(line, start - line_start + 1, self.line, end - self.line_start + 1)
        return token

    def _advance(self, end: int) -> None:
        newlines = self.text.count("\n", self.position, end)
        if newlines:
            self.line += newlines
            self.line_start = self.text.rindex("\n", self.position, end) + 1
        self.position = end


def _end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start + 1


def _number_meant(text: str) -> str | None:
    """Return the AFL form of a number in the notation of other languages."""
    if re.fullmatch(r"[0-9]+[eE][0-9]+", text):
        return re.sub(r"[eE]", ".0e", text)
    if re.fullmatch(r"[0-9]+(_[0-9]+)+", text):
        return text.replace("_", "")
    if re.fullmatch(r"0[xX][0-9A-Fa-f]+", text):
        return str(int(text, 16))
    return text[:-1] if re.fullmatch(r"[0-9]+[lLfFdD]", text) else None
