"""Parses blocks and statements."""

from __future__ import annotations

from treadle.lang import builtins, hints, tree
from treadle.lang.cursor import Failed
from treadle.lang.diagnostics import Edit, Fix, nearest, replace
from treadle.lang.expressions import CALL_HINT, LEVELS
from treadle.lang.foreign import ForeignParser
from treadle.lang.tokens import KEYWORDS, OPENERS, WORDS, Token
from treadle.lang.tree import Name, Span

# Keywords that cannot name a step, because the statement would read like something else.
NOT_STEPS = frozenset(
    ["namespace", "use", "uses", "facet", "event", "workflow", "implicit", "schema", "andThen", "yield", "prompt", "script",
     "true", "false", "null"]
)  # fmt: skip
MODES = ("failFast", "collectErrors")


class StatementParser(ForeignParser):
    """Reads the contents of declarations."""

    # --- blocks

    def then(self, *, with_script: bool) -> tree.Block | tree.TooDeep:
        """Parse `andThen` and the statements after it."""
        self.keyword()
        token = self.tok
        match token.text:
            case "{":
                return self.block()
            case "foreach":
                return self.foreach()
            case "when":
                word = self.previous
                return self.when(word)
            case "script" if with_script:
                script = self.script()
                return tree.Block(script=script, span=script.span)
        words = ["foreach", "when"] + (["script"] if with_script else [])
        if token.text == "for":
            self.report(
                token.span, "unexpected `for`; expected `foreach`", fixes=[replace("Write `foreach`", token.span, "foreach")]
            )
            token.text = "foreach"
            return self.foreach()
        if token.text in hints.CONSTRUCTS:
            raise self.failed(token.span, f"unexpected `{token.text}`", hints.WORDS[token.text])
        if token.kind == ":":
            raise self.failed(token.span, "unexpected `:`; expected `{`", "a block stands in braces: `andThen { ... }`")
        if token.text == "script":
            hint = "`andThen script` belongs to declarations; call a facet that has it"
            raise self.failed(token.span, "unexpected `script` in the body of a step", hint)
        raise self.unexpected("`{`", *(f"`{word}`" for word in words), words=words)

    def script(self) -> tree.Script:
        raise NotImplementedError

    def catch(self) -> tree.Block | tree.TooDeep:
        word = self.keyword()
        if self.tok.text == "when":
            return self.when(word)
        if self.tok.kind == "(":
            hint = "the error has no name: read `step.error`, or `$.error` in the `catch` of a declaration"
            self.report(self.tok.span, "unexpected `(`; expected `{`", hint)
            self.skip_group()
        if self.tok.kind != "{":
            raise self.unexpected("`{`", "`when`")
        return self.block()

    def foreach(self) -> tree.Block | tree.TooDeep:
        word = self.keyword()
        self.join()
        paren = self.advance() if self.tok.kind == "(" and self.ahead(2).text == "in" else None
        if self.tok.kind == "input":
            raise self.failed(
                self.tok.span, f"unexpected `{self.tok.text}`; expected a name", f"write `foreach x in {self.tok.text}`"
            )
        variable = self.name()
        if self.tok.text != "in":
            if self.tok.text in ("of", ":", "="):
                fix = replace("Write `in`", self.tok.span, "in")
                self.report(self.tok.span, f"unexpected `{self.tok.text}`; expected `in`", fixes=[fix])
                self.advance()
            else:
                raise self.unexpected("`in`", words=("in",))
        else:
            self.keyword()
        token = self.tok
        iterable: tree.InputRef | tree.Ref
        if token.kind == "input":
            iterable = tree.InputRef(tuple(token.text[2:].split(".")), token.span)
        elif token.kind in WORDS:
            iterable = tree.Ref(tuple(token.text.split(".")), token.span)
        else:
            hint = (
                "foreach iterates over a reference; pass a literal list as the argument of a step or as a default"
                if token.kind == "["
                else None
            )
            raise self.failed(token.span, f"unexpected `{self.shown(token)}`; expected a reference such as `$.items`", hint)
        self.advance()
        if paren is not None and self.tok.kind == ")":
            fix = Fix("Remove the parentheses", (Edit(paren.span, ""), Edit(self.advance().span, "")))
            self.report(paren.span, "unexpected `(`; expected a name", "write `foreach x in $.items { ... }`", [fix])
        elif self.tok.kind == "(":
            hint = "foreach iterates over a reference; compute the list in a step or a script before it"
            if token.text in builtins.FUNCTIONS:
                hint = f"make it a value, `l = {token.text}(...)`; the body of a later step can be `foreach x in l {{ ... }}`"
            raise self.failed(token.span, f"unexpected call of `{token.text}`; expected a reference such as `$.items`", hint)
        mode, failed = self._mode()
        if self.tok.kind != "{":
            raise self.unexpected("`{`", *([] if mode else [f"`{each}`" for each in MODES]), words=() if mode else MODES)
        self.bound.add(variable.text)
        head = tree.Foreach(variable, iterable, word.span.to(self.previous.span), mode, failed)
        block = self.block()
        if isinstance(block, tree.TooDeep):
            return block
        return tree.Block(block.statements, head, span=head.span.to(block.span), depth=block.depth)

    def _mode(self) -> tuple[Name | None, Name | None]:
        """Parse the error mode of a foreach, if there is one."""
        if self.tok.kind == "name" and self.tok.text not in MODES and (meant := nearest(self.tok.text, [*MODES])) is not None:
            fix = replace(f"Change `{self.tok.text}` to `{meant}`", self.tok.span, meant)
            self.report(self.tok.span, f"unexpected `{self.tok.text}`; expected `{meant}`", f"did you mean `{meant}`?", [fix])
            self.tok.text = meant
        if self.tok.text not in MODES:
            return None, None
        word = self.keyword()
        mode, failed = Name(word.text, word.span), None
        if word.text == "collectErrors":
            if self.tok.kind != "(":
                hint = "name the return that takes the errors, as in `collectErrors(failed)`"
                raise self.failed(word.span, "expected `(` after `collectErrors`", hint)
            self.open()
            if self.tok.kind == "input" and "." not in (name := self.tok.text[2:]):
                fix = replace(f"Write `{name}`", self.tok.span, name)
                self.report(self.tok.span, f"unexpected `{self.tok.text}`; expected a name", "name the return, without `$.`", [fix])
                self.tok.kind, self.tok.text = "name", name
            failed = self.name()
            self.close()
        elif self.tok.kind == "(" and self.ahead().kind == ")":
            span = self.tok.span.to(self.ahead().span)
            self.report(span, "unexpected `(`; expected `{`", "`failFast` takes nothing", [replace("Remove `()`", span, "")])
            self.advance()
            self.advance()
        if self.tok.text in MODES:
            raise self.failed(self.tok.span, f"unexpected `{self.tok.text}`", "a foreach has one error mode")
        return mode, failed

    def when(self, first: Token) -> tree.Block | tree.TooDeep:
        self.keyword()
        if self.tok.kind != "{":
            raise self.unexpected("`{`", hint="conditions stand in cases: `when { case condition => { ... } case _ => { ... } }`")
        if self.blocks >= tree.MAX_BLOCKS:
            return self.too_deep()
        self.open()
        level = len(self.brackets)
        self.blocks += 1
        cases: list[tree.Case] = []
        while self.tok.kind not in ("}", "end") and not self.ended:
            if self.tok.kind == ";":
                self.advance()
                continue
            start = self.index
            try:
                cases.append(self.case())
            except Failed:
                self.next_case(level)
                if self.index == start:
                    self.advance()
        self.blocks -= 1
        last = self.end_of_block(level, "`case`")
        depth = 1 + max((case.block.depth for case in cases), default=0)
        return _limited(tree.Block(cases=tuple(cases), span=first.span.to(last), depth=depth))

    def next_case(self, level: int) -> None:
        """After an error in a case: advance to the next one."""
        del self.brackets[level:]
        self.comparing = False
        while self.tok.kind not in ("}", "end") and self.tok.text != "case":
            if self.tok.kind in OPENERS:
                self.skip_group()
            else:
                self.advance()

    def case(self) -> tree.Case:
        token = self.tok
        if token.text != "case":
            if token.text in ("default", "else", "_", "otherwise") and self.ahead().kind in ("=>", "{", ":"):
                hint = "the default is written `case _ => { ... }`"
                fixes = [replace("Write `case _`", token.span, "case _")] if self.ahead().kind == "=>" else []
                raise self.failed(token.span, f"unexpected `{token.text}`; expected `case`", hint, fixes)
            raise self.unexpected("`case`", "`}`", words=("case",), fresh=True)
        word = self.keyword()
        self.comparing = True
        condition = self.expr()
        self.comparing = False
        at = self.tok.span
        if self.tok.kind == "{":
            self.report(at, "unexpected `{`; expected `=>`", fixes=[Fix("Insert `=>`", (Edit(at.until(at), "=> "),))])
        elif self.tok.kind == ":" or (self.tok.kind == "-" and self.ahead().kind == ">"):
            at = at.to(self.advance().span if self.tok.kind == ":" else self.ahead().span)
            self.report(at, f"unexpected `{self.source.part(at)}`; expected `=>`", fixes=[replace("Write `=>`", at, "=>")])
            while self.tok.kind in ("-", ">"):
                self.advance()
        else:
            self.take("=>", "an operator")
        if self.begins_statement():
            return self._case_without_braces(word, condition)
        if self.tok.kind != "{":
            raise self.unexpected("`{`")
        block = self.block()
        return tree.Case(condition, block, word.span.to(block.span))

    def _case_without_braces(self, word: Token, condition: tree.Expr) -> tree.Case:
        first = self.tok
        statement = self.statement()
        edits = (Edit(first.span.until(first.span), "{ "), Edit(self.previous.span.end, " }"))
        message = f"unexpected `{first.text}`; expected `{{`"
        self.report(first.span, message, "each case has a block in braces", [Fix("Insert braces", edits)])
        block = tree.Block((statement,) if statement else (), span=first.span.to(self.previous.span), depth=1)
        return tree.Case(condition, block, word.span.to(block.span))

    def block(self) -> tree.Block | tree.TooDeep:
        """Parse statements in braces."""
        if self.blocks >= tree.MAX_BLOCKS:
            return self.too_deep()
        first = self.open()
        level = len(self.brackets)
        outer, self.blocks = self.column, self.blocks + 1
        statements: list[tree.Statement] = []
        depth = 1
        while self.tok.kind not in ("}", "end"):
            if self.begins_declaration():
                if not (self.tok.broken and self.margin(self.tok) > self.item_column):
                    break
                self.nested_item()
                continue
            start = self.index
            self.column = self.margin(self.tok)
            try:
                statement = self.statement()
            except Failed:
                self.resume(level)
                if self.index == start:
                    self.advance()
                    self.resume(level)
                continue
            if statement is None:
                continue
            statements.append(statement)
            if isinstance(statement, tree.Step):
                body, catch = statement.body, statement.catch
                depth = max(depth, 1 + (body.depth if body else 0), 1 + (catch.depth if catch else 0))
        self.column, self.blocks = outer, self.blocks - 1
        last = self.end_of_block(level, "a step", "`yield`")
        return _limited(tree.Block(tuple(statements), span=first.span.to(last), depth=depth))

    def end_of_block(self, level: int, *expected: str) -> Span:
        """Take the closing brace; if it is missing, report this once and go on as if all blocks had ended."""
        del self.brackets[level:]
        if self.tok.kind == "}":
            return self.close().span
        if not self.ended:
            self.unexpected(*expected, "`}`")
            self.ended = True
        self.brackets.pop()
        return self.previous.span

    # --- statements

    def statement(self) -> tree.Statement | None:
        """Parse one statement; None for `;`."""
        token = self.tok
        kind = token.kind
        if kind == "name":
            if self.ahead().kind == "=":
                return self.step(self.advance())
            if token.text == "yield":
                word = self.keyword()
                self.join()
                if self.tok.text in hints.NOISE and self.ahead().kind in WORDS:
                    self.leave_out()
                if not (self.tok.kind in WORDS and self.ahead().kind == "(") and not self.tok.broken:
                    self._no_target(word)
                    return None
                call = self.call()
                self._no_after("a yield waits for all steps of its block")
                return tree.Yield(call, word.span.to(call.span))
            return self.foreign_statement()
        if kind == ";":
            self.advance()
            return None
        if token.text in ("sys.log", "sys.assert"):
            return self.sys()
        if kind == ",":
            self.report(
                token.span,
                "unexpected `,` after a statement",
                "statements need no separator",
                [replace("Remove it", token.span, "")],
            )
            self.advance()
            return None
        return self.foreign_statement()

    def _no_target(self, word: Token) -> None:
        """Report a yield without the owner of the block."""
        token, owner = self.tok, self.owner if self.blocks == 1 else "F"
        if token.kind in ("(", "{", "#{") or token.text == self.owner:
            results = ", ".join(f"{each} = ..." for each in self.results)
            hint = f"name the owner of the block and its returns: `yield {owner}({results})`"
            named = token.kind == "(" and self.ahead(2).kind == "=" and self.blocks == 1
            fixes = [replace(f"Insert `{owner}`", word.span.end.to(token.span), f" {owner}(")] if named else []
            wanted = "arguments" if token.text == self.owner else "the owner of the block"
            raise self.failed(token.span, f"unexpected `{token.text}`; expected {wanted}", hint, fixes)
        self.value_for_owner(word)

    item_column = 1  # of the declaration that is being read

    def nested_item(self) -> None:
        raise NotImplementedError

    def sys(self) -> tree.Statement:
        word = self.keyword()
        if self.tok.kind != "(":
            raise self.unexpected("`(`")
        self.join_before("(")
        if word.text == "sys.log":
            args, close = self.args(None)
            after = self.after()
            return tree.SysLog(args, word.span.to(self._last(after, close.span)), after)
        self.open()
        self.comparing = True
        condition = self.expr()
        self.comparing = False
        close = self.close("an operator")
        after = self.after()
        return tree.SysAssert(condition, word.span.to(self._last(after, close.span)), after)

    def step(self, token: Token) -> tree.Step:
        if token.text in NOT_STEPS:
            self._not_a_step(token)
        self.join_before("=")
        self.advance()
        if self.tok.text in hints.NOISE and self.ahead().kind in WORDS and not self.ahead().broken:
            self.leave_out()
        calls = self.tok.kind in WORDS and self.ahead().kind == "(" and not self.calls_function()
        call = self.call() if calls else self._value()
        self.bound.add(token.text)
        if call.target.text == tree.VALUE:
            self._nothing_more(token.text)
            return tree.Step(Name(token.text, token.span), call, None, None, token.span.to(call.span))
        arrow = self.tok.kind == "-" and self.ahead().kind == ">"
        goes_on = self.tok.text in LEVELS or self.tok.kind in (".", "[")
        if goes_on and not (arrow or self.tok.broken or self.names_something()):
            raise self.failed(call.span, f"unexpected call of `{call.target.text}` inside an expression", CALL_HINT)
        body = catch = None
        self._respell({"after", "andThen", "catch", "with"})
        after = self.after()
        if after:
            self._respell({"andThen", "catch"})
        if self.tok.kind == "name" and not self.names_something():
            if self.tok.text == "andThen":
                body = self.then(with_script=False)
            if self.tok.text == "catch" and not self.names_something():
                catch = self.catch()
        elif self.tok.kind == "{":
            fix = Fix("Insert `andThen`", (Edit(self.tok.span.until(self.tok.span), "andThen "),))
            self.report(self.tok.span, "unexpected `{`; expected `andThen`", "the body of a step follows `andThen`", [fix])
            body = self.block()
        if body or catch:
            at = self._last(after, call.span).end
            after += self._no_after("`after` stands before `andThen` and `catch`", at, ", " if after else " after ")
        last = catch.span if catch else body.span if body else self._last(after, call.span)
        return tree.Step(Name(token.text, token.span), call, body, catch, token.span.to(last), after)

    def _respell(self, words: set[str]) -> None:
        text = self.tok.text
        if self.tok.kind == "name" and not (text in KEYWORDS or text in hints.NOISE or text in hints.WORDS):
            self.respell(words)

    # --- after

    def _follows(self) -> bool:
        """Return whether `after` comes next as a keyword."""
        return self.tok.text == "after" and not self.names_something()

    def after(self) -> tuple[tree.Ref, ...]:
        """Parse `after a, b`, if it comes next."""
        if not self._follows():
            return ()
        self.keyword()
        self.join()
        found = [self._earlier()]
        while self.tok.kind == "," or self._another():
            if self.tok.kind == ",":
                self.advance()
            else:
                at = self.previous.span.end
                hint = f"write `after {found[-1].path[0]}, {self.tok.text}`"
                self.report(at, "a comma is missing here", hint, [Fix("Insert `,`", (Edit(at, ","),))])
            found.append(self._earlier())
        if self.tok.text == "with" and not self.names_something():
            raise self.failed(self.tok.span, "unexpected `with` after `after`", "mixins stand before `after`")
        return tuple(found)

    def _another(self) -> bool:
        """Return whether another step follows on the line, without a comma."""
        text = self.tok.text
        return text in self.bound and text not in KEYWORDS and not self.tok.broken and not self.names_something()

    def _earlier(self) -> tree.Ref:
        token = self.tok
        if token.kind not in WORDS:
            raise self.unexpected("the name of a step")
        name = token.text.partition(".")[0]
        if token.kind == "dotted":
            fix = replace(f"Write `{name}`", token.span, name)
            self.report(token.span, f"unexpected `{token.text}`; expected the name of a step", f"write `after {name}`", [fix])
        self.advance()
        return tree.Ref((name,), token.span)

    def _no_after(self, hint: str, to: Span | None = None, joint: str = "") -> tuple[tree.Ref, ...]:
        """Report `after` at the end of a statement that cannot have it there; with `to` it must be moved to that place."""
        if not self._follows() or self.ahead().kind not in WORDS:
            return ()
        before, word = self.previous.span.end, self.tok.span
        found = self.after()
        remove = Edit(before.to(self._last(found, word)), "")
        fix = Fix("Remove it", (remove,))
        if to is not None:
            names = ", ".join(each.path[0] for each in found)
            fix = Fix(f"Write `after {names}` before the block", (Edit(to, joint + names), remove))
        self.report(word, "unexpected `after`", hint, [fix])
        return found

    def _last(self, after: tuple[tree.Ref, ...], otherwise: Span) -> Span:
        return after[-1].span if after else otherwise

    def _not_a_step(self, token: Token) -> None:
        if token.text == "yield":
            fix = replace("Remove `=`", token.span.end.to(self.tok.span), "")
            self.report(token.span, "unexpected `=` after `yield`", "write `yield F(...)`", [fix])
        else:
            hint = "choose another name"
            self.report(token.span, f"`{token.text}` is a keyword and cannot name a step", hint)

    def _nothing_more(self, name: str) -> None:
        """Report a clause that can follow a call, but not a value."""
        token = self.tok
        if token.text in ("with", "after", "andThen", "catch") and not self.names_something():
            hint = f"`{name}` is computed immediately; `{token.text}` belongs to a step that calls a facet"
            raise self.failed(token.span, f"unexpected `{token.text}` after a value", hint)

    def _value(self) -> tree.Call:
        """Parse the expression of a value; report forms that were probably meant to be calls."""
        token = self.tok
        if token.broken and token.kind != "end" and self.begins_statement():
            raise self.unexpected("the name of a facet")
        if token.kind in WORDS and self.ahead().kind in ("{", "with", "andThen"):
            self.advance()
            raise self.unexpected("`(`")
        if token.text in hints.WORDS and token.text not in self.bound and not self.ahead().broken:
            raise self.failed(token.span, f"unexpected `{token.text}`; expected the call of a facet", hints.WORDS[token.text])
        if token.kind == "(" and self.ahead().kind == ")":
            raise self.unexpected("the name of a facet")
        value = self.expr()
        start = token.span.until(token.span)
        return tree.Call(Name(tree.VALUE, start), (tree.Arg(Name("value", start), value),), (), value.span)


def _limited(block: tree.Block) -> tree.Block | tree.TooDeep:
    return block if block.depth <= tree.MAX_BLOCKS else tree.TooDeep(block.span)
