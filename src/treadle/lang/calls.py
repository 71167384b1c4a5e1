"""Parses calls with their arguments and mixins; reports arguments without a name and words that do not belong here."""

from __future__ import annotations

from treadle.lang import hints, tree
from treadle.lang.builtins import MIXIN_EXAMPLES
from treadle.lang.cursor import DECLARATIONS
from treadle.lang.diagnostics import Edit, Fix, Reporter, Source, nearest, replace
from treadle.lang.expressions import ExpressionParser
from treadle.lang.lexer import Lexed
from treadle.lang.tokens import Token
from treadle.lang.tree import Name, Span


class CallParser(ExpressionParser):
    """Reads calls. `owner` and `results` are the name and returns of the current declaration, for hints."""

    owner = ""
    results: tuple[str, ...] = ()
    callee: Name | None = None
    given = 0  # arguments of the current call so far

    def __init__(self, source: Source, lexed: Lexed, reporter: Reporter) -> None:
        super().__init__(source, lexed, reporter)
        self.bound = set()
        self.unnamed: list[tuple[int, str, int, Span]] = []  # arguments without a name: diagnostic, callee, position, place

    # --- words

    def leave_out(self) -> None:
        token = self.tok
        fix = Fix(f"Remove `{token.text}`", (Edit(token.span.until(self.ahead().span), ""),))
        self.report(token.span, f"unexpected `{token.text}`", f"leave `{token.text}` out", [fix])
        self.advance()

    def respell(self, words: set[str]) -> None:
        """Report a misspelled keyword and continue as if it were right."""
        token = self.tok
        follows = self.ahead().kind in ("{", "name", "code", "string", "dotted")
        if not follows or self.names_something() or self.ahead().broken:
            return
        meant = hints.BLOCKS.get(token.text) or nearest(token.text, sorted(words))
        if meant is None:
            return
        fix = replace(f"Change `{token.text}` to `{meant}`", token.span, meant)
        self.report(token.span, f"unexpected `{token.text}`; expected `{meant}`", f"did you mean `{meant}`?", [fix])
        token.text = meant

    # --- calls

    def call(self) -> tree.Call:
        """Parse a call with its mixins."""
        name = self.dotted()
        if self.tok.kind != "(":
            raise self.unexpected("`(`")
        self.join_before("(")
        opener = self.tok.span
        args, close = self.args(name)
        mixins = self.mixins(in_block=True) if self.tok.text == "with" else ()
        last = close.span
        return tree.Call(name, args, mixins, name.span.to(mixins[-1].span if mixins else last), opener.to(last))

    def mixins(self, *, in_block: bool) -> tuple[tree.Mixin, ...]:
        found: list[tree.Mixin] = []
        while self.tok.text == "with" and not (in_block and self.names_something()):
            word = self.keyword()
            self.join()
            name = self.dotted()
            opener = self.tok.span
            if self.tok.kind != "(":
                raise self.unexpected("`(`")
            self.join_before("(")
            args, close = self.args(name)
            alias = None
            if self.tok.text == "as" and not (in_block and self.names_something()):
                self.keyword()
                self.join()
                alias = self.name()
            end = alias.span if alias else close.span
            found.append(tree.Mixin(name, args, alias, word.span.to(end), opener.to(close.span)))
        return tuple(found)

    def args(self, callee: Name | None) -> tuple[tuple[tree.Arg, ...], Token]:
        self.callee, self.given = callee, 0
        outer = self.comparing
        self.comparing = False
        found = self.sequence(self.arg, self._begins_arg, "an operator")
        self.comparing = outer
        return found

    def _begins_arg(self) -> bool:
        return self.tok.kind == "name" and self.ahead().kind in ("=", ":")

    def arg(self) -> tree.Arg:
        token, after = self.tok, self.tokens[self.index + 1]
        if token.text in DECLARATIONS and self.begins_declaration():
            raise self.unexpected("a name", "`)`")
        self.given += 1
        if after.kind == "=" and token.kind == "name" and not after.broken:
            self.skip(2)
            return tree.Arg(Name(token.text, token.span), self.expr())
        if (
            token.kind != "name"
            or after.kind in (",", ")", ".")
            or (after.kind not in ("=", ":", "==", "=>") and self._continues(after))
        ):
            return self._positional()
        self.advance()
        name = Name(token.text, token.span)
        if after.kind != "=":
            if after.kind not in (":", "==", "=>"):
                raise self.unexpected("`=`")
            span = token.span.end.to(after.span)
            self.report(
                after.span,
                f"unexpected `{after.kind}`; expected `=`",
                f"an argument is written `{token.text} = value`",
                [replace("Write `=`", span, " =")],
            )
        else:
            self.join_before("=")
        self.advance()
        return tree.Arg(name, self.expr())

    def _continues(self, after: Token) -> bool:
        return after.kind in ("+", "-", "*", "/", "++", "[", "(") or (after.kind == "name" and after.text in ("and", "or"))

    def _positional(self) -> tree.Arg:
        """Report a value without a name; a fix needs the declaration, which is known at the end of the file."""
        token = self.tok
        if token.kind not in ("name", "dotted", "input", "string", "integer", "float", "[", "#{", "(", "-", "!"):
            raise self.unexpected("a name", "`)`")
        level = len(self.reporter.found)
        value = self.expr()
        if len(self.reporter.found) > level:
            return tree.Arg(Name("_", token.span), value)
        callee = self.callee.text if self.callee else "F"
        example = MIXIN_EXAMPLES.get(callee, f"{callee}(name = ...)")
        self.report(token.span.to(value.span), "an argument needs a name", f"arguments are named: `{example}`")
        if self.callee is not None:
            self.unnamed.append((len(self.reporter.found) - 1, self.callee.text, self.given - 1, token.span))
        return tree.Arg(Name("_", token.span), value)

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
