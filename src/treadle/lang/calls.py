"""Parses calls with their arguments and mixins; reports arguments without a name and words that do not belong here."""

from __future__ import annotations

from treadle.lang import nodes
from treadle.lang.builtins import MIXIN_EXAMPLES
from treadle.lang.cursor import DECLARATIONS, Cursor
from treadle.lang.expressions import parse_expr
from treadle.lang.nodes import Name
from treadle.lang.tokens import Token


def parse_call(cursor: Cursor) -> nodes.Call:
    """Parse a call with its mixins."""
    name = cursor.dotted()
    cursor.need("(")
    cursor.join_before("(")
    opener = cursor.tok.span
    args, close = parse_args(cursor, name)
    mixins = parse_mixins(cursor, in_block=True) if cursor.tok.text == "with" else ()
    last = close.span
    return nodes.Call(name, args, mixins, span=name.span.to(mixins[-1].span if mixins else last), parens=opener.to(last))


def parse_mixins(cursor: Cursor, *, in_block: bool) -> tuple[nodes.Mixin, ...]:
    mixins: list[nodes.Mixin] = []
    while cursor.tok.text == "with" and not (in_block and cursor.names_something()):
        word = cursor.leading_keyword()
        name = cursor.dotted()
        opener = cursor.tok.span
        cursor.need("(")
        cursor.join_before("(")
        args, close = parse_args(cursor, name)
        alias = None
        if cursor.tok.text == "as" and not (in_block and cursor.names_something()):
            cursor.leading_keyword()
            alias = cursor.name()
        end = alias.span if alias else close.span
        mixins.append(nodes.Mixin(name, args, alias, span=word.span.to(end), parens=opener.to(close.span)))
    return tuple(mixins)


def parse_args(cursor: Cursor, callee: Name | None) -> tuple[tuple[nodes.Arg, ...], Token]:
    cursor.callee, cursor.arguments = callee, 0
    outer = cursor.comparing
    cursor.comparing = False
    sequence = cursor.sequence(parse_arg, _begins_arg, "an operator")
    cursor.comparing = outer
    return sequence


def _begins_arg(cursor: Cursor) -> bool:
    return cursor.tok.kind == "name" and cursor.ahead().kind in ("=", ":")


def parse_arg(cursor: Cursor) -> nodes.Arg:
    token, after = cursor.tok, cursor.tokens[cursor.index + 1]
    if token.text in DECLARATIONS and cursor.begins_declaration():
        raise cursor.unexpected("a name", "`)`")
    cursor.arguments += 1
    if after.kind == "=" and token.kind == "name" and not after.broken:
        cursor.skip(2)
        return nodes.Arg(Name(token.text, token.span), parse_expr(cursor))
    if (
        token.kind != "name"
        or after.kind in (",", ")", ".")
        or (after.kind not in ("=", ":", "==", "=>") and _continues(cursor, after))
    ):
        return _positional(cursor)
    cursor.advance()
    name = Name(token.text, token.span)
    if after.kind != "=":
        if after.kind not in (":", "==", "=>"):
            raise cursor.unexpected("`=`")
        cursor.report("argument sign", after.span, at=token.span.end.to(after.span), kind=after.kind, token=token.text)
    else:
        cursor.join_before("=")
    cursor.advance()
    return nodes.Arg(name, parse_expr(cursor))


def _continues(cursor: Cursor, after: Token) -> bool:
    return after.kind in ("+", "-", "*", "/", "++", "[", "(") or (after.kind == "name" and after.text in ("and", "or"))


def _positional(cursor: Cursor) -> nodes.Arg:
    """Report a value without a name; a fix needs the declaration, which is known at the end of the file."""
    token = cursor.tok
    if token.kind not in ("name", "dotted", "input", "string", "integer", "float", "[", "#{", "(", "-", "!"):
        raise cursor.unexpected("a name", "`)`")
    level = len(cursor.reporter.found)
    value = parse_expr(cursor)
    if len(cursor.reporter.found) > level:
        return nodes.Arg(Name("_", token.span), value)
    callee = cursor.callee.text if cursor.callee else "F"
    example = MIXIN_EXAMPLES.get(callee, f"{callee}(name = ...)")
    cursor.report("unnamed argument", token.span.to(value.span), example=example)
    if cursor.callee is not None:
        cursor.unnamed.append((len(cursor.reporter.found) - 1, cursor.callee.text, cursor.arguments - 1, token.span))
    return nodes.Arg(Name("_", token.span), value)
