"""The parser's place in the tokens: lookahead, brackets, and syntax errors with recovery.

An error is reported where its token is missing: at the end of the previous token if the line ends there. It raises `ReportedError`;
the nearest list, statement or declaration catches it, skips to a place where parsing can go on, and continues. Nothing is
reported twice at one place, nor where the lexer has reported something.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from treadle.lang import hints
from treadle.lang.diagnostics import Edit, Fix, Reporter, Source, nearest, replace
from treadle.lang.lexer import NO_QUOTE, Lexed
from treadle.lang.messages import SYNTAX_ERRORS
from treadle.lang.nodes import Name, Span
from treadle.lang.tokens import BRACKETS, CLOSERS, KEYWORDS, OPENERS, WORDS, Token

_T = TypeVar("_T")
DECLARATIONS = frozenset(["namespace", "facet", "event", "workflow", "implicit", "schema", "use", "uses"])
_TEXTS = WORDS | {"string"}
_SHOWN = 40
# The end of a string that is probably AFL: the quote after it opens a string.
_CODE = re.compile(r"(?:[=(\[,:+]|\b(?:system|template|model|script|python|in|contains|startsWith|endsWith))[ \t]*\"\Z")


class ReportedError(Exception):
    """A syntax error that has been reported."""


@dataclass(slots=True)
class Names:
    """The names of the current declaration so far, for hints: its own, returns, parameters; steps and loop variables."""

    owner: str = ""
    results: tuple[str, ...] = ()
    inputs: frozenset[str] = frozenset()
    bound: set[str] = field(default_factory=set)


class Cursor:
    """The state of the parser, which reads tokens from first to last.

    `tok` is the next token; `brackets` are those that are open. `nested_item` parses a declaration that wrongly stands in a block.
    """

    def __init__(self, source: Source, lexed: Lexed, reporter: Reporter, nested_item: Callable[[Cursor], None]) -> None:
        self.nested_item = nested_item
        self.source = source
        self.reporter = reporter
        self.tokens = lexed.tokens + lexed.tokens[-1:] * 3  # so that looking ahead never leaves them
        self.index = 0
        self.tok = self.tokens[0]
        self.brackets: list[Token] = []
        self.item_column = 1  # of the current declaration
        self.column = 1  # of the current statement or declaration; lines that begin there or before it are not part of its lists
        self.suspect: Token | None = None  # an opening brace whose closing brace stands too far left
        self.ended = False  # a declaration began before all braces were closed
        self.silent_at = -1  # the token at which an error has been reported
        self.unclosed: tuple[int, str] | None = None  # a quote at which a string went wrong, and the message
        self.skipped: list[tuple[Span, Span]] = []  # from the token that could not be read to the one where parsing went on

        self.names = Names()
        self.depth = 0  # how many groups, or lists of a type, are open
        self.blocks = 0  # how many blocks are open
        self.comparing = False  # within a condition, where `=` is a typo for `==`
        self.callee: Name | None = None  # of the current call
        self.arguments = 0  # of the current call so far
        self.unnamed: list[tuple[int, str, int, Span]] = []  # arguments without a name: diagnostic, callee, position, place
        self.failed_item: Token | None = None  # the declaration at which the last error was
        self.file_scoped = False  # a namespace without braces has begun

    # --- tokens

    def advance(self) -> Token:
        """Take the next token; the last one stays."""
        token = self.tok
        if token.kind != "end":
            self.index += 1
            self.tok = self.tokens[self.index]
        return token

    def skip(self, count: int) -> None:
        """Advance past tokens of which none is the last."""
        self.index += count
        self.tok = self.tokens[self.index]

    def remove_ahead(self, count: int) -> None:
        """Remove tokens behind the next one."""
        del self.tokens[self.index + 1 : self.index + 1 + count]

    def ahead(self, count: int = 1) -> Token:
        return self.tokens[self.index + count]

    @property
    def previous(self) -> Token:
        return self.tokens[max(self.index - 1, 0)]

    def keyword(self) -> Token:
        """Take the next token as a keyword."""
        token = self.advance()
        token.role = KEYWORDS[token.text]
        return token

    def leading_keyword(self) -> Token:
        """Take the next token as a keyword; what follows must stand on the same line."""
        token = self.keyword()
        self.join()
        return token

    def names_something(self) -> bool:
        """Return whether the next token is followed by `=` or `:` on its line, and so is a name and not a keyword."""
        after = self.ahead()
        return after.kind in ("=", ":") and not after.broken

    def name(self, *expected: str) -> Name:
        """Take an identifier."""
        token = self.tok
        if token.kind != "name":
            raise self.unexpected("a name", *expected)
        self.skip(1)
        return Name(token.text, token.span)

    def dotted(self, *expected: str) -> Name:
        """Take an identifier or a qualified name."""
        token = self.tok
        if token.kind not in WORDS:
            raise self.unexpected("a name", "a qualified name", *expected)
        self.advance()
        return Name(token.text, token.span)

    def need(self, kind: str, *expected: str) -> None:
        """Check that a sign comes next."""
        if self.tok.kind != kind:
            raise self.unexpected(f"`{kind}`", *expected)

    def take(self, kind: str, *expected: str) -> Token:
        """Take a sign."""
        self.need(kind, *expected)
        return self.advance()

    def join(self) -> None:
        """Report a line break before the next token."""
        if self.tok.broken and self.tok.kind not in CLOSERS and self.tok.kind != "end":
            self.report("line break", shown=self.shown(self.tok))

    # --- words

    def leave_out(self) -> None:
        self.drop("left out", at=self.tok.span.until(self.ahead().span))

    def respell(self, words: set[str]) -> None:
        """Report a misspelled keyword and continue as if it were right."""
        token = self.tok
        follows = self.ahead().kind in ("{", "name", "code", "string", "dotted")
        if not follows or self.names_something() or self.ahead().broken:
            return
        meant = hints.BLOCKS.get(token.text) or nearest(token.text, sorted(words))
        if meant is not None:
            self.correct(meant, f"`{meant}`")

    def correct(self, meant: str, expected: str) -> None:
        """Report the next word as misspelled and continue as if it were right."""
        self.report("misspelled", expected=expected, meant=meant)
        self.tok.text = meant

    def join_before(self, sign: str) -> None:
        """Report a line break before this sign."""
        if self.tok.kind == sign:
            self.join()

    def pretend(self, text: str) -> None:
        """Continue as if this word stood before the next token."""
        after = self.tok
        token = Token("name", text, after.start, after.start, after.line, after.line_start, broken=False)
        self.tokens.insert(self.index, token)
        self.tok = token

    # --- brackets

    def open(self) -> Token:
        """Take an opening bracket."""
        token = self.advance()
        self.brackets.append(token)
        return token

    def close(self, *expected: str) -> Token:
        """Take the bracket that closes the innermost open one."""
        opener = self.brackets[-1]
        sign = BRACKETS[opener.kind]
        if self.tok.kind != sign:
            raise self.unexpected(f"`{sign}`", *expected)
        self.brackets.pop()
        token = self.tok
        if token.broken and sign == "}" and self.suspect is None and opener.kind == "{" and token.column < self.margin(opener):
            self.suspect = opener
        self.skip(1)
        return token

    def margin(self, token: Token) -> int:
        """Return the column in which the line of a token begins."""
        if token.broken:
            return token.column
        line = self.source.line(token.line)
        return len(line) - len(line.lstrip()) + 1

    def sequence(
        self, item: Callable[[Cursor], _T], begins: Callable[[Cursor], bool], *expected: str, lines: bool = False
    ) -> tuple[tuple[_T, ...], Token]:
        """Parse items between brackets, separated by commas, of which the last may be followed by one; return the last bracket.

        With `lines`, the end of a line separates items, too.
        """
        sign = BRACKETS[self.open().kind]
        level = len(self.brackets)
        items: list[_T] = []
        try:
            while self.tok.kind != sign:
                items.append(item(self))
                if self.tok.kind == ",":
                    self.skip(1)
                elif self.tok.kind == ";":
                    self.drop("semicolon in list", sign=sign)
                elif self.tok.kind != sign and not (lines and self.tok.broken):
                    if not begins(self) or (self.tok.broken and self.tok.span.column <= self.column):
                        raise self.unexpected(*expected, "`,`", f"`{sign}`")
                    if self.tok.text == "for":
                        raise self.failed("list comprehension")
                    self.report("no comma", self.previous.span.end)
        except ReportedError:
            inner = len(self.brackets) - level
            del self.brackets[level:]
            if not (self._skip_to(sign, inner) or (inner and self._skip_to(sign, 0))):
                raise
        return tuple(items), self.close()

    def _skip_to(self, sign: str, depth: int) -> bool:
        """Advance to the closing bracket of the current list, unless the statement seems to end before it."""
        for index in range(self.index, len(self.tokens)):
            token = self.tokens[index]
            if token.kind == "end" or (token.broken and token.span.column <= self.column and token.kind != sign):
                return False
            if token.kind in OPENERS:
                depth += 1
            elif token.kind in CLOSERS:
                if depth == 0:
                    if token.kind == sign:
                        self.skipped.append((self.tok.span, token.span))
                        self.index, self.tok = index, token
                    return token.kind == sign
                depth -= 1
        return False

    def skip_group(self) -> Token:
        """Advance past the group that the next token opens, however deep it is; return its last token."""
        first = self.tok
        depth = 0
        while self.tok.kind != "end":
            token = self.advance()
            if token.kind in OPENERS:
                depth += 1
            elif token.kind in CLOSERS:
                depth -= 1
                if depth == 0:
                    return token
        self.brackets.append(first)
        raise self.unexpected(f"`{BRACKETS[first.kind]}`")

    def skip_line(self, *, within: bool = False) -> None:
        """Advance to the next line; `within` brackets, up to the one that closes them."""
        first, depth = self.previous.span, 0
        while self.tok.kind != "end" and not self.tok.broken and not (within and not depth and self.tok.kind in (";", *CLOSERS)):
            depth += (self.tok.kind in OPENERS) - (self.tok.kind in CLOSERS)
            self.advance()
        self.skipped.append((first, self.tok.span))

    def skip_too_deep(self) -> Span:
        """Skip a group that is nested too deeply; the checks report it."""
        return self.tok.span.to(self.skip_group().span)

    def begins_declaration(self) -> bool:
        """Return whether a declaration begins at the next token; only there may a missing brace be assumed."""
        if self.tok.text not in DECLARATIONS:
            return False
        after = self.ahead()
        return after.kind in WORDS and not after.broken and self.tok.kind == "name"

    def begins_statement(self) -> bool:
        token, after = self.tok, self.ahead()
        if token.kind == "name" and after.kind == "=" and not after.broken:
            return True
        return (token.text == "yield" and after.kind in WORDS) or token.text in ("sys.log", "sys.assert")

    def resume(self, level: int) -> None:
        """After an error in a statement: advance to where the next may begin, with the given number of open brackets."""
        maps = sum(bracket.kind == "#{" for bracket in self.brackets[level:])
        del self.brackets[level:]
        first = self.tok.span
        self._find_statement(maps)
        self.skipped.append((first, self.tok.span))

    def _find_statement(self, maps: int) -> None:
        depth = 0
        start = self.index
        while self.tok.kind != "end":
            kind, fresh = self.tok.kind, self.tok.broken or self.index == start
            if fresh and (self.begins_declaration() or (depth == 0 and self.begins_statement())):
                return
            if depth == 0 and self.tok.broken and self.tok.span.column <= self.column and kind in WORDS:
                return
            if depth == 0 and kind == ";":
                return
            if kind in OPENERS:
                depth += 1
            elif kind in CLOSERS:
                if depth:
                    depth -= 1
                elif kind == "}" and not maps:
                    return
                elif kind == "}":
                    maps -= 1
            self.advance()

    # --- errors

    def shown(self, token: Token) -> str:
        return self.source.text[token.start : token.end][:_SHOWN]

    def report(
        self, key: str, span: Span | None = None, *, at: Span | None = None, hint: str | None = None, fixes: Iterable[Fix] = (),
        **values: object,
    ) -> None:  # fmt: skip
        """Report an error from `SYNTAX_ERRORS`, after which parsing goes on; a fix that it has changes the text `at` a place.

        Without a span, the error is the next token, which is also the default of the text's `token`.
        """
        error, span, values = SYNTAX_ERRORS[key], span or self.tok.span, {"token": self.tok.text, **values}
        if error.title is not None:
            fixes = [replace(error.title.format(**values), at or span, error.write.format(**values))]
        hint = hint or (error.hint and error.hint.format(**values))
        self._find_quote()
        text = error.text.format(**values)
        self.reporter.report("syntax-error", self.source, span, text=text, hint=hint, fixes=fixes)
        self.silent_at = self.index

    def drop(self, key: str, **values: Any) -> Token:
        """Report the next token in the same way, and take it."""
        self.report(key, **values)
        return self.advance()

    def failed(self, key: str, span: Span | None = None, **values: Any) -> ReportedError:
        """Report an error in the same way, and return the exception to raise."""
        if not self._is_silent():
            self.report(key, span, **values)
        return ReportedError()

    def unexpected(self, *expected: str, words: Iterable[str] = (), fresh: bool = False, hint: str | None = None) -> ReportedError:
        """Report that the next token cannot stand here; a word similar to one of `words` is taken for a typo.

        With `fresh`, nothing is missing before the token: it begins something new.
        """
        token = self.tok
        actual = {"end": "end of the file", "code": "a script"}.get(token.kind) or f"`{self.shown(token)}`"
        phrases = sorted(dict.fromkeys(expected), key=lambda phrase: phrase.startswith("`"))
        wanted = f"{', '.join(phrases[:-1])} or {phrases[-1]}" if len(phrases) > 1 else phrases[0]
        message = f"unexpected {actual}; expected {wanted}"
        missing = (token.broken and not fresh) or token.kind == "end"
        span = self.previous.span.end if missing and self.index else token.span
        opener = self._unclosed()
        if opener is not None:
            message += f"; the `{opener.kind}` in line {opener.span.line}, column {opener.span.column} is not closed"
        fixes: list[Fix] = []
        if token.kind == "name" and (meant := nearest(token.text, list(words))) is not None:
            span = token.span
            fixes.append(Fix(f"Change `{token.text}` to `{meant}`", (Edit(span, meant),)))
            return self.failed("unexpected", span, message=message, hint=f"did you mean `{meant}`?", fixes=fixes)
        if opener is not None and opener.kind != "{" and missing and (self.begins_statement() or self.begins_declaration()):
            sign = BRACKETS[opener.kind]
            fixes.append(Fix(f"Insert `{sign}`", (Edit(span, sign),)))
        elif token.kind == "=>" and opener is not None:
            fixes.append(Fix("Insert `)`", (Edit(self.previous.span.end, ")"),)))
        elif token.kind == "=>" and self.brackets:
            hint = hint or hints.WORDS["lambda"]
        return self.failed("unexpected", span, message=message, hint=hint, fixes=fixes)

    def _is_silent(self) -> bool:
        """Return whether an error at the next token has been reported already."""
        return self.silent_at == self.index or self.tok.reported or self.previous.reported

    def _find_quote(self) -> None:
        """If a wrong quote explains the error at the next token, note it."""
        before, token = self.previous, self.tok
        if self.unclosed is not None or before.reported or token.reported or not self.index:
            return
        joined = token.start == before.end
        if before.kind == "string" and ((joined and token.kind in _TEXTS) or _CODE.search(before.text)):
            inside = f"the string that begins here ends before `{self.shown(token)}`"
            self.unclosed = before.start, NO_QUOTE if "\n" in before.text else inside
        elif token.kind == "string" and joined and before.kind in WORDS:
            self.unclosed = token.start, f'unexpected `"` after `{before.text}`: the opening `"` of a string is missing'

    def _unclosed(self) -> Token | None:
        """Return the bracket that is probably not closed, if the next token looks like it."""
        if not self.brackets:
            return None
        opener = self.brackets[-1]
        kind = self.tok.kind
        if kind == "end" or (opener.kind == "{" and self.begins_declaration()):
            return self.suspect if self.suspect is not None and opener.kind == "{" else opener
        if kind == "=>" and opener.kind == "(" and self.ahead().kind == "(":  # the returns of a declaration
            return opener
        if opener.kind != "{" and (self.tok.broken or (kind in CLOSERS and kind != BRACKETS[opener.kind])):
            return opener
        return None
