"""Parses expressions and types by precedence; the stack that it uses is bounded."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TypeVar

from treadle.lang import builtins, hints, nodes
from treadle.lang.cursor import Cursor
from treadle.lang.diagnostics import Edit, Fix, replace
from treadle.lang.nodes import Name, Span
from treadle.lang.tokens import KEYWORDS, LITERALS, WORDS, Token

_T = TypeVar("_T", bound=nodes.Expression)
COMPARISON = 3
_CONCAT = 4
LEVELS = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 3, ">": 3, "<=": 3, ">=": 3, "in": 3, "not": 3, "contains": 3, "startsWith": 3,
    "endsWith": 3, "++": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6,
}  # fmt: skip
_MAX_NESTED_OPERANDS = 32  # operands of a chain that become nested binary expressions; longer chains are flat
_CONSTANTS = frozenset(["true", "false", "null"])
_MARKS = frozenset(["optional", "Optional", "nullable", "Nullable", "maybe", "Maybe"])
_ENDS = frozenset([",", ")", "}", "]", "++", "+", "-", "*"])  # what follows most values
_VALUE_STARTS = frozenset(["string", "float", "integer", "input", "name", "dotted", "[", "#{", "(", "-", "!"])


def _constant(word: str, span: Span) -> nodes.Literal:
    return nodes.Literal(None if word == "null" else word == "true", span=span)


def _limited_type(type_: nodes.Type) -> nodes.Type:
    return type_ if type_.depth <= nodes.MAX_DEPTH else nodes.NamedType("Json", span=type_.span, too_deep=True)


def _limited(node: _T) -> _T | nodes.TooDeep:
    return node if node.depth <= nodes.MAX_DEPTH else nodes.TooDeep(span=node.span)


def _above(operands: Iterable[nodes.Expr]) -> int:
    """Return the depth of an expression with these operands."""
    return 1 + max([operand.depth for operand in operands], default=0)


def parse_expr(cursor: Cursor, level: int = 1, left: nodes.Expr | None = None) -> nodes.Expr:
    """Parse an expression whose operators bind at least as tightly as `level`."""
    if left is None:
        left = parse_operand(cursor)
    while (own := LEVELS.get(cursor.tok.text)) is not None and own >= level:
        if cursor.tok.kind == "name" and cursor.names_something():
            break  # the next step, which has the name of an operator
        if own == COMPARISON:
            left = _parse_comparison(cursor, left)
            if LEVELS.get(cursor.tok.text) == COMPARISON:
                raise cursor.failed("second comparison")
            continue
        if cursor.tok.kind == "-" and cursor.ahead().kind == ">":
            break
        left = _parse_run(cursor, left, own)
    return left


def _parse_operator(cursor: Cursor) -> Token:
    token = cursor.tok
    if token.broken and cursor.brackets and cursor.brackets[-1].kind not in ("[", "#{"):
        edits = (Edit(cursor.previous.span.end, f" {token.text}"), Edit(token.span, ""))
        cursor.report("operator at start of line", fixes=[Fix("Move it", edits)])
    if token.kind == "name":
        token.role = KEYWORDS[token.text]
    return cursor.advance()


def _parse_comparison(cursor: Cursor, left: nodes.Expr) -> nodes.Expr:
    operator = _parse_operator(cursor).text
    if operator == "not":
        if cursor.tok.text != "in":
            raise cursor.unexpected("`in`")
        cursor.keyword()
        operator = "not in"
    elif cursor.tok.kind == "=" and operator in ("==", "!="):
        cursor.report("===", cursor.previous.span.to(cursor.advance().span), operator=operator)
    elif operator == "<" and cursor.tok.kind == ">":
        cursor.report("<>", cursor.previous.span.to(cursor.advance().span))
    return _binary(operator, left, parse_expr(cursor, _CONCAT))


def _parse_run(cursor: Cursor, left: nodes.Expr, own: int) -> nodes.Expr:
    """Parse operators of one level and their operands, from the left."""
    operands, operators = [left], []
    while LEVELS.get(cursor.tok.text) == own:
        operators.append(_parse_operator(cursor).text)
        operands.append(parse_expr(cursor, own + 1))
    if own == _CONCAT:
        return _limited(nodes.Concat(tuple(operands), span=left.span.to(operands[-1].span), depth=_above(operands)))
    if len(operands) > _MAX_NESTED_OPERANDS:
        span = left.span.to(operands[-1].span)
        return _limited(nodes.Chain(tuple(operands), tuple(operators), span=span, depth=_above(operands)))
    for operator, right in zip(operators, operands[1:], strict=True):
        left = _binary(operator, left, right)
    return left


def parse_operand(cursor: Cursor) -> nodes.Expr:
    """Parse a value with its signs and indexes."""
    token = cursor.tok
    kind = token.kind
    value: nodes.Expr
    if kind == "input":
        cursor.skip(1)
        value = nodes.InputRef(tuple(token.text[2:].split(".")), span=token.span)
    elif kind == "dotted":
        cursor.skip(1)
        value = nodes.Ref(tuple(token.text.split(".")), span=token.span)
    elif kind == "name":
        value = _parse_word(cursor, token)
    elif kind == "string":
        cursor.skip(1)
        value = nodes.Literal(token.value, span=token.span)
    elif kind == "integer":
        cursor.skip(1)
        value = nodes.Literal(int(token.text), span=token.span)
    elif kind == "float":
        cursor.skip(1)
        value = nodes.Literal(float(token.text), span=token.span)
    elif kind in ("[", "#{", "("):
        value = _parse_group(cursor, kind)
    elif kind in ("-", "+", "!"):
        return _parse_signed(cursor)
    elif kind == "{" and cursor.ahead().kind in ("}", "string", "name") and cursor.ahead(2).kind in (":", "}", ")", ","):
        cursor.report("{ as map")
        token.kind = "#{"
        value = _parse_group(cursor, "#{")
    else:
        raise cursor.unexpected("a value")
    while True:
        kind = cursor.tok.kind
        if kind in _ENDS:
            return value
        if kind == "[":
            value = _parse_index(cursor, value)
        elif kind in (".", "?", "(", "=") or (kind == "name" and cursor.tok.text in hints.OPERATORS):
            if not _foreign(cursor, value):
                return value
        else:
            return value


def _parse_signed(cursor: Cursor) -> nodes.Expr:
    signs = []
    while cursor.tok.kind in ("-", "+", "!"):
        signs.append(cursor.advance())
    value = parse_operand(cursor)
    for sign in reversed(signs):
        if sign.kind != "+":
            value = _limited(nodes.Unary(sign.kind, value, span=sign.span.to(value.span), depth=value.depth + 1))
    return value


def _parse_word(cursor: Cursor, token: Token) -> nodes.Expr:
    text = token.text
    if token.broken and cursor.begins_statement():
        raise cursor.unexpected("a value")
    if text in _CONSTANTS and not cursor.names_something():
        cursor.keyword()
        return _constant(text, token.span)
    if text in builtins.FUNCTIONS and cursor.ahead().kind == "(" and not cursor.ahead().broken:
        return _parse_function(cursor, token)
    if text in hints.VALUES and text not in cursor.names.bound:
        return _foreign_word(cursor, token)
    cursor.advance()
    return nodes.Ref((text,), span=token.span)


def _parse_group(cursor: Cursor, kind: str) -> nodes.Expr:
    """Parse a list, a map or parentheses; parentheses in a row count once."""
    if cursor.depth >= nodes.MAX_DEPTH:
        return nodes.TooDeep(span=cursor.skip_too_deep())
    cursor.depth += 1
    try:
        if kind == "(":
            return _parse_parentheses(cursor)
        first = cursor.tok.span
        if kind == "[":
            elements, close = cursor.sequence(parse_expr, _begins_value, "an operator")
            return _limited(nodes.ArrayLiteral(elements, span=first.to(close.span), depth=_above(elements)))
        entries, close = cursor.sequence(_parse_entry, _begins_entry, "an operator")
        depth = _above(entry.value for entry in entries)
        return _limited(nodes.MapLiteral(entries, span=first.to(close.span), depth=depth))
    finally:
        cursor.depth -= 1


def _parse_function(cursor: Cursor, name: Token) -> nodes.Expr:
    cursor.advance()
    if cursor.depth >= nodes.MAX_DEPTH:
        return nodes.TooDeep(span=name.span.to(cursor.skip_too_deep()))
    cursor.depth += 1
    try:
        args, close = cursor.sequence(partial(_parse_function_arg, name), _begins_value, "an operator")
    finally:
        cursor.depth -= 1
    span = name.span.to(close.span)
    if not args:
        cursor.report("no argument", span, name=name.text, form=builtins.FUNCTIONS[name.text].form)
    return _limited(nodes.FunctionCall(Name(name.text, name.span), args, span=span, depth=_above(args)))


def _parse_function_arg(name: Token, cursor: Cursor) -> nodes.Expr:
    if cursor.tok.kind == "name" and cursor.ahead().kind == "=":
        span = cursor.tok.span.until(cursor.ahead(2).span)
        cursor.drop("named argument", at=span, name=name.text, form=builtins.FUNCTIONS[name.text].form)
        cursor.advance()
    return parse_expr(cursor)


def calls_function(cursor: Cursor) -> bool:
    """Return whether a call follows whose form is that of a function here or elsewhere: its arguments have no names."""
    path, _, name = cursor.tok.text.rpartition(".")
    if path:
        return name in builtins.WORDS and path.partition(".")[0] in cursor.names.bound
    if cursor.ahead(2).kind == ")" or cursor.ahead(3).kind in ("=", ":"):
        return False
    return name in builtins.WORDS or ((name.isupper() or name.islower()) and builtins.meant(name) is not None)


def _parse_parentheses(cursor: Cursor) -> nodes.Expr:
    level = len(cursor.brackets)
    while cursor.tok.kind == "(":
        cursor.open()
    value = parse_expr(cursor)
    while True:
        cursor.close("an operator")
        if len(cursor.brackets) == level:
            return value
        while cursor.tok.kind == "[":
            value = _parse_index(cursor, value)
        value = parse_expr(cursor, 1, value)


def _begins_value(cursor: Cursor) -> bool:
    return cursor.tok.kind in _VALUE_STARTS


def _begins_entry(cursor: Cursor) -> bool:
    return cursor.ahead().kind == ":"


def _parse_entry(cursor: Cursor) -> nodes.Arg:
    key = cursor.tok
    if key.kind not in ("name", "string"):
        raise cursor.unexpected("a name", "a string in double quotes", "`}`")
    cursor.advance()
    if cursor.tok.kind in ("=", "=>"):
        cursor.report("= in map", cursor.previous.span.end.to(cursor.advance().span))
    else:
        cursor.take(":")
    return nodes.Arg(Name(key.value if key.kind == "string" else key.text, key.span), parse_expr(cursor))


def _parse_index(cursor: Cursor, target: nodes.Expr) -> nodes.Expr:
    if cursor.depth >= nodes.MAX_DEPTH:
        return nodes.TooDeep(span=target.span.to(cursor.skip_too_deep()))
    cursor.open()
    cursor.depth += 1
    try:
        index = parse_expr(cursor)
    finally:
        cursor.depth -= 1
    close = cursor.close("an operator")
    return _limited(nodes.Index(target, index, span=target.span.to(close.span), depth=_above((target, index))))


# --- forms of other languages


def _foreign(cursor: Cursor, value: nodes.Expr) -> bool:
    """Report a form of another language after a value; return whether the value may go on."""
    token = cursor.tok
    if token.kind == "." and cursor.ahead().text in builtins.WORDS and cursor.ahead(2).kind == "(":
        cursor.advance()
        name = cursor.advance()
        _method(cursor, cursor.source.part(value.span), name.text, value.span.to(name.span))
        return True
    if token.kind == "." and cursor.ahead().broken:
        raise cursor.failed("name after dot")
    if token.kind == "." and cursor.ahead().kind in WORDS:
        cursor.advance()
        name = cursor.advance()
        keys = "".join(f'["{part}"]' for part in name.text.split("."))
        cursor.report("field by dot", token.span.to(name.span), name=name.text, keys=keys)
        return True
    if token.kind == "?":
        after = cursor.ahead()
        joint = after.text if after.start == token.end and after.kind in ("?", ":", ".") else ""
        hint = "AFL has no `? :`; choose between blocks with `andThen when { case condition => { ... } case _ => { ... } }`"
        if joint:
            hint = f"AFL has no `?{joint}`; {hints.WITHOUT_NULL.format(cursor.source.part(value.span))}"
        raise cursor.failed("?", hint=hint, joint=joint)
    if token.kind == "(" and not token.broken and isinstance(value, nodes.Ref | nodes.InputRef):
        _foreign_call(cursor, value)
        return True
    if token.kind == "=" and cursor.comparing:
        cursor.drop("= in condition")
        parse_expr(cursor, _CONCAT)
        return True
    meant = hints.OPERATORS.get(token.text)
    if meant is not None and token.kind == "name" and not cursor.names_something():
        cursor.drop("foreign word", meant=meant)
        parse_expr(cursor, LEVELS[meant] + 1)
        return True
    return False


def _foreign_call(cursor: Cursor, value: nodes.Ref | nodes.InputRef) -> None:
    """Report a call inside an expression: of a method, of a function that does not exist, or of a facet."""
    name, text = value.path[-1], cursor.source.part(value.span)
    if name in builtins.WORDS and "." in text:
        _method(cursor, text.removesuffix(f".{name}"), name, value.span)
        return
    if name in builtins.WORDS or (builtins.meant(name) and "." not in text):
        meant = builtins.meant(name)
        fixes = [replace(f"Write `{meant}`", value.span, meant)] if meant else []
        cursor.failed("unknown function", value.span, hint=builtins.hint(name), fixes=fixes, name=name)
    else:
        cursor.failed("call in expression", value.span, target=text)
    cursor.skip_group()


def _method(cursor: Cursor, target: str, name: str, span: Span) -> None:
    """Report `target.name(...)`, whose parenthesis is next."""
    meant = name if name in builtins.FUNCTIONS else builtins.meant(name)
    form = f"{meant}({target}" + (', ", ")' if meant == "join" else ")")
    close = cursor.ahead()
    whole = span.to(close.span)
    fixes = [replace(f"Write `{form}`", whole, form)] if meant and meant != "join" and close.kind == ")" else []
    hint = f"write `{form}`" if meant else builtins.hint(name)
    cursor.failed("method", span, hint=hint, fixes=fixes, name=name)
    cursor.skip_group()


def _foreign_word(cursor: Cursor, token: Token) -> nodes.Expr:
    """Report a word that stands for a value or begins one in another language."""
    after, meant = cursor.ahead(), hints.VALUES[token.text]
    begins_value = after.kind in _VALUE_STARTS
    if token.text in hints.FORMATTED:
        if after.kind == "string" and after.start == token.end:
            return _formatted_string(cursor)
        begins_value = False
    elif meant == "!":
        if begins_value and after.kind != "-":
            cursor.drop("not", at=token.span.until(after.span))
            return parse_operand(cursor)
        begins_value = False
    elif meant:
        cursor.drop("foreign word", meant=meant)
        return _constant(meant, token.span)
    if begins_value:
        raise cursor.failed("word in expression", hint=hints.WORDS[token.text])
    cursor.advance()
    return nodes.Ref((token.text,), span=token.span)


def _formatted_string(cursor: Cursor) -> nodes.Expr:
    token, string = cursor.advance(), cursor.advance()
    span = token.span.to(string.span)
    meant, resolved = hints.formatted(string.value, cursor.names.inputs, cursor.names.bound)
    fixes = [replace("Concatenate the parts", span, meant)] if resolved else []
    quote = cursor.source.text[token.start]
    cursor.report("formatted string", span, fixes=fixes, shown="`...`" if quote == "`" else f'{quote}"..."', meant=meant)
    cursor.skipped.append((token.span, string.span.end))
    return nodes.Literal("", span=span)


# --- types


def parse_type(cursor: Cursor) -> nodes.Type:
    """Parse a type."""
    if cursor.tok.kind == "?" and cursor.ahead().kind in (*WORDS, "["):
        cursor.drop("mark before type")
    type_ = _parse_plain_type(cursor)
    if cursor.tok.text == "or" and (cursor.ahead().text == "null" or cursor.ahead().text in hints.NULLS):
        span = cursor.tok.span.to(cursor.ahead().span)
        cursor.report("or null", span, at=type_.span.end.to(span), shown=cursor.source.part(type_.span))
        cursor.skip(2)
    while cursor.tok.kind == "?":
        mark = cursor.advance().span
        if isinstance(type_, nodes.OptionalType):
            cursor.report("second mark", mark)
            continue
        type_ = _limited_type(nodes.OptionalType(type_, span=type_.span.to(mark), depth=type_.depth + 1))
    return type_


def _parse_plain_type(cursor: Cursor) -> nodes.Type:
    token = cursor.tok
    if token.kind == "[":
        if cursor.depth >= nodes.MAX_DEPTH:
            return nodes.NamedType("Json", span=cursor.skip_too_deep(), too_deep=True)
        return _parse_list_type(cursor)
    if token.kind not in WORDS:
        raise cursor.unexpected("a type", hint="a type says which values fit, such as `String`" if token.kind in LITERALS else None)
    cursor.advance()
    if token.text in _MARKS and cursor.tok.kind in WORDS and not cursor.tok.broken:
        name = cursor.advance()
        return _meant_type(cursor, token.span.to(name.span), f"{name.text}?")
    if cursor.tok.kind in ("<", "[") and not cursor.tok.broken:
        return _foreign_type(cursor, token)
    return nodes.NamedType(Name(token.text, token.span), span=token.span)


def _parse_list_type(cursor: Cursor) -> nodes.Type:
    first = cursor.open()
    cursor.depth += 1
    try:
        if cursor.tok.kind == "]" and cursor.ahead().kind in WORDS:  # []String
            cursor.close()
            element = parse_type(cursor)
            return _meant_type(cursor, first.span.to(cursor.previous.span), f"[{cursor.source.part(element.span)}]")
        element = parse_type(cursor)
    finally:
        cursor.depth -= 1
    return _limited_type(nodes.ListType(element, span=first.span.to(cursor.close().span), depth=element.depth + 1))


def _foreign_type(cursor: Cursor, name: Token) -> nodes.Type:
    """Report a generic type or `T[]` with the AFL form."""
    parts: list[str] = []
    if cursor.ahead().kind in LITERALS and cursor.tok.kind == "[":
        meant = "String" if cursor.ahead().kind == "string" else "Long"
        return _meant_type(cursor, name.span.to(cursor.skip_group().span), meant)
    if cursor.tok.kind == "[" and cursor.ahead().kind == "]":
        cursor.advance()
        return _meant_type(cursor, name.span.to(cursor.advance().span), f"[{name.text}]")
    closer = ">" if cursor.advance().kind == "<" else "]"
    while True:
        parts.append(cursor.source.part(parse_type(cursor).span))
        if cursor.tok.kind != ",":
            break
        cursor.advance()
    return _meant_type(cursor, name.span.to(cursor.take(closer).span), hints.generic(name.text, parts))


def _meant_type(cursor: Cursor, span: Span, meant: str) -> nodes.Type:
    cursor.report("foreign type", span, shown=cursor.source.part(span)[:40], meant=meant)
    return nodes.NamedType(Name("Json", span), span=span)


def _binary(operator: str, left: nodes.Expr, right: nodes.Expr) -> nodes.Expr:
    return _limited(nodes.Binary(operator, left, right, span=left.span.to(right.span), depth=_above((left, right))))
