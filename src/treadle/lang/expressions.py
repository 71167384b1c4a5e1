"""Parses expressions and types by precedence; the stack that it uses is bounded."""

from __future__ import annotations

from typing import TypeVar

from treadle.lang import builtins, hints, tree
from treadle.lang.cursor import Cursor
from treadle.lang.diagnostics import Edit, Fix, replace
from treadle.lang.tokens import KEYWORDS, LITERALS, WORDS, Token
from treadle.lang.tree import LiteralKind, Name, Span

_T = TypeVar("_T")
_COMPARISON = 3
_CONCAT = 4
LEVELS = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 3, ">": 3, "<=": 3, ">=": 3, "in": 3, "not": 3, "contains": 3, "startsWith": 3,
    "endsWith": 3, "++": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6,
}  # fmt: skip
_LONGEST_NEST = 32  # operands of a chain that become nested binary expressions; longer chains are flat
_CONSTANTS = {
    "true": (LiteralKind.BOOLEAN, True),
    "false": (LiteralKind.BOOLEAN, False),
    "null": (LiteralKind.NULL, None),
}
_STRING, _INT, _DOUBLE = LiteralKind.STRING, LiteralKind.INT, LiteralKind.DOUBLE
_MARKS = frozenset(["optional", "Optional", "nullable", "Nullable", "maybe", "Maybe"])
CALL_HINT = "a call is a step of its own: `name = F(...)`; then use its results, `name.result`"
_ENDS = frozenset([",", ")", "}", "]", "++", "+", "-", "*"])  # what follows most values
_VALUE_STARTS = frozenset(["string", "float", "integer", "input", "name", "dotted", "[", "#{", "(", "-", "!"])


def _limited(node: _T, depth: int) -> _T | tree.TooDeep:
    span: Span = node.span  # type: ignore[attr-defined]
    return node if depth <= tree.MAX_DEPTH else tree.TooDeep(span)


def _deepest(nodes: tuple[tree.Expr, ...] | list[tree.Expr]) -> int:
    return 1 + max([node.depth for node in nodes], default=0)


class ExpressionParser(Cursor):
    """Reads expressions and types. `depth` counts open groups."""

    depth = 0
    comparing = False  # within a condition, where `=` is a typo for `==`
    bound: set[str]  # names of steps and loop variables
    inputs: frozenset[str] = frozenset()  # parameters of the current declaration

    def expr(self, level: int = 1, left: tree.Expr | None = None) -> tree.Expr:
        """Parse an expression whose operators bind at least as tightly as `level`."""
        if left is None:
            left = self.operand()
        while (own := LEVELS.get(self.tok.text)) is not None and own >= level:
            if self.tok.kind == "name" and self.names_something():
                break  # the next step, which has the name of an operator
            if own == _COMPARISON:
                left = self._comparison(left)
                if LEVELS.get(self.tok.text) == _COMPARISON:
                    hint = "combine comparisons with `&&`, or put one into parentheses"
                    raise self.failed(self.tok.span, f"unexpected `{self.tok.text}` after a comparison", hint)
                continue
            if self.tok.kind == "-" and self.ahead().kind == ">":
                break
            left = self._run(left, own)
        return left

    def _operator(self) -> Token:
        token = self.tok
        if token.broken and self.brackets and self.brackets[-1].kind not in ("[", "#{"):
            hint = f"end the previous line with `{token.text}` instead"
            at = self.previous.span.end
            edits = (Edit(at, f" {token.text}"), Edit(token.span, ""))
            self.report(token.span, f"a line cannot begin with the operator `{token.text}`", hint, [Fix("Move it", edits)])
        if token.kind == "name":
            token.role = KEYWORDS[token.text]
        return self.advance()

    def _comparison(self, left: tree.Expr) -> tree.Expr:
        operator = self._operator().text
        if operator == "not":
            if self.tok.text != "in":
                raise self.unexpected("`in`")
            self.keyword()
            operator = "not in"
        elif self.tok.kind == "=" and operator in ("==", "!="):
            span = self.previous.span.to(self.advance().span)
            self.report(span, f"unexpected `{operator}=`", f"write `{operator}`", [replace(f"Write `{operator}`", span, operator)])
        elif operator == "<" and self.tok.kind == ">":
            span = self.previous.span.to(self.advance().span)
            self.report(span, "unexpected `<>`", "write `!=`", [replace("Write `!=`", span, "!=")])
        return _binary(operator, left, self.expr(_CONCAT))

    def _run(self, left: tree.Expr, own: int) -> tree.Expr:
        """Parse operators of one level and their operands, from the left."""
        operands, operators = [left], []
        while LEVELS.get(self.tok.text) == own:
            operators.append(self._operator().text)
            operands.append(self.expr(own + 1))
        if own == _CONCAT:
            depth = _deepest(operands)
            return _limited(tree.Concat(tuple(operands), operands[0].span.to(operands[-1].span), depth), depth)
        if len(operands) > _LONGEST_NEST:
            depth = _deepest(operands)
            span = operands[0].span.to(operands[-1].span)
            return _limited(tree.Chain(tuple(operands), tuple(operators), span, depth), depth)
        for operator, right in zip(operators, operands[1:], strict=True):
            left = _binary(operator, left, right)
        return left

    def operand(self) -> tree.Expr:
        """Parse a value with its signs and indexes."""
        token = self.tok
        kind = token.kind
        value: tree.Expr
        if kind == "input":
            self.skip(1)
            value = tree.InputRef(tuple(token.text[2:].split(".")), token.span)
        elif kind == "dotted":
            self.skip(1)
            value = tree.Ref(tuple(token.text.split(".")), token.span)
        elif kind == "name":
            value = self._word(token)
        elif kind == "string":
            self.skip(1)
            value = tree.Literal(_STRING, token.value, token.span)
        elif kind == "integer":
            self.skip(1)
            value = tree.Literal(_INT, int(token.text), token.span)
        elif kind == "float":
            self.skip(1)
            value = tree.Literal(_DOUBLE, float(token.text), token.span)
        elif kind in ("[", "#{", "("):
            value = self._group(kind)
        elif kind in ("-", "+", "!"):
            return self._signed()
        elif kind == "{" and self.ahead().kind in ("}", "string", "name") and self.ahead(2).kind in (":", "}", ")", ","):
            fix = replace("Write `#{`", token.span, "#{")
            self.report(token.span, "unexpected `{`; expected a value", "a map is written `#{key: value}`", [fix])
            token.kind = "#{"
            value = self._group("#{")
        else:
            raise self.unexpected("a value")
        while True:
            kind = self.tok.kind
            if kind in _ENDS:
                return value
            if kind == "[":
                value = self._index(value)
            elif kind in (".", "?", "(", "=") or (kind == "name" and self.tok.text in hints.OPERATORS):
                if not self._foreign(value):
                    return value
            else:
                return value

    def _signed(self) -> tree.Expr:
        signs = []
        while self.tok.kind in ("-", "+", "!"):
            signs.append(self.advance())
        value = self.operand()
        for sign in reversed(signs):
            if sign.kind != "+":
                depth = value.depth + 1
                value = _limited(tree.Unary(sign.kind, value, sign.span.to(value.span), depth), depth)
        return value

    def _word(self, token: Token) -> tree.Expr:
        text = token.text
        if token.broken and self.begins_statement():
            raise self.unexpected("a value")
        if text in _CONSTANTS and not self.names_something():
            self.keyword()
            return tree.Literal(*_CONSTANTS[text], token.span)
        if text in builtins.FUNCTIONS and self.ahead().kind == "(" and not self.ahead().broken:
            return self._function(token)
        if text in hints.VALUES and text not in self.bound:
            return self._foreign_word(token)
        self.advance()
        return tree.Ref((text,), token.span)

    def _group(self, kind: str) -> tree.Expr:
        """Parse a list, a map or parentheses; parentheses in a row count once."""
        if self.depth >= tree.MAX_DEPTH:
            return self.too_deep()
        self.depth += 1
        try:
            if kind == "(":
                return self._parentheses()
            first = self.tok.span
            if kind == "[":
                elements, close = self.sequence(self.expr, self._begins_value, "an operator")
                depth = _deepest(elements)
                return _limited(tree.ArrayLiteral(elements, first.to(close.span), depth), depth)
            entries, close = self.sequence(self._entry, self._begins_entry, "an operator")
            depth = _deepest([entry.value for entry in entries])
            return _limited(tree.MapLiteral(entries, first.to(close.span), depth), depth)
        finally:
            self.depth -= 1

    def _function(self, name: Token) -> tree.Expr:
        self.advance()
        if self.depth >= tree.MAX_DEPTH:
            return tree.TooDeep(name.span.to(self.too_deep().span))
        self.depth += 1
        try:
            args, close = self.sequence(lambda: self._function_arg(name), self._begins_value, "an operator")
        finally:
            self.depth -= 1
        span = name.span.to(close.span)
        if not args:
            self.report(span, f"`{name.text}` needs an argument", f"write `{builtins.FUNCTIONS[name.text].form}`")
        depth = _deepest(args)
        return _limited(tree.Function(Name(name.text, name.span), args, span, depth), depth)

    def _function_arg(self, name: Token) -> tree.Expr:
        if self.tok.kind == "name" and self.ahead().kind == "=":
            span = self.tok.span.until(self.ahead(2).span)
            hint = f"write `{builtins.FUNCTIONS[name.text].form}`"
            self.report(
                self.tok.span, f"the arguments of `{name.text}` have no names", hint, [replace("Remove the name", span, "")]
            )
            self.advance()
            self.advance()
        return self.expr()

    def calls_function(self) -> bool:
        """Return whether a call follows whose form is that of a function here or elsewhere: its arguments have no names."""
        path, _, name = self.tok.text.rpartition(".")
        if path:
            return name in builtins.WORDS and path.partition(".")[0] in self.bound
        if self.ahead(2).kind == ")" or self.ahead(3).kind in ("=", ":"):
            return False
        return name in builtins.WORDS or ((name.isupper() or name.islower()) and builtins.meant(name) is not None)

    def _parentheses(self) -> tree.Expr:
        level = len(self.brackets)
        while self.tok.kind == "(":
            self.open()
        value = self.expr()
        while True:
            self.close("an operator")
            if len(self.brackets) == level:
                return value
            while self.tok.kind == "[":
                value = self._index(value)
            value = self.expr(1, value)

    def _begins_value(self) -> bool:
        return self.tok.kind in _VALUE_STARTS

    def _begins_entry(self) -> bool:
        return self.ahead().kind == ":"

    def _entry(self) -> tree.Entry:
        key = self.tok
        if key.kind not in ("name", "string"):
            raise self.unexpected("a name", "a string in double quotes", "`}`")
        self.advance()
        if self.tok.kind in ("=", "=>"):
            span = self.previous.span.end.to(self.advance().span)
            self.report(span, "unexpected `=` in a map", "an entry is written `key: value`", [replace("Write `:`", span, ":")])
        else:
            self.take(":")
        return tree.Entry(Name(key.value if key.kind == "string" else key.text, key.span), self.expr())

    def _index(self, target: tree.Expr) -> tree.Expr:
        if self.depth >= tree.MAX_DEPTH:
            return tree.TooDeep(target.span.to(self.too_deep().span))
        self.open()
        self.depth += 1
        try:
            index = self.expr()
        finally:
            self.depth -= 1
        close = self.close("an operator")
        depth = _deepest((target, index))
        return _limited(tree.Index(target, index, target.span.to(close.span), depth), depth)

    # --- forms of other languages

    def _foreign(self, value: tree.Expr) -> bool:
        """Report a form of another language after a value; return whether the value may go on."""
        token = self.tok
        if token.kind == "." and self.ahead().text in builtins.WORDS and self.ahead(2).kind == "(":
            self.advance()
            name = self.advance()
            self._method(self.source.part(value.span), name.text, value.span.to(name.span))
            return True
        if token.kind == "." and self.ahead().broken:
            raise self.failed(token.span, "expected a name after `.`")
        if token.kind == "." and self.ahead().kind in WORDS:
            self.advance()
            name = self.advance()
            span = token.span.to(name.span)
            keys = "".join(f'["{part}"]' for part in name.text.split("."))
            hint = f"use an index after `]` or `)`: `{keys}`"
            self.report(span, f"unexpected `.{name.text}`", hint, [replace(f"Write `{keys}`", span, keys)])
            return True
        if token.kind == "?":
            after = self.ahead()
            joint = after.text if after.start == token.end and after.kind in ("?", ":", ".") else ""
            hint = "AFL has no `? :`; choose between blocks with `andThen when { case condition => { ... } case _ => { ... } }`"
            if joint:
                shown = self.source.part(value.span)
                hint = f"AFL has no `?{joint}`; {hints.WITHOUT_NULL.format(shown)}"
            raise self.failed(token.span, f"unexpected `?{joint}`", hint)
        if token.kind == "(" and not token.broken and isinstance(value, tree.Ref | tree.InputRef):
            self._foreign_call(value)
            return True
        if token.kind == "=" and self.comparing:
            fix = replace("Write `==`", token.span, "==")
            self.report(token.span, "unexpected `=` in a condition", "comparison is written `==`", [fix])
            self.advance()
            self.expr(_CONCAT)
            return True
        meant = hints.OPERATORS.get(token.text)
        if meant is not None and token.kind == "name" and not self.names_something():
            fix = replace(f"Write `{meant}`", token.span, meant)
            self.report(token.span, f"unexpected `{token.text}`", f"write `{meant}`", [fix])
            self.advance()
            self.expr(LEVELS[meant] + 1)
            return True
        return False

    def _foreign_call(self, value: tree.Ref | tree.InputRef) -> None:
        """Report a call inside an expression: of a method, of a function that does not exist, or of a facet."""
        name, shown = value.path[-1], self.source.part(value.span)
        if name in builtins.WORDS and "." in shown:
            self._method(shown.removesuffix(f".{name}"), name, value.span)
            return
        hint, fixes = CALL_HINT, []
        message = f"unexpected call of `{shown}` inside an expression"
        if name in builtins.WORDS or (builtins.meant(name) and "." not in shown):
            message, hint = f"unknown function `{name}`", builtins.hint(name)
            fixes = [replace(f"Write `{meant}`", value.span, meant)] if (meant := builtins.meant(name)) else []
        self.failed(value.span, message, hint, fixes)
        self.skip_group()

    def _method(self, target: str, name: str, span: Span) -> None:
        """Report `target.name(...)`, whose parenthesis is next."""
        meant = name if name in builtins.FUNCTIONS else builtins.meant(name)
        form = f"{meant}({target}" + (', ", ")' if meant == "join" else ")")
        close = self.ahead()
        whole = span.to(close.span)
        fixes = [replace(f"Write `{form}`", whole, form)] if meant and meant != "join" and close.kind == ")" else []
        hint = f"write `{form}`" if meant else builtins.hint(name)
        self.failed(span, f"unexpected call of `.{name}`: values have no methods", hint, fixes)
        self.skip_group()

    def _foreign_word(self, token: Token) -> tree.Expr:
        """Report a word that stands for a value or begins one in another language."""
        after = self.ahead()
        if token.text in hints.FORMATTED:
            if after.kind != "string" or after.start != token.end:
                self.advance()
                return tree.Ref((token.text,), token.span)
            self.advance()
            string = self.advance()
            span = token.span.to(string.span)
            meant, known = hints.formatted(string.value, self.inputs, self.bound)
            fixes = [replace("Concatenate the parts", span, meant)] if known else []
            shown = "`...`" if self.source.text[token.start] == "`" else f'{self.source.text[token.start]}"..."'
            self.report(span, f"unexpected `{shown}`", f"join texts with `++`: {meant}", fixes)
            self.skipped.append((token.span, string.span.end))
            return tree.Literal(LiteralKind.STRING, "", span)
        meant = hints.VALUES[token.text]
        if meant == "!":
            if after.kind not in _VALUE_STARTS or after.kind == "-":
                self.advance()
                return tree.Ref((token.text,), token.span)
            fix = Fix("Write `!`", (Edit(token.span.until(after.span), "!"),))
            self.report(token.span, "unexpected `not` before a value", "write `!`", [fix])
            self.advance()
            return self.operand()
        if meant:
            self.report(
                token.span, f"unexpected `{token.text}`", f"write `{meant}`", [replace(f"Write `{meant}`", token.span, meant)]
            )
            self.advance()
            return tree.Literal(*_CONSTANTS[meant], token.span)
        if after.kind not in _VALUE_STARTS:
            self.advance()
            return tree.Ref((token.text,), token.span)
        raise self.failed(token.span, f"unexpected `{token.text}` in an expression", hints.WORDS[token.text])

    # --- types

    def type(self) -> tree.Type:
        """Parse a type."""
        if self.tok.kind == "?" and self.ahead().kind in (*WORDS, "["):
            self.report(self.tok.span, "unexpected `?` before a type", "the mark follows the type, as in `Long?`")
            self.advance()
        type_ = self._plain_type()
        if self.tok.text == "or" and (self.ahead().text == "null" or self.ahead().text in hints.NULLS):
            span = self.tok.span.to(self.ahead().span)
            shown = self.source.part(type_.span)
            self.report(
                span,
                "unexpected `or` in a type",
                f"an optional type is written `{shown}?`",
                [replace("Write `?`", type_.span.end.to(span), "?")],
            )
            self.skip(2)
        while self.tok.kind == "?":
            mark = self.advance().span
            if isinstance(type_, tree.OptionalType):
                self.report(mark, "unexpected second `?` after a type", None, [replace("Remove it", mark, "")])
                continue
            depth = type_.depth + 1
            type_ = _limited(tree.OptionalType(type_, type_.span.to(mark), depth), depth)
        return type_

    def _plain_type(self) -> tree.Type:
        token = self.tok
        if token.kind == "[":
            if self.depth >= tree.MAX_DEPTH:
                return self.too_deep()
            return self._list_type()
        if token.kind not in WORDS:
            raise self.unexpected(
                "a type", hint="a type says which values fit, such as `String`" if token.kind in LITERALS else None
            )
        self.advance()
        if token.text in _MARKS and self.tok.kind in WORDS and not self.tok.broken:
            name = self.advance()
            return self._meant_type(token.span.to(name.span), f"{name.text}?")
        if self.tok.kind in ("<", "[") and not self.tok.broken:
            return self._foreign_type(token)
        return tree.NamedType(Name(token.text, token.span), token.span)

    def _list_type(self) -> tree.Type:
        first = self.open()
        self.depth += 1
        try:
            if self.tok.kind == "]" and self.ahead().kind in WORDS:  # []String
                self.close()
                element = self.type()
                span = first.span.to(self.previous.span)
                return self._meant_type(span, f"[{self.source.part(element.span)}]")
            element = self.type()
        finally:
            self.depth -= 1
        close = self.close()
        depth = element.depth + 1
        return _limited(tree.ListType(element, first.span.to(close.span), depth), depth)

    def _foreign_type(self, name: Token) -> tree.Type:
        """Report a generic type or `T[]` with the AFL form."""
        parts: list[str] = []
        if self.ahead().kind in LITERALS and self.tok.kind == "[":
            meant = "String" if self.ahead().kind == "string" else "Long"
            return self._meant_type(name.span.to(self.skip_group().span), meant)
        if self.tok.kind == "[" and self.ahead().kind == "]":
            self.advance()
            return self._meant_type(name.span.to(self.advance().span), f"[{name.text}]")
        closer = ">" if self.advance().kind == "<" else "]"
        while True:
            parts.append(self.source.part(self.type().span))
            if self.tok.kind != ",":
                break
            self.advance()
        last = self.take(closer)
        return self._meant_type(name.span.to(last.span), hints.generic(name.text, parts))

    def _meant_type(self, span: Span, meant: str) -> tree.Type:
        fix = replace(f"Write `{meant}`", span, meant)
        self.report(span, f"unexpected type `{self.source.part(span)[:40]}`", f"write `{meant}`", [fix])
        return tree.NamedType(Name("Json", span), span)


def _binary(operator: str, left: tree.Expr, right: tree.Expr) -> tree.Expr:
    depth = _deepest((left, right))
    return _limited(tree.Binary(operator, left, right, left.span.to(right.span), depth), depth)
