"""Parses expressions and types by precedence; the stack that it uses is bounded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from treadle.lang import builtins, hints, nodes
from treadle.lang.cursor import Cursor, Names
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
_LONGEST_NEST = 32  # operands of a chain that become nested binary expressions; longer chains are flat
_CONSTANTS = frozenset(["true", "false", "null"])
_MARKS = frozenset(["optional", "Optional", "nullable", "Nullable", "maybe", "Maybe"])
_ENDS = frozenset([",", ")", "}", "]", "++", "+", "-", "*"])  # what follows most values
_VALUE_STARTS = frozenset(["string", "float", "integer", "input", "name", "dotted", "[", "#{", "(", "-", "!"])


def _constant(word: str, span: Span) -> nodes.Boolean | nodes.Null:
    return nodes.Null(None, span=span) if word == "null" else nodes.Boolean(word == "true", span=span)


def _limited_type(type_: nodes.Type) -> nodes.Type:
    return type_ if type_.depth <= nodes.MAX_DEPTH else nodes.NamedType("Json", span=type_.span, too_deep=True)


def _limited(node: _T) -> _T | nodes.TooDeep:
    return node if node.depth <= nodes.MAX_DEPTH else nodes.TooDeep(span=node.span)


def _above(operands: Iterable[nodes.Expr]) -> int:
    """Return the depth of an expression with these operands."""
    return 1 + max([operand.depth for operand in operands], default=0)


class ExpressionParser:
    """Reads expressions. `depth` counts open groups."""

    def __init__(self, cursor: Cursor, names: Names) -> None:
        self.cursor, self.names = cursor, names
        self.depth = 0
        self.comparing = False  # within a condition, where `=` is a typo for `==`

    def expr(self, level: int = 1, left: nodes.Expr | None = None) -> nodes.Expr:
        """Parse an expression whose operators bind at least as tightly as `level`."""
        cursor = self.cursor
        if left is None:
            left = self.operand()
        while (own := LEVELS.get(cursor.tok.text)) is not None and own >= level:
            if cursor.tok.kind == "name" and cursor.names_something():
                break  # the next step, which has the name of an operator
            if own == COMPARISON:
                left = self._comparison(left)
                if LEVELS.get(cursor.tok.text) == COMPARISON:
                    raise cursor.failed("second comparison", cursor.tok.span, token=cursor.tok.text)
                continue
            if cursor.tok.kind == "-" and cursor.ahead().kind == ">":
                break
            left = self._run(left, own)
        return left

    def _operator(self) -> Token:
        cursor = self.cursor
        token = cursor.tok
        if token.broken and cursor.brackets and cursor.brackets[-1].kind not in ("[", "#{"):
            at = cursor.previous.span.end
            edits = (Edit(at, f" {token.text}"), Edit(token.span, ""))
            cursor.report("operator at start of line", token.span, fixes=[Fix("Move it", edits)], token=token.text)
        if token.kind == "name":
            token.role = KEYWORDS[token.text]
        return cursor.advance()

    def _comparison(self, left: nodes.Expr) -> nodes.Expr:
        cursor = self.cursor
        operator = self._operator().text
        if operator == "not":
            if cursor.tok.text != "in":
                raise cursor.unexpected("`in`")
            cursor.keyword()
            operator = "not in"
        elif cursor.tok.kind == "=" and operator in ("==", "!="):
            span = cursor.previous.span.to(cursor.advance().span)
            cursor.report("===", span, operator=operator)
        elif operator == "<" and cursor.tok.kind == ">":
            span = cursor.previous.span.to(cursor.advance().span)
            cursor.report("<>", span)
        return _binary(operator, left, self.expr(_CONCAT))

    def _run(self, left: nodes.Expr, own: int) -> nodes.Expr:
        """Parse operators of one level and their operands, from the left."""
        operands, operators = [left], []
        while LEVELS.get(self.cursor.tok.text) == own:
            operators.append(self._operator().text)
            operands.append(self.expr(own + 1))
        if own == _CONCAT:
            return _limited(nodes.Concat(tuple(operands), span=left.span.to(operands[-1].span), depth=_above(operands)))
        if len(operands) > _LONGEST_NEST:
            span = left.span.to(operands[-1].span)
            return _limited(nodes.Chain(tuple(operands), tuple(operators), span=span, depth=_above(operands)))
        for operator, right in zip(operators, operands[1:], strict=True):
            left = _binary(operator, left, right)
        return left

    def operand(self) -> nodes.Expr:
        """Parse a value with its signs and indexes."""
        cursor = self.cursor
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
            value = self._word(token)
        elif kind == "string":
            cursor.skip(1)
            value = nodes.String(token.value, span=token.span)
        elif kind == "integer":
            cursor.skip(1)
            value = nodes.Int(int(token.text), span=token.span)
        elif kind == "float":
            cursor.skip(1)
            value = nodes.Double(float(token.text), span=token.span)
        elif kind in ("[", "#{", "("):
            value = self._group(kind)
        elif kind in ("-", "+", "!"):
            return self._signed()
        elif kind == "{" and cursor.ahead().kind in ("}", "string", "name") and cursor.ahead(2).kind in (":", "}", ")", ","):
            cursor.report("{ as map", token.span)
            token.kind = "#{"
            value = self._group("#{")
        else:
            raise cursor.unexpected("a value")
        while True:
            kind = cursor.tok.kind
            if kind in _ENDS:
                return value
            if kind == "[":
                value = self._index(value)
            elif kind in (".", "?", "(", "=") or (kind == "name" and cursor.tok.text in hints.OPERATORS):
                if not self._foreign(value):
                    return value
            else:
                return value

    def _signed(self) -> nodes.Expr:
        signs = []
        while self.cursor.tok.kind in ("-", "+", "!"):
            signs.append(self.cursor.advance())
        value = self.operand()
        for sign in reversed(signs):
            if sign.kind != "+":
                value = _limited(nodes.Unary(sign.kind, value, span=sign.span.to(value.span), depth=value.depth + 1))
        return value

    def _word(self, token: Token) -> nodes.Expr:
        cursor = self.cursor
        text = token.text
        if token.broken and cursor.begins_statement():
            raise cursor.unexpected("a value")
        if text in _CONSTANTS and not cursor.names_something():
            cursor.keyword()
            return _constant(text, token.span)
        if text in builtins.FUNCTIONS and cursor.ahead().kind == "(" and not cursor.ahead().broken:
            return self._function(token)
        if text in hints.VALUES and text not in self.names.bound:
            return self._foreign_word(token)
        cursor.advance()
        return nodes.Ref((text,), span=token.span)

    def _group(self, kind: str) -> nodes.Expr:
        """Parse a list, a map or parentheses; parentheses in a row count once."""
        cursor = self.cursor
        if self.depth >= nodes.MAX_DEPTH:
            return nodes.TooDeep(span=cursor.skip_too_deep())
        self.depth += 1
        try:
            if kind == "(":
                return self._parentheses()
            first = cursor.tok.span
            if kind == "[":
                elements, close = cursor.sequence(self.expr, self._begins_value, "an operator")
                return _limited(nodes.ArrayLiteral(elements, span=first.to(close.span), depth=_above(elements)))
            entries, close = cursor.sequence(self._entry, self._begins_entry, "an operator")
            depth = _above(entry.value for entry in entries)
            return _limited(nodes.MapLiteral(entries, span=first.to(close.span), depth=depth))
        finally:
            self.depth -= 1

    def _function(self, name: Token) -> nodes.Expr:
        cursor = self.cursor
        cursor.advance()
        if self.depth >= nodes.MAX_DEPTH:
            return nodes.TooDeep(span=name.span.to(cursor.skip_too_deep()))
        self.depth += 1
        try:
            args, close = cursor.sequence(lambda: self._function_arg(name), self._begins_value, "an operator")
        finally:
            self.depth -= 1
        span = name.span.to(close.span)
        if not args:
            cursor.report("no argument", span, name=name.text, form=builtins.FUNCTIONS[name.text].form)
        return _limited(nodes.Function(Name(name.text, name.span), args, span=span, depth=_above(args)))

    def _function_arg(self, name: Token) -> nodes.Expr:
        cursor = self.cursor
        if cursor.tok.kind == "name" and cursor.ahead().kind == "=":
            span = cursor.tok.span.until(cursor.ahead(2).span)
            cursor.report("named argument", cursor.tok.span, at=span, name=name.text, form=builtins.FUNCTIONS[name.text].form)
            cursor.advance()
            cursor.advance()
        return self.expr()

    def calls_function(self) -> bool:
        """Return whether a call follows whose form is that of a function here or elsewhere: its arguments have no names."""
        cursor = self.cursor
        path, _, name = cursor.tok.text.rpartition(".")
        if path:
            return name in builtins.WORDS and path.partition(".")[0] in self.names.bound
        if cursor.ahead(2).kind == ")" or cursor.ahead(3).kind in ("=", ":"):
            return False
        return name in builtins.WORDS or ((name.isupper() or name.islower()) and builtins.meant(name) is not None)

    def _parentheses(self) -> nodes.Expr:
        cursor = self.cursor
        level = len(cursor.brackets)
        while cursor.tok.kind == "(":
            cursor.open()
        value = self.expr()
        while True:
            cursor.close("an operator")
            if len(cursor.brackets) == level:
                return value
            while cursor.tok.kind == "[":
                value = self._index(value)
            value = self.expr(1, value)

    def _begins_value(self) -> bool:
        return self.cursor.tok.kind in _VALUE_STARTS

    def _begins_entry(self) -> bool:
        return self.cursor.ahead().kind == ":"

    def _entry(self) -> nodes.Entry:
        cursor = self.cursor
        key = cursor.tok
        if key.kind not in ("name", "string"):
            raise cursor.unexpected("a name", "a string in double quotes", "`}`")
        cursor.advance()
        if cursor.tok.kind in ("=", "=>"):
            span = cursor.previous.span.end.to(cursor.advance().span)
            cursor.report("= in map", span)
        else:
            cursor.take(":")
        return nodes.Entry(Name(key.value if key.kind == "string" else key.text, key.span), self.expr())

    def _index(self, target: nodes.Expr) -> nodes.Expr:
        cursor = self.cursor
        if self.depth >= nodes.MAX_DEPTH:
            return nodes.TooDeep(span=target.span.to(cursor.skip_too_deep()))
        cursor.open()
        self.depth += 1
        try:
            index = self.expr()
        finally:
            self.depth -= 1
        close = cursor.close("an operator")
        return _limited(nodes.Index(target, index, span=target.span.to(close.span), depth=_above((target, index))))

    # --- forms of other languages

    def _foreign(self, value: nodes.Expr) -> bool:
        """Report a form of another language after a value; return whether the value may go on."""
        cursor = self.cursor
        token = cursor.tok
        if token.kind == "." and cursor.ahead().text in builtins.WORDS and cursor.ahead(2).kind == "(":
            cursor.advance()
            name = cursor.advance()
            self._method(cursor.source.part(value.span), name.text, value.span.to(name.span))
            return True
        if token.kind == "." and cursor.ahead().broken:
            raise cursor.failed("name after dot", token.span)
        if token.kind == "." and cursor.ahead().kind in WORDS:
            cursor.advance()
            name = cursor.advance()
            span = token.span.to(name.span)
            keys = "".join(f'["{part}"]' for part in name.text.split("."))
            cursor.report("field by dot", span, name=name.text, keys=keys)
            return True
        if token.kind == "?":
            after = cursor.ahead()
            joint = after.text if after.start == token.end and after.kind in ("?", ":", ".") else ""
            hint = "AFL has no `? :`; choose between blocks with `andThen when { case condition => { ... } case _ => { ... } }`"
            if joint:
                shown = cursor.source.part(value.span)
                hint = f"AFL has no `?{joint}`; {hints.WITHOUT_NULL.format(shown)}"
            raise cursor.failed("?", token.span, hint=hint, joint=joint)
        if token.kind == "(" and not token.broken and isinstance(value, nodes.Ref | nodes.InputRef):
            self._foreign_call(value)
            return True
        if token.kind == "=" and self.comparing:
            cursor.report("= in condition", token.span)
            cursor.advance()
            self.expr(_CONCAT)
            return True
        meant = hints.OPERATORS.get(token.text)
        if meant is not None and token.kind == "name" and not cursor.names_something():
            cursor.report("foreign word", token.span, token=token.text, meant=meant)
            cursor.advance()
            self.expr(LEVELS[meant] + 1)
            return True
        return False

    def _foreign_call(self, value: nodes.Ref | nodes.InputRef) -> None:
        """Report a call inside an expression: of a method, of a function that does not exist, or of a facet."""
        cursor = self.cursor
        name, shown = value.path[-1], cursor.source.part(value.span)
        if name in builtins.WORDS and "." in shown:
            self._method(shown.removesuffix(f".{name}"), name, value.span)
            return
        if name in builtins.WORDS or (builtins.meant(name) and "." not in shown):
            meant = builtins.meant(name)
            fixes = [replace(f"Write `{meant}`", value.span, meant)] if meant else []
            cursor.failed("unknown function", value.span, hint=builtins.hint(name), fixes=fixes, name=name)
        else:
            cursor.failed("call in expression", value.span, target=shown)
        cursor.skip_group()

    def _method(self, target: str, name: str, span: Span) -> None:
        """Report `target.name(...)`, whose parenthesis is next."""
        cursor = self.cursor
        meant = name if name in builtins.FUNCTIONS else builtins.meant(name)
        form = f"{meant}({target}" + (', ", ")' if meant == "join" else ")")
        close = cursor.ahead()
        whole = span.to(close.span)
        fixes = [replace(f"Write `{form}`", whole, form)] if meant and meant != "join" and close.kind == ")" else []
        hint = f"write `{form}`" if meant else builtins.hint(name)
        cursor.failed("method", span, hint=hint, fixes=fixes, name=name)
        cursor.skip_group()

    def _foreign_word(self, token: Token) -> nodes.Expr:
        """Report a word that stands for a value or begins one in another language."""
        cursor = self.cursor
        after = cursor.ahead()
        if token.text in hints.FORMATTED:
            if after.kind != "string" or after.start != token.end:
                cursor.advance()
                return nodes.Ref((token.text,), span=token.span)
            cursor.advance()
            string = cursor.advance()
            span = token.span.to(string.span)
            meant, known = hints.formatted(string.value, self.names.inputs, self.names.bound)
            fixes = [replace("Concatenate the parts", span, meant)] if known else []
            shown = "`...`" if cursor.source.text[token.start] == "`" else f'{cursor.source.text[token.start]}"..."'
            cursor.report("formatted string", span, fixes=fixes, shown=shown, meant=meant)
            cursor.skipped.append((token.span, string.span.end))
            return nodes.String("", span=span)
        meant = hints.VALUES[token.text]
        if meant == "!":
            if after.kind not in _VALUE_STARTS or after.kind == "-":
                cursor.advance()
                return nodes.Ref((token.text,), span=token.span)
            cursor.report("not", token.span, at=token.span.until(after.span))
            cursor.advance()
            return self.operand()
        if meant:
            cursor.report("foreign word", token.span, token=token.text, meant=meant)
            cursor.advance()
            return _constant(meant, token.span)
        if after.kind not in _VALUE_STARTS:
            cursor.advance()
            return nodes.Ref((token.text,), span=token.span)
        raise cursor.failed("word in expression", token.span, hint=hints.WORDS[token.text], token=token.text)


class TypeParser:
    """Reads types. `depth` counts open lists."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.depth = 0

    def type(self) -> nodes.Type:
        """Parse a type."""
        cursor = self.cursor
        if cursor.tok.kind == "?" and cursor.ahead().kind in (*WORDS, "["):
            cursor.report("mark before type", cursor.tok.span)
            cursor.advance()
        type_ = self._plain_type()
        if cursor.tok.text == "or" and (cursor.ahead().text == "null" or cursor.ahead().text in hints.NULLS):
            span = cursor.tok.span.to(cursor.ahead().span)
            shown = cursor.source.part(type_.span)
            cursor.report("or null", span, at=type_.span.end.to(span), shown=shown)
            cursor.skip(2)
        while cursor.tok.kind == "?":
            mark = cursor.advance().span
            if isinstance(type_, nodes.OptionalType):
                cursor.report("second mark", mark)
                continue
            type_ = _limited_type(nodes.OptionalType(type_, span=type_.span.to(mark), depth=type_.depth + 1))
        return type_

    def _plain_type(self) -> nodes.Type:
        cursor = self.cursor
        token = cursor.tok
        if token.kind == "[":
            if self.depth >= nodes.MAX_DEPTH:
                return nodes.NamedType("Json", span=cursor.skip_too_deep(), too_deep=True)
            return self._list_type()
        if token.kind not in WORDS:
            raise cursor.unexpected(
                "a type", hint="a type says which values fit, such as `String`" if token.kind in LITERALS else None
            )
        cursor.advance()
        if token.text in _MARKS and cursor.tok.kind in WORDS and not cursor.tok.broken:
            name = cursor.advance()
            return self._meant_type(token.span.to(name.span), f"{name.text}?")
        if cursor.tok.kind in ("<", "[") and not cursor.tok.broken:
            return self._foreign_type(token)
        return nodes.NamedType(Name(token.text, token.span), span=token.span)

    def _list_type(self) -> nodes.Type:
        cursor = self.cursor
        first = cursor.open()
        self.depth += 1
        try:
            if cursor.tok.kind == "]" and cursor.ahead().kind in WORDS:  # []String
                cursor.close()
                element = self.type()
                span = first.span.to(cursor.previous.span)
                return self._meant_type(span, f"[{cursor.source.part(element.span)}]")
            element = self.type()
        finally:
            self.depth -= 1
        close = cursor.close()
        return _limited_type(nodes.ListType(element, span=first.span.to(close.span), depth=element.depth + 1))

    def _foreign_type(self, name: Token) -> nodes.Type:
        """Report a generic type or `T[]` with the AFL form."""
        cursor = self.cursor
        parts: list[str] = []
        if cursor.ahead().kind in LITERALS and cursor.tok.kind == "[":
            meant = "String" if cursor.ahead().kind == "string" else "Long"
            return self._meant_type(name.span.to(cursor.skip_group().span), meant)
        if cursor.tok.kind == "[" and cursor.ahead().kind == "]":
            cursor.advance()
            return self._meant_type(name.span.to(cursor.advance().span), f"[{name.text}]")
        closer = ">" if cursor.advance().kind == "<" else "]"
        while True:
            parts.append(cursor.source.part(self.type().span))
            if cursor.tok.kind != ",":
                break
            cursor.advance()
        last = cursor.take(closer)
        return self._meant_type(name.span.to(last.span), hints.generic(name.text, parts))

    def _meant_type(self, span: Span, meant: str) -> nodes.Type:
        self.cursor.report("foreign type", span, shown=self.cursor.source.part(span)[:40], meant=meant)
        return nodes.NamedType(Name("Json", span), span=span)


def _binary(operator: str, left: nodes.Expr, right: nodes.Expr) -> nodes.Expr:
    return _limited(nodes.Binary(operator, left, right, span=left.span.to(right.span), depth=_above((left, right))))
