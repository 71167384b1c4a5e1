"""Splits AFL into tokens; a word is a keyword only where the parser accepts that keyword.

The parser requests one token at a time and passes the kinds that its state accepts. They decide between keyword and name,
between `{` and a raw Python block, and where a newline stands for a token. Newlines are allowed wherever a statement or list may
break; `_check_newline` rejects the others.
"""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, field

from treadle.lang import escapes, scripts
from treadle.lang.tokens import BINARY_OPERATORS, KINDS, LITERALS, PATTERNS, REFERENCES, SIGNS, Token
from treadle.lang.tree import Span

_TOKEN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in PATTERNS.items()))
_NAMING = re.compile(r"[ \t]*(?:=(?![=>])|:)")
_OPERAND_ENDS = LITERALS | REFERENCES | {"RPAR", "RSQB", "RBRACE"}
_NO_BREAK_AFTER = frozenset(
    ["NAMESPACE", "USE", "FACET", "EVENT", "WORKFLOW", "IMPLICIT", "SCHEMA", "YIELD", "_COLON", "_AS", "FOREACH", "WITH"]
)
_NO_BREAK_BEFORE = frozenset(["_COLON", "_EQ"])
_CLOSERS = frozenset(["RPAR", "RSQB", "RBRACE"])
_MAX_DIGITS = 4000


class LexError(Exception):
    """A place where no token can be read."""

    def __init__(self, rule: str, message: str, span: Span, hint: str | None = None) -> None:
        super().__init__(message)
        self.rule = rule
        self.message = message
        self.span = span
        self.hint = hint


@dataclass(slots=True)
class Lexer:
    """Reads one source from start to end; with `keep` it collects all tokens and comments for the formatter."""

    text: str
    keep: bool = False
    position: int = 0
    line: int = 1
    line_start: int = 0
    previous: str = ""  # the kind of the last token
    second: str = ""  # and of the one before it
    open: list[str] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    comments: list[Token] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.text.startswith("\ufeff"):
            self.position = self.line_start = 1

    def next(self, accepted: Container[str]) -> Token:
        """Return the next token, of an accepted kind if the text allows it; `$END` at the end. Raises `LexError`."""
        doc, broken = self._skip()
        token = self._read(accepted, broken)
        token.doc = doc
        if self.keep and token.start_pos < token.end_pos:
            self.tokens.append(token)
        if broken:
            self._check_newline(token)
        self._remember(token)
        return token

    def _skip(self) -> tuple[str | None, bool]:
        """Skip blanks and comments; return the last doc comment and whether there was a newline."""
        doc: str | None = None
        first = self.line
        while (match := _TOKEN.match(self.text, self.position)) is not None:
            text = match.group()
            if match.lastgroup in ("comment", "doc"):
                comment = self._token("COMMENT", text, match.end())
                if self.keep:
                    self.comments.append(comment)
                if match.lastgroup == "doc":
                    doc = text
            elif match.lastgroup == "blank":
                self._advance(match.end())
            else:
                break
        return doc, self.line > first

    def _read(self, accepted: Container[str], broken: bool) -> Token:
        text = self.text
        ended = self.position >= len(text)
        if (broken or ended) and self._after_namespace() and text[self.position : self.position + 1] != "{":
            return self._token("_FILE_SCOPE", "", self.position)
        if ended:
            return self._token("$END", "", self.position)
        if broken and "_FIELD_BREAK" in accepted and self._in("SCHEMA") and text[self.position] not in ",}":
            return self._token("_FIELD_BREAK", "", self.position)
        match = _TOKEN.match(text, self.position)
        if match is None:
            raise self._unreadable()
        word, end = match.group(), match.end()
        match match.lastgroup:
            case "word":
                return self._token(self._word_type(word, end, accepted), word, end)
            case "input":
                return self._token("INPUT", word, end)
            case "string":
                return self._string(word, end)
            case "float" | "integer":
                return self._number(match.lastgroup, word, end)
            case _:
                if word == "{" and "CODE" in accepted:
                    return self._code()
                return self._token(SIGNS[word], word, end)

    def _after_namespace(self) -> bool:
        """Return whether `namespace name` was read last; the parser's state is shared with other names and cannot tell."""
        return self.second == "NAMESPACE" and self.previous in ("NAME", "DOTTED")

    def _in(self, *kinds: str) -> bool:
        return bool(self.open) and self.open[-1] in kinds

    def _word_type(self, word: str, end: int, accepted: Container[str]) -> str:
        keyword = KINDS.get(word)
        plain = "DOTTED" if "." in word else "NAME"
        if keyword is None or keyword not in accepted:
            return plain
        if plain in accepted and _NAMING.match(self.text, end):
            return plain
        return keyword

    def _string(self, word: str, end: int) -> Token:
        try:
            value = escapes.decode(word[1:-1])
        except escapes.BadEscape as bad:
            before = word[: bad.offset + 1]
            line = self.line + before.count("\n")
            column = self.position - self.line_start + 1 + len(before)
            if "\n" in before:
                column = len(before) - before.rindex("\n")
            span = Span(line, column, line, column + len(bad.text))
            raise LexError("bad-escape", f"malformed escape `{bad.text}` in a string", span) from None
        return self._token("STRING", value, end)

    def _number(self, kind: str, word: str, end: int) -> Token:
        token = self._token("FLOAT" if kind == "float" else "INTEGER", word, end)
        if len(word) > _MAX_DIGITS or (kind == "float" and float(word) == float("inf")):
            raise LexError("number-too-large", "this number is too large", token.span)
        return token

    def _code(self) -> Token:
        start = self.position + 1
        end = scripts.find_end(self.text, start)
        if end is None:
            column = self.position - self.line_start + 1
            span = Span(self.line, column, self.line, column + 1)
            raise LexError("unbalanced-script", "the script that begins here has no closing `}`", span)
        code, dropped = scripts.dedent(self.text[start:end])
        line = self.line + dropped
        token = self._token("CODE", code, end + 1)
        token.code_line = line
        return token

    def _unreadable(self) -> LexError:
        char = self.text[self.position]
        column = self.position - self.line_start + 1
        span = Span(self.line, column, self.line, column + 1)
        if char == '"':
            return LexError("syntax-error", 'the string that begins here has no closing `"`', span)
        if self.text.startswith("/*", self.position):
            return LexError("syntax-error", "the comment that begins here has no closing `*/`", span)
        hint = "use double quotes for strings" if char == "'" else None
        return LexError("syntax-error", f"unexpected character `{char}`", span, hint)

    def _check_newline(self, token: Token) -> None:
        """Reject a line that begins with a binary operator, or breaks between a keyword and its operand."""
        if self._in("LSQB", "MAP_OPEN"):
            return
        kind, last = token.type, self.previous
        if kind in BINARY_OPERATORS and last in _OPERAND_ENDS and self.open:
            hint = f"end the previous line with `{token.value}` instead"
            raise LexError("syntax-error", f"a line cannot begin with the operator `{token.value}`", token.span, hint)
        if kind in _NO_BREAK_BEFORE or (kind == "_LPAR" and last in ("NAME", "DOTTED")) or last in _NO_BREAK_AFTER:
            what = f"`{token.value}`" if token.value else "this"
            raise LexError("syntax-error", f"unexpected line break before {what}", token.span, "join the two lines")

    def _remember(self, token: Token) -> None:
        kind = token.type
        if kind in ("_LPAR", "LBRACE", "LSQB", "MAP_OPEN"):
            self.open.append("SCHEMA" if kind == "LBRACE" and self.second == "SCHEMA" else kind)
        elif kind in _CLOSERS and self.open:
            self.open.pop()
        self.second, self.previous = self.previous, kind

    def _token(self, kind: str, value: str, end: int) -> Token:
        """Return the token from here to `end`, and advance to `end`."""
        start, line, column = self.position, self.line, self.position - self.line_start + 1
        self._advance(end)
        return Token(kind, value, start, end, line, column, self.line, end - self.line_start + 1)

    def _advance(self, end: int) -> None:
        newlines = self.text.count("\n", self.position, end)
        if newlines:
            self.line += newlines
            self.line_start = self.text.rindex("\n", self.position, end) + 1
        self.position = end
