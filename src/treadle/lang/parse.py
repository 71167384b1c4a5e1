"""Parses a source to a syntax tree by recursive descent: declarations, blocks and calls.

Takes linear time; the stack is bounded, because groups and blocks nested too deeply are skipped. After a syntax error parsing
continues with the next list, statement or declaration, so that one pass reports all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import replace as dataclass_replace

from treadle.lang import hints, nodes
from treadle.lang.calls import parse_call, parse_mixins
from treadle.lang.collection import without_collection
from treadle.lang.cursor import Cursor, Names, ReportedError
from treadle.lang.diagnostics import Edit, Fix, Reporter, Source, enclose, replace
from treadle.lang.expressions import parse_expr, parse_type
from treadle.lang.foreign import report_dashes
from treadle.lang.lexer import Lexed, lex
from treadle.lang.literals import parse_doc
from treadle.lang.nodes import DIRECTIVES, FacetKind, File, Name, Span
from treadle.lang.statements import parse_catch, parse_script, parse_then
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
        unread, parse_errors = Reporter(sources=reporter.sources), Reporter(sources=reporter.sources)
        lexed = lex(source, unread, unclosed)
        cursor = Cursor(source, lexed, parse_errors, nested_item)
        items: list[nodes.Namespace | nodes.Item] = []
        while cursor.tok.kind != "end":
            parse_item(cursor, items, None)
        if cursor.unclosed is None or cursor.unclosed[0] in unclosed or len(unclosed) == _QUOTES:
            break
        unclosed.update([cursor.unclosed])  # all strings after it were inside out, so read everything again
    partial = File(source.name, tuple(items))
    _name_arguments(cursor.unnamed, partial, parse_errors)
    parse_errors.found += [entry for entry in unread.found if not _inside(entry[1].span, cursor.skipped)]
    reporter.found += parse_errors.found
    ok = not parse_errors.found and not unread.found
    return Parsed(partial if ok else None, partial, lexed)


def _inside(place: Span, skipped: list[tuple[Span, Span]]) -> bool:
    """Return whether an unreadable text stands where the parser has skipped anyway, because of an error before it."""
    return any(first[:2] < place[:2] < last[:2] for first, last in skipped)


def _name_arguments(unnamed: list[tuple[int, str, int, Span]], file: File, reporter: Reporter) -> None:
    """Add fixes to the errors about arguments without a name, where this file declares the callee."""
    items = [inner for item in file.items for inner in (item.items if isinstance(item, nodes.Namespace) else (item,))]
    params = {"Retry": ["maxAttempts"]}
    for item in items if unnamed else ():
        if isinstance(item, nodes.Facet | nodes.Schema):
            params[item.name.text] = [param.name.text for param in item.params]
    for number, callee, position, span in unnamed:
        names = params.get(callee.rpartition(".")[2], ())
        if position < len(names):
            name = names[position]
            fix = replace(f"Name it `{name}`", span.start, f"{name} = ")
            order, diagnostic = reporter.found[number]
            reporter.found[number] = (order, dataclass_replace(diagnostic, fixes=(fix,)))


_QUOTES = 5  # how many wrong quotes are found one by one
_TOP = ("namespace", "use", "uses", "facet", "event", "workflow", "implicit", "schema")
_TAIL = ("with", "script", "andThen", "prompt", "catch")


def parse_item(cursor: Cursor, declarations: list[nodes.Namespace | nodes.Item], namespace: Token | None) -> None:
    """Parse one declaration; after an error advance to the next one."""
    token = cursor.tok
    cursor.column = cursor.item_column = cursor.margin(token)
    cursor.ended = False
    level = len(cursor.brackets)
    try:
        match token.text:
            case ";":
                cursor.advance()
            case "facet" | "workflow" | "event":
                declarations.append(parse_facet(cursor))
            case "schema":
                declarations.append(parse_schema(cursor))
            case "implicit":
                declarations.append(parse_implicit(cursor))
            case "use" | "uses":
                declarations.append(parse_use(cursor))
            case "namespace" if namespace is None:
                declarations.append(parse_namespace(cursor))
            case _:
                foreign_item(cursor, namespace)
    except ReportedError:
        next_item(cursor, level)


def next_item(cursor: Cursor, level: int) -> None:
    """After an error in a declaration: advance to the next one."""
    first = cursor.tok.span
    _find_item(cursor, level)
    cursor.skipped.append((first, cursor.tok.span))


def _find_item(cursor: Cursor, level: int) -> None:
    del cursor.brackets[level:]
    start = cursor.index
    depth = 0
    while cursor.tok.kind != "end":
        if cursor.begins_declaration() and (cursor.tok.broken or depth == 0) and cursor.index > start:
            return
        if cursor.begins_declaration() and cursor.index == start and cursor.tok is not cursor.failed_item:
            cursor.failed_item = cursor.tok
            return
        if cursor.tok.kind in ("{", "#{"):
            depth += 1
        elif cursor.tok.kind == "}":
            if depth == 0 and level:
                return
            depth = max(0, depth - 1)
        cursor.advance()


def nested_item(cursor: Cursor) -> None:
    """Report a declaration inside a block, and read it so that the block goes on after it."""
    token = cursor.tok
    hint = "declarations stand beside each other, outside of blocks" + ("; steps call them by name" if token.text != "use" else "")
    cursor.report("nested declaration", hint=hint)
    columns, names, blocks = (cursor.column, cursor.item_column), cursor.names, cursor.blocks
    cursor.blocks = 0
    parse_item(cursor, [], token)
    (cursor.column, cursor.item_column), cursor.names, cursor.blocks = columns, names, blocks


def foreign_item(cursor: Cursor, namespace: Token | None) -> None:
    token = cursor.tok
    expected = ["a declaration"] + (["`}`"] if namespace is not None else [])
    meant = hints.DECLARATIONS.get(token.text)
    inside = namespace is not None or cursor.file_scoped
    if meant is not None and cursor.ahead().kind in WORDS and token.kind == "name":
        ok = meant != "schema" or inside
        fixes = [replace(f"Write `{meant}`", token.span, meant)] if ok else []
        hint = f"write `{meant}`" + ("" if ok else " inside a namespace")
        cursor.report("foreign declaration", hint=hint, fixes=fixes)
        token.text = meant
        return
    if token.text in hints.MODIFIERS and (cursor.ahead().text in _TOP or cursor.ahead().text in hints.DECLARATIONS):
        cursor.leave_out()
        return
    if token.text in hints.IMPORTS and token.kind == "name" and not cursor.ahead().broken:
        _import(cursor, inside)
        return
    if token.kind == "-" and cursor.ahead().kind == "-":
        report_dashes(cursor)
        return
    if token.text == "namespace":
        raise cursor.failed("nested namespace")
    if token.text in ("yield", "andThen", "with", "catch", "script", "prompt"):
        raise cursor.failed("word outside", expected=" or ".join(expected))
    if token.kind == "}":
        cursor.drop("extra brace")
        return
    raise cursor.unexpected(*expected, words=_TOP if cursor.ahead().kind in WORDS else (), fresh=True)


def _import(cursor: Cursor, inside: bool) -> None:
    """Report an import, which is `use` in a namespace and not needed elsewhere."""
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


def parse_namespace(cursor: Cursor) -> nodes.Namespace:
    word = cursor.leading_keyword()
    name = cursor.dotted()
    token = cursor.tok
    if token.kind != "{":
        if token.broken or token.kind == "end":
            cursor.file_scoped = True
            return nodes.Namespace(name, (), True, parse_doc(word.doc), span=word.span.to(name.span))
        raise cursor.unexpected("`{`", "the end of the line")
    opener = cursor.open()
    level = len(cursor.brackets)
    items: list[nodes.Namespace | nodes.Item] = []
    while cursor.tok.kind not in ("}", "end"):
        if cursor.tok.text == "namespace" and cursor.begins_declaration() and cursor.tok.span.column <= word.span.column:
            break
        parse_item(cursor, items, opener)
    del cursor.brackets[level:]
    inner = tuple(item for item in items if not isinstance(item, nodes.Namespace))
    try:
        last = cursor.close("a declaration").span
    except ReportedError:
        cursor.brackets.pop()
        last = cursor.previous.span
    return nodes.Namespace(name, inner, False, parse_doc(word.doc), span=word.span.to(last))


def parse_use(cursor: Cursor) -> nodes.Use:
    word = cursor.leading_keyword()
    name = cursor.dotted()
    return nodes.Use(name, span=word.span.to(name.span))


def parse_implicit(cursor: Cursor) -> nodes.Implicit:
    word = cursor.leading_keyword()
    name = cursor.name()
    cursor.join_before("=")
    cursor.take("=")
    call = parse_call(cursor)
    return nodes.Implicit(name, call, span=word.span.to(call.span))


def parse_schema(cursor: Cursor) -> nodes.Schema:
    word = cursor.leading_keyword()
    name = cursor.name()
    if cursor.tok.kind == "=" and cursor.ahead().kind == "{":
        cursor.drop("= before fields", name=name.text)
    opener = cursor.tok
    if opener.kind not in ("{", "("):
        raise cursor.unexpected("`{`")
    fields, close = cursor.sequence(parse_field, _begins_field, lines=True)
    if opener.kind == "(":
        edits = (Edit(opener.span, " {"), Edit(close.span, "}"))
        cursor.report("fields in parentheses", opener.span, name=name.text, fixes=[Fix("Use braces", edits)])
    return nodes.Schema(name, fields, parse_doc(word.doc), span=word.span.to(close.span))


def _begins_field(cursor: Cursor) -> bool:
    return cursor.tok.kind == "name" and cursor.ahead().kind == ":"


def parse_field(cursor: Cursor) -> nodes.Param:
    return parse_param(cursor, fields=True)


def parse_param(cursor: Cursor, *, fields: bool = False) -> nodes.Param:
    token = cursor.tok
    name = cursor.name("`}`" if fields else "`)`")
    if cursor.tok.kind == "?" and cursor.ahead().kind == ":":
        cursor.advance()
        cursor.report("mark after name", cursor.previous.span, name=token.text)
    if cursor.tok.kind == ":":
        cursor.join()
        cursor.skip(1)
        cursor.join()
        type_ = parse_type(cursor)
    else:
        name, type_ = _untyped(cursor, token)
    default = None
    if cursor.tok.kind == "=":
        cursor.join_before("=")
        sign, before = cursor.advance(), type_.span.end
        default = parse_expr(cursor)
        if fields:
            cursor.report("field default", sign.span, at=before.to(default.span))
            default = None
    return nodes.Param(name, type_, default)


def _untyped(cursor: Cursor, token: Token) -> tuple[Name, nodes.Type]:
    """Report a parameter without `:` and continue as if it had one."""
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
        cursor.drop("= before type", at=at.to(after.span), token=token.text, type=type_.text)
        return name, parse_type(cursor)
    if after.kind in (",", ")", "="):
        cursor.report("no type", after.span, at=at, shown=cursor.shown(after), token=token.text)
        return name, nodes.NamedType(Name("Json", at), span=at)
    raise cursor.unexpected("`:`")


def parse_facet(cursor: Cursor) -> nodes.Facet:
    first = cursor.keyword()
    kind = FacetKind.EVENT if first.text == "event" else FacetKind(first.text)
    if cursor.tok.kind == ":":
        words = "event facet" if kind is FacetKind.EVENT else first.text
        raise cursor.failed(": after kind", words=words)
    cursor.join()
    if kind is FacetKind.EVENT:
        _event_facet(cursor, first)
    name = cursor.name()
    cursor.names = Names(name.text)
    opener = cursor.tok
    if opener.kind == "(":
        cursor.join_before("(")
        params, close = cursor.sequence(parse_param, _begins_field)
    else:
        params, close = _no_params(cursor), cursor.previous
        opener = close
    cursor.names.inputs = frozenset(param.name.text for param in params)
    returns, end = parse_returns(cursor, close)
    cursor.names.results = tuple(param.name.text for param in returns)
    mixins = parse_mixins(cursor, in_block=False)
    last = mixins[-1].span if mixins else end
    expect_tail(cursor)
    pre_script = prompt = None
    blocks: list[nodes.Block] = []
    if cursor.tok.text == "prompt":
        prompt = parse_prompt(cursor)
        last = prompt.span
    else:
        if cursor.tok.text == "script":
            pre_script = parse_script(cursor)
            last = pre_script.span
        while cursor.tok.text == "andThen":
            blocks.append(parse_then(cursor, with_script=True))
            last = blocks[-1].span
            expect_tail(cursor)
    catch = None
    if cursor.tok.text == "catch":
        catch = parse_catch(cursor)
        last = catch.span
    return nodes.Facet(
        name, kind, params, returns, mixins, pre_script, tuple(blocks), prompt, catch, parse_doc(first.doc),
        span=first.span.to(last), parens=opener.span.to(close.span),
    )  # fmt: skip


def _event_facet(cursor: Cursor, first: Token) -> None:
    if cursor.tok.text == "facet":
        cursor.leading_keyword()
    elif cursor.tok.kind == "name" and cursor.ahead().kind == "(":
        cursor.report("event without facet", at=first.span.end)
    else:
        raise cursor.unexpected("`facet`", words=("facet",))


def _no_params(cursor: Cursor) -> tuple[nodes.Param, ...]:
    if cursor.tok.kind in ("{", "=>") or cursor.tok.text in _TAIL:
        cursor.report("no parameters", cursor.previous.span.end)
        return ()
    raise cursor.unexpected("`(`")


def parse_returns(cursor: Cursor, close: Token) -> tuple[tuple[nodes.Param, ...], Span]:
    token = cursor.tok
    if token.kind == "-" and cursor.ahead().kind == ">":
        cursor.advance()
        cursor.report("-> before returns", token.span.to(cursor.advance().span))
    elif token.kind == ":" and cursor.ahead().kind in (*WORDS, "["):
        cursor.drop(": before returns")
    elif token.kind == "=>":
        cursor.advance()
    else:
        return (), close.span
    if cursor.tok.kind == "(":
        returns, end = cursor.sequence(parse_param, _begins_field)
        return returns, end.span
    if (cursor.tok.kind in WORDS and not cursor.begins_declaration()) or cursor.tok.kind == "[":
        start = cursor.tok.span
        type_ = parse_type(cursor)
        fix = enclose("Name it `result`", start, "(result: ", type_.span, ")")
        cursor.report("unnamed return", start, fixes=[fix], shown=cursor.source.part(start))
        return (nodes.Param(Name("result", start), type_),), type_.span
    raise cursor.unexpected("`(`")


def expect_tail(cursor: Cursor) -> None:
    """Report a block without `andThen`, and misspelled words that begin a block."""
    token = cursor.tok
    if token.kind == "{":
        cursor.report("no andThen", cursor.previous.span.end if token.broken else token.span, at=token.span.start)
        cursor.pretend("andThen")
    elif token.kind == "name" and token.text not in _TOP and token.text not in _TAIL:
        cursor.respell({"andThen", "script", "prompt", "catch", "with"})
    elif token.kind == "=" and cursor.ahead().kind == "{":
        cursor.report("= before block")
        token.kind, token.text = "name", "andThen"


def parse_prompt(cursor: Cursor) -> nodes.PromptBlock:
    word = cursor.keyword()
    cursor.need("{")
    cursor.open()
    directives: list[nodes.Directive] = []
    while cursor.tok.kind != "}":
        if cursor.tok.text not in DIRECTIVES:
            raise cursor.unexpected("`model`", "`system`", "`template`", "`}`", words=DIRECTIVES)
        kind = cursor.keyword()
        if cursor.tok.kind in (":", "=") and cursor.ahead().kind == "string":
            cursor.drop("sign after directive", kind=cursor.tok.kind, directive=kind.text)
        if cursor.tok.kind != "string":
            raise cursor.unexpected("a string in double quotes")
        text = cursor.advance()
        directives.append(nodes.Directive(Name(kind.text, kind.span), text.value, span=kind.span.to(text.span)))
    return nodes.PromptBlock(tuple(directives), span=word.span.to(cursor.close().span))
