"""Parses a source to a syntax tree by recursive descent: declarations, blocks and calls.

Takes linear time; the stack is bounded, because groups and blocks nested too deeply are skipped. After a syntax error parsing
continues with the next list, statement or declaration, so that one pass reports all of them.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace

from treadle.lang import hints, nodes
from treadle.lang.calls import CallParser
from treadle.lang.collection import without_collection
from treadle.lang.cursor import Cursor, Failed, Names
from treadle.lang.diagnostics import Edit, Fix, Reporter, Source, replace
from treadle.lang.expressions import ExpressionParser, TypeParser
from treadle.lang.lexer import Lexed, lex
from treadle.lang.literals import parse_doc
from treadle.lang.nodes import FacetKind, File, Name, Span
from treadle.lang.statements import StatementParser
from treadle.lang.tokens import WORDS, Token


@dataclass(frozen=True, slots=True)
class Parsed:
    """The tree, or None after a syntax error; `partial` is always there, without the parts that could not be read."""

    file: File | None
    partial: File
    lexed: Lexed


@without_collection
def parse(source: Source, reporter: Reporter) -> Parsed:
    """Parse one source and report its syntax errors."""
    unclosed: dict[int, str] = {}
    while True:
        unread, found = Reporter(sources=reporter.sources), Reporter(sources=reporter.sources)
        lexed = lex(source, unread, unclosed)
        parser = _Parser(source, lexed, found)
        partial = File(source.name, parser.items())
        if parser.cursor.unclosed is None or parser.cursor.unclosed[0] in unclosed or len(unclosed) == _QUOTES:
            break
        unclosed.update([parser.cursor.unclosed])  # all strings after it were inside out, so read everything again
    _name_arguments(parser.calls.unnamed, partial, found)
    found.found += [each for each in unread.found if not _inside(each[1].span, parser.cursor.skipped)]
    reporter.found += found.found
    ok = not found.found and not unread.found
    return Parsed(partial if ok else None, partial, lexed)


def _inside(place: Span, skipped: list[tuple[Span, Span]]) -> bool:
    """Return whether an unreadable text stands where the parser has skipped anyway, because of an error before it."""
    return any(first[:2] < place[:2] < last[:2] for first, last in skipped)


def _name_arguments(unnamed: list[tuple[int, str, int, Span]], file: File, reporter: Reporter) -> None:
    """Add fixes to the errors about arguments without a name, where this file declares the callee."""
    if not unnamed:
        return
    items = [inner for item in file.items for inner in (item.items if isinstance(item, nodes.Namespace) else (item,))]
    params = {"Retry": ["maxAttempts"]}
    params |= {item.name.text: [each.name.text for each in item.params] for item in items if isinstance(item, nodes.Facet)}
    params |= {item.name.text: [each.name.text for each in item.fields] for item in items if isinstance(item, nodes.Schema)}
    for number, callee, position, span in unnamed:
        known = params.get(callee.rpartition(".")[2], ())
        if position < len(known):
            name = known[position]
            fix = Fix(f"Name it `{name}`", (Edit(span.until(span), f"{name} = "),))
            order, found = reporter.found[number]
            reporter.found[number] = (order, dataclass_replace(found, fixes=(fix,)))


_QUOTES = 5  # how many wrong quotes are found one by one
_TOP = ("namespace", "use", "uses", "facet", "event", "workflow", "implicit", "schema")
_TAIL = ("with", "script", "andThen", "prompt", "catch")


class _Parser:
    """Reads declarations."""

    def __init__(self, source: Source, lexed: Lexed, reporter: Reporter) -> None:
        self.cursor, self.names = Cursor(source, lexed, reporter), Names()
        self.types = TypeParser(self.cursor)
        self.expressions = ExpressionParser(self.cursor, self.names)
        self.calls = CallParser(self.cursor, self.expressions)
        self.statements = StatementParser(self.cursor, self.names, self.calls, self.nested_item)
        self.failed_item: Token | None = None  # the declaration at which the last error was
        self.file_scoped = False  # a namespace without braces has begun

    def items(self) -> tuple[nodes.Namespace | nodes.Item, ...]:
        """Parse the whole source."""
        found: list[nodes.Namespace | nodes.Item] = []
        while self.cursor.tok.kind != "end":
            self.item(found, None)
        return tuple(found)

    def item(self, found: list[nodes.Namespace | nodes.Item], namespace: Token | None) -> None:
        """Parse one declaration; after an error advance to the next one."""
        cursor = self.cursor
        token = cursor.tok
        cursor.column = cursor.item_column = cursor.margin(token)
        cursor.ended = False
        level = len(cursor.brackets)
        try:
            match token.text:
                case ";":
                    cursor.advance()
                case "facet" | "workflow" | "event":
                    found.append(self.facet())
                case "schema":
                    found.append(self.schema())
                case "implicit":
                    found.append(self.implicit())
                case "use" | "uses":
                    found.append(self.use())
                case "namespace" if namespace is None:
                    found.append(self.namespace())
                case _:
                    self.foreign_item(namespace)
        except Failed:
            self.next_item(level)

    def next_item(self, level: int) -> None:
        """After an error in a declaration: advance to the next one."""
        cursor = self.cursor
        first = cursor.tok.span
        self._find_item(level)
        cursor.skipped.append((first, cursor.tok.span))

    def _find_item(self, level: int) -> None:
        cursor = self.cursor
        del cursor.brackets[level:]
        start = cursor.index
        depth = 0
        while cursor.tok.kind != "end":
            if cursor.begins_declaration() and (cursor.tok.broken or depth == 0) and cursor.index > start:
                return
            if cursor.begins_declaration() and cursor.index == start and cursor.tok is not self.failed_item:
                self.failed_item = cursor.tok
                return
            if cursor.tok.kind in ("{", "#{"):
                depth += 1
            elif cursor.tok.kind == "}":
                if depth == 0 and level:
                    return
                depth = max(0, depth - 1)
            cursor.advance()

    def nested_item(self) -> None:
        """Report a declaration inside a block, and read it so that the block goes on after it."""
        cursor = self.cursor
        token = cursor.tok
        hint = "declarations stand beside each other, outside of blocks" + (
            "; steps call them by name" if token.text != "use" else ""
        )
        cursor.report("nested declaration", token.span, hint=hint, token=token.text)
        columns, names, blocks = (cursor.column, cursor.item_column), copy(self.names), self.statements.blocks
        self.statements.blocks = 0
        self.item([], token)
        (cursor.column, cursor.item_column), self.statements.blocks = columns, blocks
        self.names.restore(names)

    def foreign_item(self, namespace: Token | None) -> None:
        cursor = self.cursor
        token = cursor.tok
        expected = ["a declaration"] + (["`}`"] if namespace is not None else [])
        meant = hints.DECLARATIONS.get(token.text)
        inside = namespace is not None or self.file_scoped
        if meant is not None and cursor.ahead().kind in WORDS and token.kind == "name":
            ok = meant != "schema" or inside
            fixes = [replace(f"Write `{meant}`", token.span, meant)] if ok else []
            hint = f"write `{meant}`" + ("" if ok else " inside a namespace")
            cursor.report("foreign declaration", token.span, hint=hint, fixes=fixes, token=token.text)
            token.text = meant
            return
        if token.text in hints.MODIFIERS and (cursor.ahead().text in _TOP or cursor.ahead().text in hints.DECLARATIONS):
            cursor.leave_out()
            return
        if token.text in hints.IMPORTS and token.kind == "name" and not cursor.ahead().broken:
            self._import(inside)
            return
        if token.kind == "-" and cursor.ahead().kind == "-":
            cursor.advance()
            self.statements.foreign.dashed(token.span.to(cursor.advance().span))
            return
        if token.text == "namespace":
            raise cursor.failed("nested namespace", token.span)
        if token.text in ("yield", "andThen", "with", "catch", "script", "prompt"):
            raise cursor.failed("word outside", token.span, token=token.text, expected=" or ".join(expected))
        if token.kind == "}":
            cursor.report("extra brace", token.span)
            cursor.advance()
            return
        raise cursor.unexpected(*expected, words=_TOP if cursor.ahead().kind in WORDS else (), fresh=True)

    def _import(self, inside: bool) -> None:
        """Report an import, which is `use` in a namespace and not needed elsewhere."""
        cursor = self.cursor
        word, name = cursor.advance(), cursor.tok
        cursor.skip_line(within=True)
        last = cursor.previous
        simple = name.kind in WORDS and (last is name or (word.text == "from" and last.kind in WORDS))
        fixes = [replace(f"Write `use {name.text}`", word.span.to(last.span), f"use {name.text}")] if inside and simple else []
        hint = (
            "write `use namespace`"
            if inside
            else "outside a namespace nothing is imported: write the full name, `namespace.Facet(...)`"
        )
        hint += "; files are compiled together, without naming each other" if "string" in (name.kind, last.kind) else ""
        cursor.report("import", word.span, hint=hint, fixes=fixes, word=word.text)

    # --- declarations

    def namespace(self) -> nodes.Namespace:
        cursor = self.cursor
        word = cursor.leading_keyword()
        name = cursor.dotted()
        token = cursor.tok
        if token.kind != "{":
            if token.broken or token.kind == "end":
                self.file_scoped = True
                return nodes.Namespace(name, (), True, parse_doc(word.doc), span=word.span.to(name.span))
            raise cursor.unexpected("`{`", "the end of the line")
        opener = cursor.open()
        level = len(cursor.brackets)
        items: list[nodes.Namespace | nodes.Item] = []
        while cursor.tok.kind not in ("}", "end"):
            if cursor.tok.text == "namespace" and cursor.begins_declaration() and cursor.tok.span.column <= word.span.column:
                break
            self.item(items, opener)
        del cursor.brackets[level:]
        inner = tuple(item for item in items if not isinstance(item, nodes.Namespace))
        try:
            last = cursor.close("a declaration").span
        except Failed:
            cursor.brackets.pop()
            last = cursor.previous.span
        return nodes.Namespace(name, inner, False, parse_doc(word.doc), span=word.span.to(last))

    def use(self) -> nodes.Use:
        cursor = self.cursor
        word = cursor.leading_keyword()
        name = cursor.dotted()
        return nodes.Use(name, span=word.span.to(name.span))

    def implicit(self) -> nodes.Implicit:
        cursor = self.cursor
        word = cursor.leading_keyword()
        name = cursor.name()
        cursor.join_before("=")
        cursor.take("=")
        call = self.calls.call()
        return nodes.Implicit(name, call, span=word.span.to(call.span))

    def schema(self) -> nodes.Schema:
        cursor = self.cursor
        word = cursor.leading_keyword()
        name = cursor.name()
        if cursor.tok.kind == "=" and cursor.ahead().kind == "{":
            cursor.report("= before fields", cursor.tok.span, name=name.text)
            cursor.advance()
        opener = cursor.tok
        if opener.kind not in ("{", "("):
            raise cursor.unexpected("`{`")
        fields, close = cursor.sequence(self.field, self._begins_field, lines=True)
        if opener.kind == "(":
            edits = (Edit(opener.span, " {"), Edit(close.span, "}"))
            cursor.report("fields in parentheses", opener.span, name=name.text, fixes=[Fix("Use braces", edits)])
        return nodes.Schema(name, fields, parse_doc(word.doc), span=word.span.to(close.span))

    def _begins_field(self) -> bool:
        return self.cursor.tok.kind == "name" and self.cursor.ahead().kind == ":"

    def field(self) -> nodes.Param:
        return self.param(fields=True)

    def param(self, *, fields: bool = False) -> nodes.Param:
        cursor = self.cursor
        token = cursor.tok
        name = cursor.name("`}`" if fields else "`)`")
        if cursor.tok.kind == "?" and cursor.ahead().kind == ":":
            cursor.advance()
            cursor.report("mark after name", cursor.previous.span, name=token.text)
        if cursor.tok.kind == ":":
            cursor.join()
            cursor.skip(1)
            cursor.join()
            type_ = self.types.type()
        else:
            name, type_ = self._untyped(token)
        default = None
        if cursor.tok.kind == "=":
            cursor.join_before("=")
            sign, before = cursor.advance(), type_.span.end
            default = self.expressions.expr()
            if fields:
                cursor.report("field default", sign.span, at=before.to(default.span))
                default = None
        return nodes.Param(name, type_, default)

    def _untyped(self, token: Token) -> tuple[Name, nodes.Type]:
        """Report a parameter without `:` and continue as if it had one."""
        cursor = self.cursor
        after = cursor.tok
        name = Name(token.text, token.span)
        at = token.span.end
        if after.kind in WORDS and not after.broken:
            cursor.advance()
            if token.text[:1].isupper() and not after.text[:1].isupper():
                span, text = token.span.to(after.span), f"{after.text}: {token.text}"
                cursor.report("type before name", after.span, at=span, token=after.text, text=text)
                return Name(after.text, after.span), nodes.NamedType(name, span=token.span)
            cursor.report("no colon", after.span, at=at, token=after.text)
            return name, nodes.NamedType(Name(after.text, after.span), span=after.span)
        if after.kind == "=" and (type_ := cursor.ahead()).kind in WORDS and cursor.ahead(2).kind in (",", ")", "=", "}"):
            cursor.report("= before type", after.span, at=at.to(after.span), token=token.text, type=type_.text)
            cursor.advance()
            return name, self.types.type()
        if after.kind in (",", ")", "="):
            cursor.report("no type", after.span, at=at, shown=cursor.shown(after), token=token.text)
            return name, nodes.NamedType(Name("Json", at), span=at)
        raise cursor.unexpected("`:`")

    def params(self) -> tuple[tuple[nodes.Param, ...], Token]:
        return self.cursor.sequence(self.param, self._begins_field)

    def facet(self) -> nodes.Facet:
        cursor = self.cursor
        first = cursor.keyword()
        kind = FacetKind.EVENT if first.text == "event" else FacetKind(first.text)
        if cursor.tok.kind == ":":
            words = "event facet" if kind is FacetKind.EVENT else first.text
            raise cursor.failed(": after kind", cursor.tok.span, words=words)
        cursor.join()
        if kind is FacetKind.EVENT:
            self._event_facet(first)
        name = cursor.name()
        self.names.bound = set()
        self.names.owner, self.names.results = name.text, ()
        opener = cursor.tok
        if opener.kind == "(":
            cursor.join_before("(")
            params, close = self.params()
        else:
            params, close = self._no_params(), cursor.previous
            opener = close
        self.names.inputs = frozenset(param.name.text for param in params)
        returns, end = self.returns(close)
        self.names.results = tuple(param.name.text for param in returns)
        mixins = self.calls.mixins(in_block=False)
        last = mixins[-1].span if mixins else end
        self.expect_tail()
        pre_script = prompt = None
        blocks: list[nodes.Block] = []
        if cursor.tok.text == "prompt":
            prompt = self.prompt()
            last = prompt.span
        else:
            if cursor.tok.text == "script":
                pre_script = self.statements.script()
                last = pre_script.span
            while cursor.tok.text == "andThen":
                blocks.append(self.statements.then(with_script=True))
                last = blocks[-1].span
                self.expect_tail()
        catch = None
        if cursor.tok.text == "catch":
            catch = self.statements.catch()
            last = catch.span
        parens = opener.span.to(close.span)
        return nodes.Facet(
            name, kind, params, returns, mixins, pre_script, tuple(blocks), prompt, catch, parse_doc(first.doc),
            span=first.span.to(last), parens=parens,
        )  # fmt: skip

    def _event_facet(self, first: Token) -> None:
        cursor = self.cursor
        if cursor.tok.text == "facet":
            cursor.leading_keyword()
        elif cursor.tok.kind == "name" and cursor.ahead().kind == "(":
            at = first.span.end
            cursor.report("event without facet", cursor.tok.span, at=at, token=cursor.tok.text)
        else:
            raise cursor.unexpected("`facet`", words=("facet",))

    def _no_params(self) -> tuple[nodes.Param, ...]:
        cursor = self.cursor
        if cursor.tok.kind in ("{", "=>") or cursor.tok.text in _TAIL:
            at = cursor.previous.span.end
            cursor.report("no parameters", at)
            return ()
        raise cursor.unexpected("`(`")

    def returns(self, close: Token) -> tuple[tuple[nodes.Param, ...], Span]:
        cursor = self.cursor
        token = cursor.tok
        if token.kind == "-" and cursor.ahead().kind == ">":
            cursor.advance()
            span = token.span.to(cursor.advance().span)
            cursor.report("-> before returns", span)
        elif token.kind == ":" and cursor.ahead().kind in (*WORDS, "["):
            cursor.report(": before returns", token.span)
            cursor.advance()
        elif token.kind == "=>":
            cursor.advance()
        else:
            return (), close.span
        if cursor.tok.kind == "(":
            returns, end = self.params()
            return returns, end.span
        if (cursor.tok.kind in WORDS and not cursor.begins_declaration()) or cursor.tok.kind == "[":
            start = cursor.tok.span
            type_ = self.types.type()
            edits = (Edit(start.until(start), "(result: "), Edit(type_.span.end, ")"))
            cursor.report("unnamed return", start, fixes=[Fix("Name it `result`", edits)], shown=cursor.source.part(start))
            return (nodes.Param(Name("result", start), type_),), type_.span
        raise cursor.unexpected("`(`")

    def expect_tail(self) -> None:
        """Report a block without `andThen`, and misspelled words that begin a block."""
        cursor = self.cursor
        token = cursor.tok
        if token.kind == "{":
            at = cursor.previous.span.end
            cursor.report("no andThen", at if token.broken else token.span, at=token.span.until(token.span))
            cursor.pretend("andThen")
        elif token.kind == "name" and token.text not in _TOP and token.text not in _TAIL:
            cursor.respell({"andThen", "script", "prompt", "catch", "with"})
        elif token.kind == "=" and cursor.ahead().kind == "{":
            cursor.report("= before block", token.span)
            token.kind, token.text = "name", "andThen"

    def prompt(self) -> nodes.Prompt:
        cursor = self.cursor
        word = cursor.keyword()
        if cursor.tok.kind != "{":
            raise cursor.unexpected("`{`")
        cursor.open()
        found: list[nodes.Directive] = []
        while cursor.tok.kind != "}":
            if cursor.tok.text not in ("system", "template", "model"):
                words = ("system", "template", "model")
                raise cursor.unexpected("`model`", "`system`", "`template`", "`}`", words=words)
            kind = cursor.keyword()
            if cursor.tok.kind in (":", "=") and cursor.ahead().kind == "string":
                cursor.report("sign after directive", cursor.tok.span, kind=cursor.tok.kind, directive=kind.text)
                cursor.advance()
            if cursor.tok.kind != "string":
                raise cursor.unexpected("a string in double quotes")
            text = cursor.advance()
            found.append(nodes.Directive(Name(kind.text, kind.span), text.value, span=kind.span.to(text.span)))
        return nodes.Prompt(tuple(found), span=word.span.to(cursor.close().span))
