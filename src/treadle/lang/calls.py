"""Parses calls with their arguments and mixins; reports arguments without a name and words that do not belong here."""

from __future__ import annotations

from treadle.lang import nodes
from treadle.lang.builtins import MIXIN_EXAMPLES
from treadle.lang.cursor import DECLARATIONS, Cursor
from treadle.lang.expressions import ExpressionParser
from treadle.lang.nodes import Name, Span
from treadle.lang.tokens import Token


class CallParser:
    """Reads calls."""

    def __init__(self, cursor: Cursor, expressions: ExpressionParser) -> None:
        self.cursor, self.expressions = cursor, expressions
        self.callee: Name | None = None
        self.given = 0  # arguments of the current call so far
        self.unnamed: list[tuple[int, str, int, Span]] = []  # arguments without a name: diagnostic, callee, position, place

    def call(self) -> nodes.Call:
        """Parse a call with its mixins."""
        cursor = self.cursor
        name = cursor.dotted()
        if cursor.tok.kind != "(":
            raise cursor.unexpected("`(`")
        cursor.join_before("(")
        opener = cursor.tok.span
        args, close = self.args(name)
        mixins = self.mixins(in_block=True) if cursor.tok.text == "with" else ()
        last = close.span
        return nodes.Call(name, args, mixins, span=name.span.to(mixins[-1].span if mixins else last), parens=opener.to(last))

    def mixins(self, *, in_block: bool) -> tuple[nodes.Mixin, ...]:
        cursor = self.cursor
        found: list[nodes.Mixin] = []
        while cursor.tok.text == "with" and not (in_block and cursor.names_something()):
            word = cursor.leading_keyword()
            name = cursor.dotted()
            opener = cursor.tok.span
            if cursor.tok.kind != "(":
                raise cursor.unexpected("`(`")
            cursor.join_before("(")
            args, close = self.args(name)
            alias = None
            if cursor.tok.text == "as" and not (in_block and cursor.names_something()):
                cursor.leading_keyword()
                alias = cursor.name()
            end = alias.span if alias else close.span
            found.append(nodes.Mixin(name, args, alias, span=word.span.to(end), parens=opener.to(close.span)))
        return tuple(found)

    def args(self, callee: Name | None) -> tuple[tuple[nodes.Arg, ...], Token]:
        self.callee, self.given = callee, 0
        outer = self.expressions.comparing
        self.expressions.comparing = False
        found = self.cursor.sequence(self.arg, self._begins_arg, "an operator")
        self.expressions.comparing = outer
        return found

    def _begins_arg(self) -> bool:
        return self.cursor.tok.kind == "name" and self.cursor.ahead().kind in ("=", ":")

    def arg(self) -> nodes.Arg:
        cursor = self.cursor
        token, after = cursor.tok, cursor.tokens[cursor.index + 1]
        if token.text in DECLARATIONS and cursor.begins_declaration():
            raise cursor.unexpected("a name", "`)`")
        self.given += 1
        if after.kind == "=" and token.kind == "name" and not after.broken:
            cursor.skip(2)
            return nodes.Arg(Name(token.text, token.span), self.expressions.expr())
        if (
            token.kind != "name"
            or after.kind in (",", ")", ".")
            or (after.kind not in ("=", ":", "==", "=>") and self._continues(after))
        ):
            return self._positional()
        cursor.advance()
        name = Name(token.text, token.span)
        if after.kind != "=":
            if after.kind not in (":", "==", "=>"):
                raise cursor.unexpected("`=`")
            span = token.span.end.to(after.span)
            cursor.report("argument sign", after.span, at=span, kind=after.kind, token=token.text)
        else:
            cursor.join_before("=")
        cursor.advance()
        return nodes.Arg(name, self.expressions.expr())

    def _continues(self, after: Token) -> bool:
        return after.kind in ("+", "-", "*", "/", "++", "[", "(") or (after.kind == "name" and after.text in ("and", "or"))

    def _positional(self) -> nodes.Arg:
        """Report a value without a name; a fix needs the declaration, which is known at the end of the file."""
        cursor = self.cursor
        token = cursor.tok
        if token.kind not in ("name", "dotted", "input", "string", "integer", "float", "[", "#{", "(", "-", "!"):
            raise cursor.unexpected("a name", "`)`")
        level = len(cursor.reporter.found)
        value = self.expressions.expr()
        if len(cursor.reporter.found) > level:
            return nodes.Arg(Name("_", token.span), value)
        callee = self.callee.text if self.callee else "F"
        example = MIXIN_EXAMPLES.get(callee, f"{callee}(name = ...)")
        cursor.report("unnamed argument", token.span.to(value.span), example=example)
        if self.callee is not None:
            self.unnamed.append((len(cursor.reporter.found) - 1, self.callee.text, self.given - 1, token.span))
        return nodes.Arg(Name("_", token.span), value)
