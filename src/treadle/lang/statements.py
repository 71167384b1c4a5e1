"""Parses blocks and statements."""

from __future__ import annotations

from collections.abc import Callable

from treadle.lang import builtins, hints, nodes
from treadle.lang.calls import CallParser
from treadle.lang.cursor import Cursor, Failed, Names
from treadle.lang.diagnostics import Edit, Fix, nearest, replace
from treadle.lang.expressions import LEVELS
from treadle.lang.foreign import ForeignParser
from treadle.lang.literals import dedent
from treadle.lang.nodes import Name, Span
from treadle.lang.tokens import KEYWORDS, OPENERS, WORDS, Token

# Keywords that cannot name a step, because the statement would read like something else.
NOT_STEPS = frozenset(
    ["namespace", "use", "uses", "facet", "event", "workflow", "implicit", "schema", "andThen", "yield", "prompt", "script",
     "true", "false", "null"]
)  # fmt: skip
MODES = ("failFast", "collectErrors")


class StatementParser:
    """Reads the contents of declarations. `nested_item` reads a declaration that wrongly stands in a block."""

    def __init__(self, cursor: Cursor, names: Names, calls: CallParser, nested_item: Callable[[], None]) -> None:
        self.cursor, self.names, self.calls, self.expressions = cursor, names, calls, calls.expressions
        self.nested_item = nested_item
        self.foreign = ForeignParser(cursor, names, self)
        self.blocks = 0  # how many blocks are open

    # --- blocks

    def then(self, *, with_script: bool) -> nodes.Block:
        """Parse `andThen` and the statements after it."""
        cursor = self.cursor
        cursor.keyword()
        token = cursor.tok
        match token.text:
            case "{":
                return self.block()
            case "foreach":
                return self.foreach()
            case "when":
                word = cursor.previous
                return self.when(word)
            case "script" if with_script:
                script = self.script()
                return nodes.Block(script=script, span=script.span)
        words = ["foreach", "when"] + (["script"] if with_script else [])
        if token.text == "for":
            cursor.report("for", token.span)
            token.text = "foreach"
            return self.foreach()
        if token.text in hints.CONSTRUCTS:
            raise cursor.failed("construct", token.span, hint=hints.WORDS[token.text], token=token.text)
        if token.kind == ":":
            raise cursor.failed(": before block", token.span)
        if token.text == "script":
            raise cursor.failed("script in step", token.span)
        raise cursor.unexpected("`{`", *(f"`{word}`" for word in words), words=words)

    def script(self) -> nodes.Script:
        cursor = self.cursor
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

    def catch(self) -> nodes.Block:
        cursor = self.cursor
        word = cursor.keyword()
        if cursor.tok.text == "when":
            return self.when(word)
        if cursor.tok.kind == "(":
            cursor.report("catch variable", cursor.tok.span)
            cursor.skip_group()
        if cursor.tok.kind != "{":
            raise cursor.unexpected("`{`", "`when`")
        return self.block()

    def foreach(self) -> nodes.Block:
        cursor = self.cursor
        word = cursor.leading_keyword()
        paren = cursor.advance() if cursor.tok.kind == "(" and cursor.ahead(2).text == "in" else None
        if cursor.tok.kind == "input":
            raise cursor.failed("input as variable", cursor.tok.span, token=cursor.tok.text)
        variable = cursor.name()
        if cursor.tok.text != "in":
            if cursor.tok.text in ("of", ":", "="):
                cursor.report("of", cursor.tok.span, token=cursor.tok.text)
                cursor.advance()
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
            raise cursor.failed("foreach value", token.span, hint=hint, shown=cursor.shown(token))
        cursor.advance()
        if paren is not None and cursor.tok.kind == ")":
            fix = Fix("Remove the parentheses", (Edit(paren.span, ""), Edit(cursor.advance().span, "")))
            cursor.report("foreach parentheses", paren.span, fixes=[fix])
        elif cursor.tok.kind == "(":
            hint = "foreach iterates over a reference; compute the list in a step or a script before it"
            if token.text in builtins.FUNCTIONS:
                hint = f"make it a value, `l = {token.text}(...)`; the body of a later step can be `foreach x in l {{ ... }}`"
            raise cursor.failed("foreach call", token.span, hint=hint, token=token.text)
        mode, failed = self._mode()
        if cursor.tok.kind != "{":
            raise cursor.unexpected("`{`", *([] if mode else [f"`{each}`" for each in MODES]), words=() if mode else MODES)
        self.names.bound.add(variable.text)
        head = nodes.Foreach(variable, iterable, mode, failed, span=word.span.to(cursor.previous.span))
        block = self.block()
        if block.too_deep:
            return block
        return nodes.Block(block.statements, head, span=head.span.to(block.span), depth=block.depth)

    def _mode(self) -> tuple[Name | None, Name | None]:
        """Parse the error mode of a foreach, if there is one."""
        cursor = self.cursor
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
                cursor.report("input as return", cursor.tok.span, token=cursor.tok.text, name=name)
                cursor.tok.kind, cursor.tok.text = "name", name
            failed = cursor.name()
            cursor.close()
        elif cursor.tok.kind == "(" and cursor.ahead().kind == ")":
            span = cursor.tok.span.to(cursor.ahead().span)
            cursor.report("failFast", span)
            cursor.advance()
            cursor.advance()
        if cursor.tok.text in MODES:
            raise cursor.failed("two modes", cursor.tok.span, token=cursor.tok.text)
        return mode, failed

    def when(self, first: Token) -> nodes.Block:
        cursor = self.cursor
        cursor.keyword()
        if cursor.tok.kind != "{":
            raise cursor.unexpected("`{`", hint="conditions stand in cases: `when { case condition => { ... } case _ => { ... } }`")
        if self.blocks >= nodes.MAX_BLOCKS:
            return nodes.Block(span=cursor.skip_too_deep(), too_deep=True)
        cursor.open()
        level = len(cursor.brackets)
        self.blocks += 1
        cases: list[nodes.Case] = []
        while cursor.tok.kind not in ("}", "end") and not cursor.ended:
            if cursor.tok.kind == ";":
                cursor.advance()
                continue
            start = cursor.index
            try:
                cases.append(self.case())
            except Failed:
                self.next_case(level)
                if cursor.index == start:
                    cursor.advance()
        self.blocks -= 1
        last = self.end_of_block(level, "`case`")
        depth = 1 + max((case.block.depth for case in cases), default=0)
        return _limited(nodes.Block(cases=tuple(cases), span=first.span.to(last), depth=depth))

    def next_case(self, level: int) -> None:
        """After an error in a case: advance to the next one."""
        cursor = self.cursor
        del cursor.brackets[level:]
        self.expressions.comparing = False
        while cursor.tok.kind not in ("}", "end") and cursor.tok.text != "case":
            if cursor.tok.kind in OPENERS:
                cursor.skip_group()
            else:
                cursor.advance()

    def case(self) -> nodes.Case:
        cursor = self.cursor
        token = cursor.tok
        if token.text != "case":
            if token.text in ("default", "else", "_", "otherwise") and cursor.ahead().kind in ("=>", "{", ":"):
                fixes = [replace("Write `case _`", token.span, "case _")] if cursor.ahead().kind == "=>" else []
                raise cursor.failed("default case", token.span, fixes=fixes, token=token.text)
            raise cursor.unexpected("`case`", "`}`", words=("case",), fresh=True)
        word = cursor.keyword()
        self.expressions.comparing = True
        written = self.expressions.expr()
        condition = None if isinstance(written, nodes.Ref) and written.path == ("_",) else written
        self.expressions.comparing = False
        at = cursor.tok.span
        if cursor.tok.kind == "{":
            cursor.report("no arrow", at, at=at.until(at))
        elif cursor.tok.kind == ":" or (cursor.tok.kind == "-" and cursor.ahead().kind == ">"):
            at = at.to(cursor.advance().span if cursor.tok.kind == ":" else cursor.ahead().span)
            cursor.report("other arrow", at, shown=cursor.source.part(at))
            while cursor.tok.kind in ("-", ">"):
                cursor.advance()
        else:
            cursor.take("=>", "an operator")
        if cursor.begins_statement():
            return self._case_without_braces(word, condition)
        if cursor.tok.kind != "{":
            raise cursor.unexpected("`{`")
        block = self.block()
        return nodes.Case(condition, block, span=word.span.to(block.span))

    def _case_without_braces(self, word: Token, condition: nodes.Expr | None) -> nodes.Case:
        cursor = self.cursor
        first = cursor.tok
        statement = self.statement()
        edits = (Edit(first.span.until(first.span), "{ "), Edit(cursor.previous.span.end, " }"))
        cursor.report("case without braces", first.span, fixes=[Fix("Insert braces", edits)], first=first.text)
        block = nodes.Block((statement,) if statement else (), span=first.span.to(cursor.previous.span), depth=1)
        return nodes.Case(condition, block, span=word.span.to(block.span))

    def block(self) -> nodes.Block:
        """Parse statements in braces."""
        cursor = self.cursor
        if self.blocks >= nodes.MAX_BLOCKS:
            return nodes.Block(span=cursor.skip_too_deep(), too_deep=True)
        first = cursor.open()
        level = len(cursor.brackets)
        outer, self.blocks = cursor.column, self.blocks + 1
        statements: list[nodes.Statement] = []
        depth = 1
        while cursor.tok.kind not in ("}", "end"):
            if cursor.begins_declaration():
                if not (cursor.tok.broken and cursor.margin(cursor.tok) > cursor.item_column):
                    break
                self.nested_item()
                continue
            start = cursor.index
            cursor.column = cursor.margin(cursor.tok)
            try:
                statement = self.statement()
            except Failed:
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
        cursor.column, self.blocks = outer, self.blocks - 1
        last = self.end_of_block(level, "a step", "`yield`")
        return _limited(nodes.Block(tuple(statements), span=first.span.to(last), depth=depth))

    def end_of_block(self, level: int, *expected: str) -> Span:
        """Take the closing brace; if it is missing, report this once and go on as if all blocks had ended."""
        cursor = self.cursor
        del cursor.brackets[level:]
        if cursor.tok.kind == "}":
            return cursor.close().span
        if not cursor.ended:
            cursor.unexpected(*expected, "`}`")
            cursor.ended = True
        cursor.brackets.pop()
        return cursor.previous.span

    # --- statements

    def statement(self) -> nodes.Statement | None:
        """Parse one statement; None for `;`."""
        cursor = self.cursor
        token = cursor.tok
        kind = token.kind
        if kind == "name":
            if cursor.ahead().kind == "=":
                return self.step(cursor.advance())
            if token.text == "yield":
                word = cursor.leading_keyword()
                if cursor.tok.text in hints.NOISE and cursor.ahead().kind in WORDS:
                    cursor.leave_out()
                if not (cursor.tok.kind in WORDS and cursor.ahead().kind == "(") and not cursor.tok.broken:
                    self._no_target(word)
                    return None
                call = self.calls.call()
                self._no_after("a yield waits for all steps of its block")
                return nodes.Yield(call, span=word.span.to(call.span))
            return self.foreign.statement()
        if kind == ";":
            cursor.advance()
            return None
        if token.text in ("sys.log", "sys.assert"):
            return self.sys()
        if kind == ",":
            cursor.report("comma after statement", token.span)
            cursor.advance()
            return None
        return self.foreign.statement()

    def _no_target(self, word: Token) -> None:
        """Report a yield without the owner of the block."""
        cursor = self.cursor
        token, owner = cursor.tok, self.names.owner if self.blocks == 1 else "F"
        if token.kind in ("(", "{", "#{") or token.text == self.names.owner:
            results = ", ".join(f"{each} = ..." for each in self.names.results)
            named = token.kind == "(" and cursor.ahead(2).kind == "=" and self.blocks == 1
            fixes = [replace(f"Insert `{owner}`", word.span.end.to(token.span), f" {owner}(")] if named else []
            wanted = "arguments" if token.text == self.names.owner else "the owner of the block"
            raise cursor.failed(
                "yield without owner", token.span, fixes=fixes, token=token.text, wanted=wanted, owner=owner, results=results
            )
        self.foreign.value_for_owner(word)

    def sys(self) -> nodes.Statement:
        cursor = self.cursor
        word = cursor.keyword()
        if cursor.tok.kind != "(":
            raise cursor.unexpected("`(`")
        cursor.join_before("(")
        if word.text == "sys.log":
            args, close = self.calls.args(None)
            after = self.after()
            return nodes.Sys(nodes.SysKind.LOG, args, None, span=word.span.to(self._last(after, close.span)), after=after)
        cursor.open()
        self.expressions.comparing = True
        condition = self.expressions.expr()
        self.expressions.comparing = False
        close = cursor.close("an operator")
        after = self.after()
        return nodes.Sys(nodes.SysKind.ASSERT, (), condition, span=word.span.to(self._last(after, close.span)), after=after)

    def step(self, token: Token) -> nodes.Step:
        cursor = self.cursor
        if token.text in NOT_STEPS:
            self._not_a_step(token)
        cursor.join_before("=")
        cursor.advance()
        if cursor.tok.text in hints.NOISE and cursor.ahead().kind in WORDS and not cursor.ahead().broken:
            cursor.leave_out()
        calls = cursor.tok.kind in WORDS and cursor.ahead().kind == "(" and not self.expressions.calls_function()
        call = self.calls.call() if calls else self._value()
        self.names.bound.add(token.text)
        if call.target.text == nodes.WRITTEN_VALUE:
            self._nothing_more(token.text)
            return nodes.Step(Name(token.text, token.span), call, None, None, span=token.span.to(call.span))
        arrow = cursor.tok.kind == "-" and cursor.ahead().kind == ">"
        goes_on = cursor.tok.text in LEVELS or cursor.tok.kind in (".", "[")
        if goes_on and not (arrow or cursor.tok.broken or cursor.names_something()):
            raise cursor.failed("call in expression", call.span, target=call.target.text)
        body = catch = None
        self._respell({"after", "andThen", "catch", "with"})
        after = self.after()
        if after:
            self._respell({"andThen", "catch"})
        if cursor.tok.kind == "name" and not cursor.names_something():
            if cursor.tok.text == "andThen":
                body = self.then(with_script=False)
            if cursor.tok.text == "catch" and not cursor.names_something():
                catch = self.catch()
        elif cursor.tok.kind == "{":
            cursor.report("no andThen in step", cursor.tok.span, at=cursor.tok.span.until(cursor.tok.span))
            body = self.block()
        if body or catch:
            at = self._last(after, call.span).end
            after += self._no_after("`after` stands before `andThen` and `catch`", at, ", " if after else " after ")
        last = catch.span if catch else body.span if body else self._last(after, call.span)
        return nodes.Step(Name(token.text, token.span), call, body, catch, span=token.span.to(last), after=after)

    def _respell(self, words: set[str]) -> None:
        cursor = self.cursor
        text = cursor.tok.text
        if cursor.tok.kind == "name" and not (text in KEYWORDS or text in hints.NOISE or text in hints.WORDS):
            cursor.respell(words)

    # --- after

    def _follows(self) -> bool:
        """Return whether `after` comes next as a keyword."""
        return self.cursor.tok.text == "after" and not self.cursor.names_something()

    def after(self) -> tuple[Name, ...]:
        """Parse `after a, b`, if it comes next."""
        cursor = self.cursor
        if not self._follows():
            return ()
        cursor.leading_keyword()
        found = [self._earlier()]
        while cursor.tok.kind == "," or self._another():
            if cursor.tok.kind == ",":
                cursor.advance()
            else:
                at = cursor.previous.span.end
                cursor.report("no comma in after", at, found=found[-1].text, token=cursor.tok.text)
            found.append(self._earlier())
        if cursor.tok.text == "with" and not cursor.names_something():
            raise cursor.failed("with after after", cursor.tok.span)
        return tuple(found)

    def _another(self) -> bool:
        """Return whether another step follows on the line, without a comma."""
        cursor = self.cursor
        text = cursor.tok.text
        return text in self.names.bound and text not in KEYWORDS and not cursor.tok.broken and not cursor.names_something()

    def _earlier(self) -> Name:
        cursor = self.cursor
        token = cursor.tok
        if token.kind not in WORDS:
            raise cursor.unexpected("the name of a step")
        name = token.text.partition(".")[0]
        if token.kind == "dotted":
            cursor.report("attribute in after", token.span, token=token.text, name=name)
        cursor.advance()
        return Name(name, token.span)

    def _no_after(self, hint: str, to: Span | None = None, joint: str = "") -> tuple[Name, ...]:
        """Report `after` at the end of a statement that cannot have it there; with `to` it must be moved to that place."""
        cursor = self.cursor
        if not self._follows() or cursor.ahead().kind not in WORDS:
            return ()
        before, word = cursor.previous.span.end, cursor.tok.span
        found = self.after()
        remove = Edit(before.to(self._last(found, word)), "")
        fix = Fix("Remove it", (remove,))
        if to is not None:
            names = ", ".join(found)
            fix = Fix(f"Write `after {names}` before the block", (Edit(to, joint + names), remove))
        cursor.report("misplaced after", word, hint=hint, fixes=[fix])
        return found

    def _last(self, after: tuple[Name, ...], otherwise: Span) -> Span:
        return after[-1].span if after else otherwise

    def _not_a_step(self, token: Token) -> None:
        cursor = self.cursor
        if token.text == "yield":
            cursor.report("= after yield", token.span, at=token.span.end.to(cursor.tok.span))
        else:
            cursor.report("keyword as step", token.span, token=token.text)

    def _nothing_more(self, name: str) -> None:
        """Report a clause that can follow a call, but not a value."""
        cursor = self.cursor
        token = cursor.tok
        if token.text in ("with", "after", "andThen", "catch") and not cursor.names_something():
            raise cursor.failed("clause after value", token.span, token=token.text, name=name)

    def _value(self) -> nodes.Call:
        """Parse the expression of a value; report forms that were probably meant to be calls."""
        cursor = self.cursor
        token = cursor.tok
        if token.broken and token.kind != "end" and cursor.begins_statement():
            raise cursor.unexpected("the name of a facet")
        if token.kind in WORDS and cursor.ahead().kind in ("{", "with", "andThen"):
            cursor.advance()
            raise cursor.unexpected("`(`")
        if token.text in hints.WORDS and token.text not in self.names.bound and not cursor.ahead().broken:
            raise cursor.failed("construct as call", token.span, hint=hints.WORDS[token.text], token=token.text)
        if token.kind == "(" and cursor.ahead().kind == ")":
            raise cursor.unexpected("the name of a facet")
        value = self.expressions.expr()
        start = token.span.until(token.span)
        return nodes.Call(Name(nodes.WRITTEN_VALUE, start), (nodes.Arg(Name("value", start), value),), (), span=value.span)


def _limited(block: nodes.Block) -> nodes.Block:
    return block if block.depth <= nodes.MAX_BLOCKS else nodes.Block(span=block.span, too_deep=True)
