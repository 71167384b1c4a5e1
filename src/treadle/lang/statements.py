"""Parses blocks and statements."""

from __future__ import annotations

from treadle.lang import builtins, hints, nodes
from treadle.lang.calls import parse_args, parse_call
from treadle.lang.cursor import Cursor, ReportedError
from treadle.lang.diagnostics import Edit, Fix, enclose, nearest, replace
from treadle.lang.expressions import LEVELS, calls_function, parse_expr
from treadle.lang.foreign import report_foreign_statement, report_value_for_owner
from treadle.lang.literals import dedent
from treadle.lang.nodes import Name, Span
from treadle.lang.tokens import KEYWORDS, OPENERS, WORDS, Token

# Keywords that cannot name a step, because the statement would read like something else.
NOT_STEPS = frozenset(
    ["namespace", "use", "uses", "facet", "event", "workflow", "implicit", "schema", "andThen", "yield", "prompt", "script",
     "true", "false", "null"]
)  # fmt: skip
MODES = ("failFast", "collectErrors")


# --- blocks


def parse_then(cursor: Cursor, *, with_script: bool) -> nodes.Block:
    """Parse `andThen` and the statements after it."""
    cursor.keyword()
    token = cursor.tok
    match token.text:
        case "{":
            return parse_block(cursor)
        case "foreach":
            return parse_foreach(cursor)
        case "when":
            return parse_when(cursor, cursor.previous)
        case "script" if with_script:
            script = parse_script(cursor)
            return nodes.Block(script=script, span=script.span)
    words = ["foreach", "when"] + (["script"] if with_script else [])
    if token.text == "for":
        cursor.report("for")
        token.text = "foreach"
        return parse_foreach(cursor)
    if token.text in hints.CONSTRUCTS:
        raise cursor.failed("construct", hint=hints.WORDS[token.text])
    if token.kind == ":":
        raise cursor.failed(": before block")
    if token.text == "script":
        raise cursor.failed("script in step")
    raise cursor.unexpected("`{`", *(f"`{word}`" for word in words), words=words)


def parse_script(cursor: Cursor) -> nodes.Script:
    word = cursor.keyword()
    language = cursor.name() if cursor.tok.kind == "name" else None
    code = cursor.tok
    if code.kind not in ("string", "code"):
        raise cursor.unexpected("a string in double quotes", "`{` and Python code", *([] if language else ["a name"]))
    cursor.advance()
    text, line = code.value, code.code_line or code.line
    if code.kind == "string":
        text, dropped = dedent(text, flush=True)
        line += dropped
    return nodes.Script(text, language or nodes.PYTHON, line, span=word.span.to(code.span))


def parse_catch(cursor: Cursor) -> nodes.Block:
    word = cursor.keyword()
    if cursor.tok.text == "when":
        return parse_when(cursor, word)
    if cursor.tok.kind == "(":
        cursor.report("catch variable")
        cursor.skip_group()
    cursor.need("{", "`when`")
    return parse_block(cursor)


def parse_foreach(cursor: Cursor) -> nodes.Block:
    word = cursor.leading_keyword()
    paren = cursor.advance() if cursor.tok.kind == "(" and cursor.ahead(2).text == "in" else None
    if cursor.tok.kind == "input":
        raise cursor.failed("input as variable")
    variable = cursor.name()
    if cursor.tok.text != "in":
        if cursor.tok.text in ("of", ":", "="):
            cursor.drop("of")
        else:
            raise cursor.unexpected("`in`", words=("in",))
    else:
        cursor.keyword()
    token = cursor.tok
    iterable: nodes.Expr
    if token.kind == "input":
        iterable = nodes.InputRef(tuple(token.text[2:].split(".")), span=token.span)
    elif token.kind in WORDS:
        iterable = nodes.Ref(tuple(token.text.split(".")), span=token.span)
    else:
        hint = (
            "foreach iterates over a reference; pass a literal list as the argument of a step or as a default"
            if token.kind == "["
            else None
        )
        raise cursor.failed("foreach value", hint=hint, shown=cursor.shown(token))
    cursor.advance()
    if paren is not None and cursor.tok.kind == ")":
        fix = Fix("Remove the parentheses", (Edit(paren.span, ""), Edit(cursor.advance().span, "")))
        cursor.report("foreach parentheses", paren.span, fixes=[fix])
    elif cursor.tok.kind == "(":
        hint = "foreach iterates over a reference; compute the list in a step or a script before it"
        if token.text in builtins.FUNCTIONS:
            hint = f"make it a value, `l = {token.text}(...)`; the body of a later step can be `foreach x in l {{ ... }}`"
        raise cursor.failed("foreach call", token.span, hint=hint, token=token.text)
    mode, failed = _parse_mode(cursor)
    if cursor.tok.kind != "{":
        raise cursor.unexpected("`{`", *([] if mode else [f"`{mode_name}`" for mode_name in MODES]), words=() if mode else MODES)
    cursor.names.bound.add(variable.text)
    head = nodes.Foreach(variable, iterable, mode, failed, span=word.span.to(cursor.previous.span))
    block = parse_block(cursor)
    if block.too_deep:
        return block
    return nodes.Block(block.statements, head, span=head.span.to(block.span), depth=block.depth)


def _parse_mode(cursor: Cursor) -> tuple[Name | None, Name | None]:
    """Parse the error mode of a foreach, if there is one."""
    if cursor.tok.kind == "name" and cursor.tok.text not in MODES and (meant := nearest(cursor.tok.text, [*MODES])) is not None:
        cursor.correct(meant, f"`{meant}`")
    if cursor.tok.text not in MODES:
        return None, None
    word = cursor.keyword()
    mode, failed = Name(word.text, word.span), None
    if word.text == "collectErrors":
        if cursor.tok.kind != "(":
            raise cursor.failed("collectErrors", word.span)
        cursor.open()
        if cursor.tok.kind == "input" and "." not in (name := cursor.tok.text[2:]):
            cursor.report("input as return", name=name)
            cursor.tok.kind, cursor.tok.text = "name", name
        failed = cursor.name()
        cursor.close()
    elif cursor.tok.kind == "(" and cursor.ahead().kind == ")":
        cursor.report("failFast", cursor.tok.span.to(cursor.ahead().span))
        cursor.skip(2)
    if cursor.tok.text in MODES:
        raise cursor.failed("two modes")
    return mode, failed


def parse_when(cursor: Cursor, first: Token) -> nodes.Block:
    cursor.keyword()
    if cursor.tok.kind != "{":
        raise cursor.unexpected("`{`", hint="conditions stand in cases: `when { case condition => { ... } case _ => { ... } }`")
    if cursor.blocks >= nodes.MAX_BLOCKS:
        return nodes.Block(span=cursor.skip_too_deep(), too_deep=True)
    cursor.open()
    level = len(cursor.brackets)
    cursor.blocks += 1
    cases: list[nodes.Case] = []
    while cursor.tok.kind not in ("}", "end") and not cursor.ended:
        if cursor.tok.kind == ";":
            cursor.advance()
            continue
        start = cursor.index
        try:
            cases.append(parse_case(cursor))
        except ReportedError:
            next_case(cursor, level)
            if cursor.index == start:
                cursor.advance()
    cursor.blocks -= 1
    last = end_of_block(cursor, level, "`case`")
    depth = 1 + max((case.block.depth for case in cases), default=0)
    return _limited(nodes.Block(cases=tuple(cases), span=first.span.to(last), depth=depth))


def next_case(cursor: Cursor, level: int) -> None:
    """After an error in a case: advance to the next one."""
    del cursor.brackets[level:]
    cursor.comparing = False
    while cursor.tok.kind not in ("}", "end") and cursor.tok.text != "case":
        if cursor.tok.kind in OPENERS:
            cursor.skip_group()
        else:
            cursor.advance()


def parse_case(cursor: Cursor) -> nodes.Case:
    token = cursor.tok
    if token.text != "case":
        if token.text in ("default", "else", "_", "otherwise") and cursor.ahead().kind in ("=>", "{", ":"):
            fixes = [replace("Write `case _`", token.span, "case _")] if cursor.ahead().kind == "=>" else []
            raise cursor.failed("default case", fixes=fixes)
        raise cursor.unexpected("`case`", "`}`", words=("case",), fresh=True)
    word = cursor.keyword()
    written = _parse_condition(cursor)
    condition = None if isinstance(written, nodes.Ref) and written.path == ("_",) else written
    at = cursor.tok.span
    if cursor.tok.kind == "{":
        cursor.report("no arrow", at=at.start)
    elif cursor.tok.kind == ":" or (cursor.tok.kind == "-" and cursor.ahead().kind == ">"):
        at = at.to(cursor.advance().span if cursor.tok.kind == ":" else cursor.ahead().span)
        cursor.report("other arrow", at, shown=cursor.source.part(at))
        while cursor.tok.kind in ("-", ">"):
            cursor.advance()
    else:
        cursor.take("=>", "an operator")
    if cursor.begins_statement():
        return _case_without_braces(cursor, word, condition)
    cursor.need("{")
    block = parse_block(cursor)
    return nodes.Case(condition, block, span=word.span.to(block.span))


def _parse_condition(cursor: Cursor) -> nodes.Expr:
    cursor.comparing = True
    condition = parse_expr(cursor)
    cursor.comparing = False
    return condition


def _case_without_braces(cursor: Cursor, word: Token, condition: nodes.Expr | None) -> nodes.Case:
    first = cursor.tok
    statement = parse_statement(cursor)
    fix = enclose("Insert braces", first.span, "{ ", cursor.previous.span, " }")
    cursor.report("case without braces", first.span, fixes=[fix], first=first.text)
    block = nodes.Block((statement,) if statement else (), span=first.span.to(cursor.previous.span), depth=1)
    return nodes.Case(condition, block, span=word.span.to(block.span))


def parse_block(cursor: Cursor) -> nodes.Block:
    """Parse statements in braces."""
    if cursor.blocks >= nodes.MAX_BLOCKS:
        return nodes.Block(span=cursor.skip_too_deep(), too_deep=True)
    first = cursor.open()
    level = len(cursor.brackets)
    outer, cursor.blocks = cursor.column, cursor.blocks + 1
    statements: list[nodes.Statement] = []
    depth = 1
    while cursor.tok.kind not in ("}", "end"):
        if cursor.begins_declaration():
            if not (cursor.tok.broken and cursor.margin(cursor.tok) > cursor.item_column):
                break
            cursor.nested_item(cursor)
            continue
        start = cursor.index
        cursor.column = cursor.margin(cursor.tok)
        try:
            statement = parse_statement(cursor)
        except ReportedError:
            cursor.resume(level)
            if cursor.index == start:
                cursor.advance()
                cursor.resume(level)
            continue
        if statement is None:
            continue
        statements.append(statement)
        if isinstance(statement, nodes.Step):
            body, catch = statement.body, statement.catch
            depth = max(depth, 1 + (body.depth if body else 0), 1 + (catch.depth if catch else 0))
    cursor.column, cursor.blocks = outer, cursor.blocks - 1
    last = end_of_block(cursor, level, "a step", "`yield`")
    return _limited(nodes.Block(tuple(statements), span=first.span.to(last), depth=depth))


def end_of_block(cursor: Cursor, level: int, *expected: str) -> Span:
    """Take the closing brace; if it is missing, report this once and go on as if all blocks had ended."""
    del cursor.brackets[level:]
    if cursor.tok.kind == "}":
        return cursor.close().span
    if not cursor.ended:
        cursor.unexpected(*expected, "`}`")
        cursor.ended = True
    cursor.brackets.pop()
    return cursor.previous.span


# --- statements


def parse_statement(cursor: Cursor) -> nodes.Statement | None:
    """Parse one statement; None for `;`."""
    token = cursor.tok
    kind = token.kind
    if kind == "name":
        if cursor.ahead().kind == "=":
            return parse_step(cursor, cursor.advance())
        if token.text == "yield":
            word = cursor.leading_keyword()
            if cursor.tok.text in hints.NOISE and cursor.ahead().kind in WORDS:
                cursor.leave_out()
            if not (cursor.tok.kind in WORDS and cursor.ahead().kind == "(") and not cursor.tok.broken:
                _no_target(cursor, word)
                return None
            call = parse_call(cursor)
            _no_after(cursor, "a yield waits for all steps of its block")
            return nodes.Yield(call, span=word.span.to(call.span))
        return report_foreign_statement(cursor)
    if kind == ";":
        cursor.advance()
        return None
    if token.text in ("sys.log", "sys.assert"):
        return parse_sys(cursor)
    if kind == ",":
        cursor.drop("comma after statement")
        return None
    return report_foreign_statement(cursor)


def _no_target(cursor: Cursor, word: Token) -> None:
    """Report a yield without the owner of the block."""
    token, owner = cursor.tok, cursor.names.owner if cursor.blocks == 1 else "F"
    if token.kind in ("(", "{", "#{") or token.text == cursor.names.owner:
        results = ", ".join(f"{result} = ..." for result in cursor.names.results)
        named = token.kind == "(" and cursor.ahead(2).kind == "=" and cursor.blocks == 1
        fixes = [replace(f"Insert `{owner}`", word.span.end.to(token.span), f" {owner}(")] if named else []
        wanted = "arguments" if token.text == cursor.names.owner else "the owner of the block"
        raise cursor.failed("yield without owner", fixes=fixes, wanted=wanted, owner=owner, results=results)
    report_value_for_owner(cursor, word)


def parse_sys(cursor: Cursor) -> nodes.Statement:
    word = cursor.keyword()
    cursor.need("(")
    cursor.join_before("(")
    kind = nodes.SysKind(word.text.removeprefix("sys."))
    args: tuple[nodes.Arg, ...] = ()
    condition = None
    if kind is nodes.SysKind.LOG:
        args, close = parse_args(cursor, None)
    else:
        cursor.open()
        condition = _parse_condition(cursor)
        close = cursor.close("an operator")
    after = parse_after(cursor)
    return nodes.Sys(kind, args, condition, span=word.span.to(after[-1].span if after else close.span), after=after)


def parse_step(cursor: Cursor, token: Token) -> nodes.Step:
    if token.text == "yield":
        cursor.report("= after yield", token.span, at=token.span.end.to(cursor.tok.span))
    elif token.text in NOT_STEPS:
        cursor.report("keyword as step", token.span, token=token.text)
    cursor.join_before("=")
    cursor.advance()
    if cursor.tok.text in hints.NOISE and cursor.ahead().kind in WORDS and not cursor.ahead().broken:
        cursor.leave_out()
    calls = cursor.tok.kind in WORDS and cursor.ahead().kind == "(" and not calls_function(cursor)
    call = parse_call(cursor) if calls else _parse_value(cursor)
    cursor.names.bound.add(token.text)
    if call.target.text == nodes.WRITTEN_VALUE:
        if cursor.tok.text in ("with", "after", "andThen", "catch") and not cursor.names_something():
            raise cursor.failed("clause after value", name=token.text)
        return nodes.Step(Name(token.text, token.span), call, None, None, span=token.span.to(call.span))
    arrow = cursor.tok.kind == "-" and cursor.ahead().kind == ">"
    goes_on = cursor.tok.text in LEVELS or cursor.tok.kind in (".", "[")
    if goes_on and not (arrow or cursor.tok.broken or cursor.names_something()):
        raise cursor.failed("call in expression", call.span, target=call.target.text)
    body = catch = None
    _respell(cursor, {"after", "andThen", "catch", "with"})
    after = parse_after(cursor)
    if after:
        _respell(cursor, {"andThen", "catch"})
    if cursor.tok.kind == "name" and not cursor.names_something():
        if cursor.tok.text == "andThen":
            body = parse_then(cursor, with_script=False)
        if cursor.tok.text == "catch" and not cursor.names_something():
            catch = parse_catch(cursor)
    elif cursor.tok.kind == "{":
        cursor.report("no andThen in step", at=cursor.tok.span.start)
        body = parse_block(cursor)
    last = after[-1].span if after else call.span
    if body or catch:
        after += _no_after(cursor, "`after` stands before `andThen` and `catch`", last.end, ", " if after else " after ")
        last = (catch or body or call).span
    return nodes.Step(Name(token.text, token.span), call, body, catch, span=token.span.to(last), after=after)


def _respell(cursor: Cursor, words: set[str]) -> None:
    text = cursor.tok.text
    if cursor.tok.kind == "name" and not (text in KEYWORDS or text in hints.NOISE or text in hints.WORDS):
        cursor.respell(words)


# --- after


def _follows(cursor: Cursor) -> bool:
    """Return whether `after` comes next as a keyword."""
    return cursor.tok.text == "after" and not cursor.names_something()


def parse_after(cursor: Cursor) -> tuple[Name, ...]:
    """Parse `after a, b`, if it comes next."""
    if not _follows(cursor):
        return ()
    cursor.leading_keyword()
    steps = [_parse_earlier(cursor)]
    while cursor.tok.kind == "," or _another(cursor):
        if cursor.tok.kind == ",":
            cursor.advance()
        else:
            cursor.report("no comma in after", cursor.previous.span.end, found=steps[-1].text)
        steps.append(_parse_earlier(cursor))
    if cursor.tok.text == "with" and not cursor.names_something():
        raise cursor.failed("with after after")
    return tuple(steps)


def _another(cursor: Cursor) -> bool:
    """Return whether another step follows on the line, without a comma."""
    text = cursor.tok.text
    return text in cursor.names.bound and text not in KEYWORDS and not cursor.tok.broken and not cursor.names_something()


def _parse_earlier(cursor: Cursor) -> Name:
    token = cursor.tok
    if token.kind not in WORDS:
        raise cursor.unexpected("the name of a step")
    name = token.text.partition(".")[0]
    if token.kind == "dotted":
        cursor.report("attribute in after", name=name)
    cursor.advance()
    return Name(name, token.span)


def _no_after(cursor: Cursor, hint: str, to: Span | None = None, joint: str = "") -> tuple[Name, ...]:
    """Report `after` at the end of a statement that cannot have it there; with `to` it must be moved to that place."""
    if not _follows(cursor) or cursor.ahead().kind not in WORDS:
        return ()
    before, word = cursor.previous.span.end, cursor.tok.span
    steps = parse_after(cursor)
    remove = Edit(before.to(steps[-1].span if steps else word), "")
    fix = Fix("Remove it", (remove,))
    if to is not None:
        names = ", ".join(steps)
        fix = Fix(f"Write `after {names}` before the block", (Edit(to, joint + names), remove))
    cursor.report("misplaced after", word, hint=hint, fixes=[fix])
    return steps


def _parse_value(cursor: Cursor) -> nodes.Call:
    """Parse the expression of a value; report forms that were probably meant to be calls."""
    token = cursor.tok
    if token.broken and token.kind != "end" and cursor.begins_statement():
        raise cursor.unexpected("the name of a facet")
    if token.kind in WORDS and cursor.ahead().kind in ("{", "with", "andThen"):
        cursor.advance()
        raise cursor.unexpected("`(`")
    if token.text in hints.WORDS and token.text not in cursor.names.bound and not cursor.ahead().broken:
        raise cursor.failed("construct as call", hint=hints.WORDS[token.text])
    if token.kind == "(" and cursor.ahead().kind == ")":
        raise cursor.unexpected("the name of a facet")
    value = parse_expr(cursor)
    start = token.span.start
    return nodes.Call(Name(nodes.WRITTEN_VALUE, start), (nodes.Arg(Name("value", start), value),), (), span=value.span)


def _limited(block: nodes.Block) -> nodes.Block:
    return block if block.depth <= nodes.MAX_BLOCKS else nodes.Block(span=block.span, too_deep=True)
