"""The place of the cursor, read from the tokens before it, so that it is known while the text is incomplete."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from treadle.interfaces.lsp.scan import ScannedToken, scan

_TYPED = re.compile(r"(?P<dollar>\$\.?)?(?P<path>(?:[A-Za-z_]\w*\.)*)(?P<word>(?:[A-Za-z_]\w*)?)$")
_DECLARING = frozenset(["facet", "workflow"])


@dataclass(slots=True)
class Bracket:
    """An open bracket: what it holds, and what was declared directly in it so far.

    `kind`: params, returns, call, yield, mixin, group, list, map, block, fields, prompt, cases, items, script.
    """

    kind: str
    name: str = ""  # the callee, declaration or namespace
    start: int = 0
    steps: dict[str, str] = field(default_factory=dict)  # with the callee of each; empty for values
    loop: tuple[str, str] | None = None  # the variable and what it runs over
    owner: str = ""  # the step whose body this is
    args: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CursorContext:
    """The surroundings of the cursor. `before` is the last token before the word that is being typed."""

    brackets: tuple[Bracket, ...]
    before: ScannedToken | None
    second: ScannedToken | None
    path: tuple[str, ...]  # the names and dots before the word; `$` first for inputs
    word: str
    namespace: str | None
    facet: str
    inert: bool  # within a comment, a string or a script
    starts_line: bool

    @property
    def inner(self) -> Bracket | None:
        return self.brackets[-1] if self.brackets else None

    @property
    def call(self) -> Bracket | None:
        """The innermost call with open parentheses."""
        for bracket in reversed(self.brackets):
            if bracket.kind in ("call", "yield", "mixin"):
                return bracket
            if bracket.kind not in ("group", "list", "map"):
                return None
        return None

    @property
    def names_argument(self) -> bool:
        """Whether the name of an argument comes next."""
        inner = self.inner
        return inner is not None and inner is self.call and self.before is not None and self.before.text in ("(", ",")


def context_at(text: str, offset: int) -> CursorContext:
    """Read the tokens up to an offset."""
    typed = _TYPED.search(text[max(0, offset - 300) : offset])
    assert typed is not None
    start = offset - len(typed[0])
    reader = _BracketReader()
    inert = False
    for token in scan(text):
        if token.start >= start:
            break
        closed = token.kind not in ("comment", "doc", "string", "code") or token.end <= start
        if not closed or (token.text.startswith("//") and "\n" not in text[token.end : start] and token.end <= start):
            inert = token.kind != "string" or token.end > start
            if inert:
                break
        if token.kind not in ("comment", "doc"):
            reader.read(token)
    path = tuple(part for part in typed["path"].split(".") if part)
    if typed["dollar"]:
        path = ("$", *path)
    fresh = reader.last is None or "\n" in text[reader.last.end : start]
    return CursorContext(
        tuple(reader.brackets), reader.last, reader.second, path, typed["word"], reader.namespace, reader.facet, inert, fresh
    )


class _BracketReader:
    """Keeps the open brackets."""

    def __init__(self) -> None:
        self.brackets: list[Bracket] = []
        self.namespace: str | None = None
        self.facet = ""
        self.last: ScannedToken | None = None
        self.second: ScannedToken | None = None
        self.third: ScannedToken | None = None
        self.step = ""  # the last step of the innermost block
        self.loop: tuple[str, str] | None = None

    def read(self, token: ScannedToken) -> None:
        text = token.text
        if token.kind == "sign" and text in ("(", "{", "[", "#{"):
            self._open(text, token.start)
        elif token.kind == "sign" and text in (")", "}", "]"):
            if self.brackets:
                closed = self.brackets.pop()
                if closed.kind == "items":
                    self.namespace = None
                if closed.kind == "block" and closed.owner:
                    self.step = closed.owner
        elif token.kind == "word" and self._before("namespace"):
            self.namespace = text
        elif token.kind == "word" and self.last is not None and self.last.text in _DECLARING and not self.brackets_of_block():
            self.facet, self.step, self.loop = text, "", None
        elif text == "=" and self.brackets and self.last is not None:
            inner = self.brackets[-1]
            if inner.kind == "block":
                self.step = self.last.text
                inner.steps[self.step] = ""
            elif inner.kind in ("call", "yield", "mixin"):
                inner.args.append(self.last.text)
        elif self._before("in") and self.third is not None and self.third.text == "foreach" and self.second is not None:
            self.loop = (self.second.text, text)
        self.third, self.second, self.last = self.second, self.last, token

    def brackets_of_block(self) -> bool:
        return bool(self.brackets) and self.brackets[-1].kind != "items"

    def _before(self, word: str) -> bool:
        return self.last is not None and self.last.text == word

    def _open(self, sign: str, start: int) -> None:
        last = self.last.text if self.last is not None else ""
        second = self.second.text if self.second is not None else ""
        if sign == "(":
            named = self.last is not None and self.last.kind == "word" and last not in ("not", "in")
            if last == "=>":
                bracket = Bracket("returns", self.facet, start)
            elif second in _DECLARING and not self.brackets_of_block():
                bracket = Bracket("params", last, start)
            elif named and second in ("yield", "with"):
                bracket = Bracket("yield" if second == "yield" else "mixin", last, start)
            elif named:
                bracket = Bracket("call", last, start)
                if self.brackets and self.brackets[-1].kind == "block" and second == "=":
                    self.brackets[-1].steps[self.step] = last
            else:
                bracket = Bracket("group", "", start)
        elif sign == "{":
            bracket = self._brace(last, second, start)
        else:
            bracket = Bracket("list" if sign == "[" else "map", "", start)
        self.brackets.append(bracket)

    def _brace(self, last: str, second: str, start: int) -> Bracket:
        if second == "namespace":
            return Bracket("items", last, start)
        if second == "schema":
            return Bracket("fields", last, start)
        owner = self.step if self.brackets and self.brackets[-1].kind == "block" else ""
        if last in ("prompt", "when"):
            return Bracket("prompt" if last == "prompt" else "cases", "", start, owner=owner)
        loop, self.loop = self.loop, None
        return Bracket("block", "", start, loop=loop, owner=owner)
