"""Reports statements of other languages and statements in the wrong place, each with the AFL form."""

from __future__ import annotations

from treadle.lang import hints, nodes
from treadle.lang.calls import parse_call
from treadle.lang.cursor import Cursor
from treadle.lang.diagnostics import Edit, Fix, nearest, replace
from treadle.lang.expressions import parse_expr
from treadle.lang.tokens import KEYWORDS, WORDS, Token

_STATEMENT_WORDS = ("yield", "sys.log", "sys.assert")
_CONTINUED = ("else", "elif", "catch", "finally", "except")
_ONE_NAME = "a step has one name, `name = F(...)`; its results are `name.result`"


def report_foreign_statement(cursor: Cursor) -> nodes.Statement | None:
    """Report a statement of another language."""
    token, after = cursor.tok, cursor.ahead()
    text = token.text
    if text == "return":
        return _return(cursor)
    if text in hints.NOISE and after.kind in WORDS and not after.broken:
        cursor.leave_out()
        return None
    if text == "print" and after.kind == "(":
        raise cursor.failed("print", hint=hints.WORDS[text])
    if (text in hints.WORDS and after.kind != "(" and (after.kind != ":" or cursor.ahead(2).broken)) or text in hints.CONSTRUCTS:
        error = cursor.failed("construct in block", hint=hints.WORDS[text], text=text)
        _skip_construct(cursor)
        raise error
    if token.kind in WORDS and after.kind == "(" and not after.broken:
        _unnamed_call(cursor)
        return None
    if token.kind == "name" and after.kind == ":":
        _colon(cursor, token, after)
        return None
    if token.kind == "name" and after.kind in WORDS and not after.broken and (meant := nearest(text, [*_STATEMENT_WORDS])):
        cursor.correct(meant, "a step or `yield`")
        return None
    if token.kind == "-" and after.kind in ("-", ">") and after.start == token.end:
        report_dashes(cursor)
        return None
    if token.kind == "name":
        cursor.advance()
        if after.kind in ("+", "-", "*", "/") and cursor.ahead().kind == "=":
            raise cursor.failed("assignment operator", after.span.to(cursor.ahead().span), kind=after.kind)
        raise cursor.unexpected("`=`", hint=_ONE_NAME if after.kind == "," else None)
    odd = token.kind in ("(", "{", "[", "dotted")
    raise cursor.unexpected("a step", "`yield`", "`}`", fresh=True, hint=_ONE_NAME if odd else None)


def _colon(cursor: Cursor, token: Token, after: Token) -> None:
    """Report `a := F()`, `a: F()` and `a: Long = F()`, and leave `a = F()` in the tokens."""
    second, third = cursor.ahead(2), cursor.ahead(3)
    if second.kind == "=":
        cursor.report(":=", after.span.to(second.span))
        cursor.remove_ahead(1)
    elif second.kind in WORDS and third.kind == "=" and not third.broken:
        cursor.report("step type", after.span, at=token.span.end.to(second.span))
        cursor.remove_ahead(2)
    else:
        fixes = []
        if second.kind in WORDS and third.kind == "(" and not second.broken:
            fixes = [replace("Write `=`", token.span.end.to(after.span), " =")]
        error = cursor.failed(": after step", after.span, fixes=fixes)
        if not fixes:
            raise error
        after.kind = after.text = "="


def report_dashes(cursor: Cursor) -> None:
    """Report `--` as a comment, and skip its line; report `->`."""
    first, second = cursor.advance(), cursor.advance()
    span = first.span.to(second.span)
    if second.kind == ">":
        cursor.report("-> between steps", span)
    else:
        cursor.report("--", span)
        cursor.skip_line()


def _skip_construct(cursor: Cursor) -> None:
    """Skip `if ... { ... } else { ... }` and its like, and also `if ...:` with indented lines."""
    margin = cursor.margin(cursor.tok)
    while True:
        while cursor.tok.kind not in ("{", "}", "end") and not (cursor.tok.broken and cursor.begins_statement()):
            cursor.advance()
            if cursor.previous.kind == ":" and cursor.tok.broken:
                while cursor.tok.kind not in ("}", "end") and not (cursor.tok.broken and cursor.margin(cursor.tok) <= margin):
                    cursor.advance()
                break
        if cursor.tok.kind == "{":
            cursor.skip_group()
        if cursor.tok.text not in _CONTINUED or cursor.ahead().kind == "=":
            return


def report_value_for_owner(cursor: Cursor, word: Token) -> None:
    """Report `return value`, `yield value` and `yield name = value`; a fix names the owner of the block."""
    named = cursor.tok.kind == "name" and cursor.ahead().kind == "="
    name = cursor.names.results[0] if len(cursor.names.results) == 1 else "name"
    start = cursor.tok.span
    fixable = cursor.blocks == 1 and (named or len(cursor.names.results) == 1)
    if named:
        name = cursor.advance().text
        cursor.advance()
    before = len(cursor.reporter.found)
    value = parse_expr(cursor)
    owner = cursor.names.owner if cursor.blocks == 1 else "F"
    head = f"yield {owner}(" + ("" if named else f"{name} = ")
    fixes = [Fix(f"Yield it as `{name}`", (Edit(word.span.until(start), head), Edit(value.span.end, ")")))]
    if len(cursor.reporter.found) > before:
        del cursor.reporter.found[before:]
        fixable = False
    key, span = ("yield of value", start.to(value.span)) if word.text == "yield" else ("return of value", word.span)
    cursor.report(key, span, fixes=fixes if fixable else (), owner=owner, name=name)


def _return(cursor: Cursor) -> nodes.Statement | None:
    word = cursor.tok
    if cursor.ahead().broken or cursor.ahead().kind == "}":
        cursor.drop("return at end")
        return None
    cursor.advance()
    if cursor.tok.kind in WORDS and cursor.ahead().kind == "(":
        cursor.report("return of call", word.span)
        call = parse_call(cursor)
        return nodes.Yield(call, span=word.span.to(call.span))
    report_value_for_owner(cursor, word)
    return None


def _unnamed_call(cursor: Cursor) -> None:
    token = cursor.tok
    name = token.text.rpartition(".")[2]
    name = name[:1].lower() + name[1:]
    while name in cursor.names.bound or name in KEYWORDS:
        name += "_"
    edits = [Edit(token.span.start, f"{name} = ")]
    index = len(cursor.reporter.found)
    hint = f"name it: `{name} = {token.text}(...)`"
    call = parse_call(cursor)
    if cursor.tok.kind == "-" and cursor.ahead().kind == ">" and cursor.ahead(2).kind == "name":  # F() -> a
        cursor.skip(2)
        target = cursor.advance()
        edits = [Edit(token.span.start, f"{target.text} = "), Edit(call.span.end.to(target.span), "")]
        name, hint = target.text, f"write `{target.text} = {token.text}(...)`"
    cursor.report("unnamed call", token.span, hint=hint, fixes=[Fix(f"Name it `{name}`", tuple(edits))])
    cursor.reporter.found.insert(index, cursor.reporter.found.pop())
