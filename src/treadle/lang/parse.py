"""Parses a source to a syntax tree by recursive descent: declarations, blocks and calls.

Takes linear time; the stack is bounded, because groups and blocks nested too deeply are skipped. After a syntax error parsing
continues with the next list, statement or declaration, so that one pass reports all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as dataclass_replace

from treadle.lang import hints, tree
from treadle.lang.collection import without_collection
from treadle.lang.cursor import Failed
from treadle.lang.diagnostics import Edit, Fix, Reporter, Source, replace
from treadle.lang.lexer import Lexed, lex
from treadle.lang.literals import dedent
from treadle.lang.statements import StatementParser
from treadle.lang.tokens import WORDS, Token
from treadle.lang.tree import FacetKind, File, Name, Span


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
        if parser.unclosed is None or parser.unclosed[0] in unclosed or len(unclosed) == _QUOTES:
            break
        unclosed.update([parser.unclosed])  # all strings after it were inside out, so read everything again
    _name_arguments(parser.unnamed, partial, found)
    found.found += [each for each in unread.found if not _inside(each[1].span, parser.skipped)]
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
    items = [inner for item in file.items for inner in (item.items if isinstance(item, tree.Namespace) else (item,))]
    params = {"Retry": ["maxAttempts"]}
    params |= {item.name.text: [each.name.text for each in item.params] for item in items if isinstance(item, tree.Facet)}
    params |= {item.name.text: [each.name.text for each in item.fields] for item in items if isinstance(item, tree.Schema)}
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


class _Parser(StatementParser):
    def items(self) -> tuple[tree.Namespace | tree.Item, ...]:
        """Parse the whole source."""
        found: list[tree.Namespace | tree.Item] = []
        while self.tok.kind != "end":
            self.item(found, None)
        return tuple(found)

    def item(self, found: list[tree.Namespace | tree.Item], namespace: Token | None) -> None:
        """Parse one declaration; after an error advance to the next one."""
        token = self.tok
        self.column = self.item_column = self.margin(token)
        self.ended = False
        level = len(self.brackets)
        try:
            match token.text:
                case ";":
                    self.advance()
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
        first = self.tok.span
        self._find_item(level)
        self.skipped.append((first, self.tok.span))

    def _find_item(self, level: int) -> None:
        del self.brackets[level:]
        start = self.index
        depth = 0
        while self.tok.kind != "end":
            if self.begins_declaration() and (self.tok.broken or depth == 0) and self.index > start:
                return
            if self.begins_declaration() and self.index == start and self.tok is not self.failed_item:
                self.failed_item = self.tok
                return
            if self.tok.kind in ("{", "#{"):
                depth += 1
            elif self.tok.kind == "}":
                if depth == 0 and level:
                    return
                depth = max(0, depth - 1)
            self.advance()

    def nested_item(self) -> None:
        """Report a declaration inside a block, and read it so that the block goes on after it."""
        token = self.tok
        hint = "declarations stand beside each other, outside of blocks" + (
            "; steps call them by name" if token.text != "use" else ""
        )
        self.report(token.span, f"unexpected `{token.text}`: a declaration cannot stand inside a block", hint)
        kept = self.column, self.item_column, self.owner, self.results, self.bound, self.inputs, self.blocks
        self.blocks = 0
        self.item([], token)
        self.column, self.item_column, self.owner, self.results, self.bound, self.inputs, self.blocks = kept

    failed_item: Token | None = None  # the declaration at which the last error was

    def foreign_item(self, namespace: Token | None) -> None:
        token = self.tok
        expected = ["a declaration"] + (["`}`"] if namespace is not None else [])
        meant = hints.DECLARATIONS.get(token.text)
        inside = namespace is not None or self.file_scoped
        if meant is not None and self.ahead().kind in WORDS and token.kind == "name":
            ok = meant != "schema" or inside
            fixes = [replace(f"Write `{meant}`", token.span, meant)] if ok else []
            hint = f"write `{meant}`" + ("" if ok else " inside a namespace")
            self.report(token.span, f"unexpected `{token.text}`; expected a declaration", hint, fixes)
            token.text = meant
            return
        if token.text in hints.MODIFIERS and (self.ahead().text in _TOP or self.ahead().text in hints.DECLARATIONS):
            self.leave_out()
            return
        if token.text in hints.IMPORTS and token.kind == "name" and not self.ahead().broken:
            self._import(inside)
            return
        if token.kind == "-" and self.ahead().kind == "-":
            self.advance()
            self.dashed(token.span.to(self.advance().span))
            return
        if token.text == "namespace":
            hint = "write the full name, such as `namespace a.b { ... }`, beside the first"
            raise self.failed(token.span, "unexpected `namespace`: namespaces do not nest", hint)
        if token.text in ("yield", "andThen", "with", "catch", "script", "prompt"):
            hint = f"`{token.text}` belongs to a declaration or a block; is there a `}}` too many before it?"
            raise self.failed(token.span, f"unexpected `{token.text}`; expected {' or '.join(expected)}", hint)
        if token.kind == "}":
            self.report(token.span, "unexpected `}`; expected a declaration or the end of the file", "there is a `}` too many")
            self.advance()
            return
        raise self.unexpected(*expected, words=_TOP if self.ahead().kind in WORDS else (), fresh=True)

    def _import(self, inside: bool) -> None:
        """Report an import, which is `use` in a namespace and not needed elsewhere."""
        word, name = self.advance(), self.tok
        self.skip_line(within=True)
        last = self.previous
        simple = name.kind in WORDS and (last is name or (word.text == "from" and last.kind in WORDS))
        fixes = [replace(f"Write `use {name.text}`", word.span.to(last.span), f"use {name.text}")] if inside and simple else []
        hint = (
            "write `use namespace`"
            if inside
            else "outside a namespace nothing is imported: write the full name, `namespace.Facet(...)`"
        )
        hint += "; files are compiled together, without naming each other" if "string" in (name.kind, last.kind) else ""
        self.report(word.span, f"unexpected `{word.text}`; expected a declaration", hint, fixes)

    file_scoped = False  # a namespace without braces has begun

    # --- declarations

    def namespace(self) -> tree.Namespace:
        word = self.keyword()
        self.join()
        name = self.dotted()
        token = self.tok
        if token.kind != "{":
            if token.broken or token.kind == "end":
                self.file_scoped = True
                return tree.Namespace(name, (), True, word.doc, word.span.to(name.span))
            raise self.unexpected("`{`", "the end of the line")
        opener = self.open()
        level = len(self.brackets)
        items: list[tree.Namespace | tree.Item] = []
        while self.tok.kind not in ("}", "end"):
            if self.tok.text == "namespace" and self.begins_declaration() and self.tok.span.column <= word.span.column:
                break
            self.item(items, opener)
        del self.brackets[level:]
        inner = tuple(item for item in items if not isinstance(item, tree.Namespace))
        try:
            last = self.close("a declaration").span
        except Failed:
            self.brackets.pop()
            last = self.previous.span
        return tree.Namespace(name, inner, False, word.doc, word.span.to(last))

    def use(self) -> tree.Use:
        word = self.keyword()
        self.join()
        name = self.dotted()
        return tree.Use(name, word.span.to(name.span))

    def implicit(self) -> tree.Implicit:
        word = self.keyword()
        self.join()
        name = self.name()
        self.join_before("=")
        self.take("=")
        call = self.call()
        return tree.Implicit(name, call, word.span.to(call.span))

    def schema(self) -> tree.Schema:
        word = self.keyword()
        self.join()
        name = self.name()
        hint = f"fields stand in braces: `schema {name.text} {{ ... }}`"
        if self.tok.kind == "=" and self.ahead().kind == "{":
            self.report(self.tok.span, "unexpected `=`; expected `{`", hint, [replace("Remove it", self.tok.span, "")])
            self.advance()
        opener = self.tok
        if opener.kind not in ("{", "("):
            raise self.unexpected("`{`")
        fields, close = self.sequence(self.field, self._begins_field, lines=True)
        if opener.kind == "(":
            edits = (Edit(opener.span, " {"), Edit(close.span, "}"))
            self.report(opener.span, "unexpected `(`; expected `{`", hint, [Fix("Use braces", edits)])
        return tree.Schema(name, fields, word.doc, word.span.to(close.span))

    def _begins_field(self) -> bool:
        return self.tok.kind == "name" and self.ahead().kind == ":"

    def field(self) -> tree.Param:
        return self.param(fields=True)

    def param(self, *, fields: bool = False) -> tree.Param:
        token = self.tok
        name = self.name("`}`" if fields else "`)`")
        if self.tok.kind == "?" and self.ahead().kind == ":":
            self._optional_name(token)
        if self.tok.kind == ":":
            self.join()
            self.skip(1)
            self.join()
            type_ = self.type()
        else:
            name, type_ = self._untyped(token)
        default = None
        if self.tok.kind == "=":
            self.join_before("=")
            sign, before = self.advance(), type_.span.end
            default = self.expr()
            if fields:
                fix = replace("Remove it", before.to(default.span), "")
                self.report(sign.span, "unexpected `=`: a field has no default", "give the value where the schema is called", [fix])
                default = None
        return tree.Param(name, type_, default)

    def _optional_name(self, name: Token) -> None:
        mark = self.advance().span
        self.report(mark, "unexpected `?` after a name", f"the mark follows the type, as in `{name.text}: Long?`")

    def _untyped(self, token: Token) -> tuple[Name, tree.Type]:
        """Report a parameter without `:` and continue as if it had one."""
        after = self.tok
        name = Name(token.text, token.span)
        at = token.span.end
        if after.kind in WORDS and not after.broken:
            message = f"unexpected `{after.text}`; expected `:`"
            self.advance()
            if token.text[:1].isupper() and not after.text[:1].isupper():
                span, text = token.span.to(after.span), f"{after.text}: {token.text}"
                self.report(after.span, message, f"a parameter is written `{text}`", [replace(f"Write `{text}`", span, text)])
                return Name(after.text, after.span), tree.NamedType(name, token.span)
            self.report(after.span, message, fixes=[Fix("Insert `:`", (Edit(at, ":"),))])
            return name, tree.NamedType(Name(after.text, after.span), after.span)
        if after.kind == "=" and (type_ := self.ahead()).kind in WORDS and self.ahead(2).kind in (",", ")", "=", "}"):
            fix = replace("Write `:`", at.to(after.span), ":")
            self.report(after.span, "unexpected `=`; expected `:`", f"a parameter is written `{token.text}: {type_.text}`", [fix])
            self.advance()
            return name, self.type()
        if after.kind in (",", ")", "="):
            hint = f"every parameter has a type, such as `{token.text}: Json`"
            fix = Fix("Insert `: Json`", (Edit(at, ": Json"),))
            self.report(after.span, f"unexpected `{self.shown(after)}`; expected `:`", hint, [fix])
            return name, tree.NamedType(Name("Json", at), at)
        raise self.unexpected("`:`")

    def params(self) -> tuple[tuple[tree.Param, ...], Token]:
        return self.sequence(self.param, self._begins_field)

    def facet(self) -> tree.Facet:
        first = self.keyword()
        kind = FacetKind.EVENT if first.text == "event" else FacetKind(first.text)
        if self.tok.kind == ":":
            words = "event facet" if kind is FacetKind.EVENT else first.text
            raise self.failed(
                self.tok.span, "unexpected `:`; expected a name", f"write `{words} F(...) => (...) andThen {{ ... }}`"
            )
        self.join()
        if kind is FacetKind.EVENT:
            self._event_facet(first)
        name = self.name()
        self.bound = set()
        self.owner, self.results = name.text, ()
        opener = self.tok
        if opener.kind == "(":
            self.join_before("(")
            params, close = self.params()
        else:
            params, close = self._no_params(), self.previous
            opener = close
        self.inputs = frozenset(param.name.text for param in params)
        returns, end = self.returns(close)
        self.results = tuple(param.name.text for param in returns)
        mixins = self.mixins(in_block=False)
        last = mixins[-1].span if mixins else end
        self.expect_tail()
        pre_script = prompt = None
        blocks: list[tree.Block | tree.TooDeep] = []
        if self.tok.text == "prompt":
            prompt = self.prompt()
            last = prompt.span
        else:
            if self.tok.text == "script":
                pre_script = self.script()
                last = pre_script.span
            while self.tok.text == "andThen":
                blocks.append(self.then(with_script=True))
                last = blocks[-1].span
                self.expect_tail()
        catch = None
        if self.tok.text == "catch":
            catch = self.catch()
            last = catch.span
        parens = opener.span.to(close.span)
        return tree.Facet(
            kind, name, params, returns, mixins, pre_script, tuple(blocks), prompt, catch, first.doc, first.span.to(last), parens,
        )  # fmt: skip

    def _event_facet(self, first: Token) -> None:
        if self.tok.text == "facet":
            self.keyword()
            self.join()
        elif self.tok.kind == "name" and self.ahead().kind == "(":
            at = first.span.end
            message = f"unexpected `{self.tok.text}`; expected `facet`"
            self.report(self.tok.span, message, "write `event facet`", [Fix("Insert `facet`", (Edit(at, " facet"),))])
        else:
            raise self.unexpected("`facet`", words=("facet",))

    def _no_params(self) -> tuple[tree.Param, ...]:
        if self.tok.kind in ("{", "=>") or self.tok.text in _TAIL:
            at = self.previous.span.end
            fix = Fix("Insert `()`", (Edit(at, "()"),))
            self.report(at, "expected `(`: the list of parameters is missing", "write `()` if there are none", [fix])
            return ()
        raise self.unexpected("`(`")

    def returns(self, close: Token) -> tuple[tuple[tree.Param, ...], Span]:
        token = self.tok
        if token.kind == "-" and self.ahead().kind == ">":
            self.advance()
            span = token.span.to(self.advance().span)
            self.report(span, "unexpected `->`; expected `=>`", "returns follow `=>`", [replace("Write `=>`", span, "=>")])
        elif token.kind == ":" and self.ahead().kind in (*WORDS, "["):
            self.report(token.span, "unexpected `:`; expected `=>`", "returns are named: `=> (result: Long)`")
            self.advance()
        elif token.kind == "=>":
            self.advance()
        else:
            return (), close.span
        if self.tok.kind == "(":
            returns, end = self.params()
            return returns, end.span
        if (self.tok.kind in WORDS and not self.begins_declaration()) or self.tok.kind == "[":
            start = self.tok.span
            type_ = self.type()
            edits = (Edit(start.until(start), "(result: "), Edit(type_.span.end, ")"))
            message = f"unexpected `{self.source.part(start)}`; expected `(`"
            self.report(start, message, "returns are named: `=> (result: Long)`", [Fix("Name it `result`", edits)])
            return (tree.Param(Name("result", start), type_),), type_.span
        raise self.unexpected("`(`")

    def expect_tail(self) -> None:
        """Report a block without `andThen`, and misspelled words that begin a block."""
        token = self.tok
        if token.kind == "{":
            at = self.previous.span.end
            fix = Fix("Insert `andThen`", (Edit(token.span.until(token.span), "andThen "),))
            self.report(
                at if token.broken else token.span, "unexpected `{`; expected `andThen`", "a block follows `andThen`", [fix]
            )
            self.pretend("andThen")
        elif token.kind == "name" and token.text not in _TOP and token.text not in _TAIL:
            self.respell({"andThen", "script", "prompt", "catch", "with"})
        elif token.kind == "=" and self.ahead().kind == "{":
            fix = replace("Write `andThen`", token.span, "andThen")
            self.report(token.span, "unexpected `=`; expected `andThen`", "a block follows `andThen`", [fix])
            token.kind, token.text = "name", "andThen"

    def prompt(self) -> tree.Prompt:
        word = self.keyword()
        if self.tok.kind != "{":
            raise self.unexpected("`{`")
        self.open()
        found: list[tree.Directive] = []
        while self.tok.kind != "}":
            if self.tok.text not in ("system", "template", "model"):
                words = ("system", "template", "model")
                raise self.unexpected("`model`", "`system`", "`template`", "`}`", words=words)
            kind = self.keyword()
            if self.tok.kind in (":", "=") and self.ahead().kind == "string":
                fix = replace("Remove it", self.tok.span, "")
                self.report(self.tok.span, f"unexpected `{self.tok.kind}`", f'write `{kind.text} "..."`', [fix])
                self.advance()
            if self.tok.kind != "string":
                raise self.unexpected("a string in double quotes")
            text = self.advance()
            found.append(tree.Directive(Name(kind.text, kind.span), text.value, kind.span.to(text.span)))
        return tree.Prompt(tuple(found), word.span.to(self.close().span))

    def script(self) -> tree.Script:
        word = self.keyword()
        language = self.name() if self.tok.kind == "name" else None
        code = self.tok
        if code.kind not in ("string", "code"):
            raise self.unexpected("a string in double quotes", "`{` and Python code", *([] if language else ["a name"]))
        self.advance()
        text, line = code.value, code.code_line or code.line
        if code.kind == "string":
            text, dropped = dedent(text, flush=True)
            line += dropped
        return tree.Script(language, text, line, word.span.to(code.span))
