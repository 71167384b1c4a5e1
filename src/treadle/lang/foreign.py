"""Reports statements of other languages and statements in the wrong place, each with the AFL form."""

from __future__ import annotations

from treadle.lang import hints, tree
from treadle.lang.calls import CallParser
from treadle.lang.diagnostics import Edit, Fix, nearest, replace
from treadle.lang.tokens import KEYWORDS, WORDS, Token

_STATEMENT_WORDS = ("yield", "sys.log", "sys.assert")
_CONTINUED = ("else", "elif", "catch", "finally", "except")
_ONE_NAME = "a step has one name, `name = F(...)`; its results are `name.result`"


class ForeignParser(CallParser):
    """Reads syntax that cannot stand in a block, so that parsing continues after it."""

    blocks = 0  # how many blocks are open

    def step(self, token: Token) -> tree.Step:
        raise NotImplementedError

    def foreign_statement(self) -> tree.Statement | None:
        """Report a statement of another language."""
        token, after = self.tok, self.ahead()
        text = token.text
        if text == "return":
            return self._return()
        if text in hints.NOISE and after.kind in WORDS and not after.broken:
            self.leave_out()
            return None
        if text == "print" and after.kind == "(":
            raise self.failed(token.span, "unexpected `print`", hints.WORDS[text])
        if (text in hints.WORDS and after.kind != "(" and (after.kind != ":" or self.ahead(2).broken)) or text in hints.CONSTRUCTS:
            error = self.failed(token.span, f"unexpected `{text}`; expected a step, `yield` or `}}`", hints.WORDS[text])
            self._skip_construct()
            raise error
        if token.kind in WORDS and after.kind == "(" and not after.broken:
            self._unnamed_call()
            return None
        if token.kind == "name" and after.kind == ":":
            return self._colon(token, after)
        if token.kind == "name" and after.kind in WORDS and not after.broken and (meant := nearest(text, [*_STATEMENT_WORDS])):
            fix = replace(f"Change `{text}` to `{meant}`", token.span, meant)
            self.report(token.span, f"unexpected `{text}`; expected a step or `yield`", f"did you mean `{meant}`?", [fix])
            token.text = meant
            return None
        if token.kind == "-" and after.kind in ("-", ">") and after.start == token.end:
            self._dashes()
            return None
        if token.kind == "name":
            self.advance()
            if after.kind in ("+", "-", "*", "/") and self.ahead().kind == "=":
                hint = "a step is assigned once; give the new value another name"
                raise self.failed(after.span.to(self.ahead().span), f"unexpected `{after.kind}=`; expected `=`", hint)
            raise self.unexpected("`=`", hint=_ONE_NAME if after.kind == "," else None)
        odd = token.kind in ("(", "{", "[", "dotted")
        raise self.unexpected("a step", "`yield`", "`}`", fresh=True, hint=_ONE_NAME if odd else None)

    def _colon(self, token: Token, after: Token) -> tree.Step:
        """Report `a := F()`, `a: F()` and `a: Long = F()`; continue as if there were `=` alone."""
        second, third = self.ahead(2), self.ahead(3)
        if second.kind == "=":
            span = after.span.to(second.span)
            self.report(span, "unexpected `:=`; expected `=`", fixes=[replace("Write `=`", span, "=")])
            self.advance()
        elif second.kind in WORDS and third.kind == "=" and not third.broken:
            fix = replace("Remove the type", token.span.end.to(second.span), "")
            hint = f"a step has no type; write `{token.text} = F(...)`"
            self.report(after.span, "unexpected `:`; expected `=`", hint, [fix])
            self.advance()
            self.advance()
        else:
            fixes = []
            if second.kind in WORDS and third.kind == "(" and not second.broken:
                fixes = [replace("Write `=`", token.span.end.to(after.span), " =")]
            hint = f"a step is written `{token.text} = F(...)`"
            error = self.failed(after.span, "unexpected `:`; expected `=`", hint, fixes)
            if not fixes:
                raise error
            after.kind = after.text = "="
        self.advance()
        return self.step(token)

    def _dashes(self) -> None:
        first, second = self.advance(), self.advance()
        span = first.span.to(second.span)
        if second.kind == ">":
            hint = "a step runs after the steps that it reads"
            self.report(span, "unexpected `->` between steps", hint, [replace("Remove it", span, "")])
            return
        self.dashed(span)

    def dashed(self, span: tree.Span) -> None:
        """Report `--` as a comment, and skip its line."""
        self.report(span, "`--` does not begin a comment", "AFL comments begin with `//`", [replace("Write `//`", span, "//")])
        self.skip_line()

    def _skip_construct(self) -> None:
        """Skip `if ... { ... } else { ... }` and its like, and also `if ...:` with indented lines."""
        margin = self.margin(self.tok)
        while True:
            while self.tok.kind not in ("{", "}", "end") and not (self.tok.broken and self.begins_statement()):
                self.advance()
                if self.previous.kind == ":" and self.tok.broken:
                    while self.tok.kind not in ("}", "end") and not (self.tok.broken and self.margin(self.tok) <= margin):
                        self.advance()
                    break
            if self.tok.kind == "{":
                self.skip_group()
            if self.tok.text not in _CONTINUED or self.ahead().kind == "=":
                return

    def value_for_owner(self, word: Token) -> None:
        """Report `return value`, `yield value` and `yield name = value`; a fix names the owner of the block."""
        named = self.tok.kind == "name" and self.ahead().kind == "="
        name = self.results[0] if len(self.results) == 1 else "name"
        start = self.tok.span
        known = self.blocks == 1 and (named or len(self.results) == 1)
        if named:
            name = self.advance().text
            self.advance()
        before = len(self.reporter.found)
        value = self.expr()
        owner = self.owner if self.blocks == 1 else "F"
        head = f"yield {owner}(" + ("" if named else f"{name} = ")
        fixes = [Fix(f"Yield it as `{name}`", (Edit(word.span.until(start), head), Edit(value.span.end, ")")))]
        if len(self.reporter.found) > before:
            del self.reporter.found[before:]
            known = False
        message, span = f"unexpected `{word.text}`", word.span
        if word.text == "yield":
            message, span = "unexpected value; expected the owner of the block", start.to(value.span)
        hint = f"a block passes values to its owner with `yield`: `yield {owner}({name} = ...)`"
        self.report(span, message, hint, fixes if known else ())

    def _return(self) -> tree.Statement | None:
        word = self.tok
        if self.ahead().broken or self.ahead().kind == "}":
            hint = "a block ends with its last step; it passes values to its owner with `yield`"
            self.report(word.span, "unexpected `return`", hint, [replace("Remove it", word.span, "")])
            self.advance()
            return None
        self.advance()
        if self.tok.kind in WORDS and self.ahead().kind == "(":
            hint = "a block passes values to its owner with `yield`"
            self.report(word.span, "unexpected `return`", hint, [replace("Write `yield`", word.span, "yield")])
            call = self.call()
            return tree.Yield(call, word.span.to(call.span))
        self.value_for_owner(word)
        return None

    def _unnamed_call(self) -> None:
        token = self.tok
        name = token.text.rpartition(".")[2]
        name = name[:1].lower() + name[1:]
        while name in self.bound or name in KEYWORDS:
            name += "_"
        edits = [Edit(token.span.until(token.span), f"{name} = ")]
        index = len(self.reporter.found)
        hint = f"name it: `{name} = {token.text}(...)`"
        call = self.call()
        if self.tok.kind == "-" and self.ahead().kind == ">" and self.ahead(2).kind == "name":  # F() -> a
            self.advance()
            self.advance()
            target = self.advance()
            edits = [Edit(token.span.until(token.span), f"{target.text} = "), Edit(call.span.end.to(target.span), "")]
            name, hint = target.text, f"write `{target.text} = {token.text}(...)`"
        fix = Fix(f"Name it `{name}`", tuple(edits))
        self.report(token.span, "this call is not a step; expected `=` after the name of a step", hint, [fix])
        self.reporter.found.insert(index, self.reporter.found.pop())
