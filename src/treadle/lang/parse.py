"""Text to syntax tree: one LALR pass, driven token by token; a syntax error is a diagnostic in plain words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from lark import Lark
from lark.exceptions import UnexpectedToken
from lark.lexer import Lexer as LarkLexer
from lark.parsers.lalr_analysis import Shift

from treadle.lang.build import Builder
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.lexer import Lexer, LexError
from treadle.lang.tokens import Token, phrases
from treadle.lang.tree import File


class _Unused(LarkLexer):
    """The parser is fed token by token; it never lexes on its own."""

    __future_interface__ = 2

    def __init__(self, conf: Any) -> None:
        pass

    def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[Any]:
        return iter(())


_LARK = Lark(
    files("treadle.lang").joinpath("afl.lark").read_text(encoding="utf-8"),
    parser="lalr",
    lexer=_Unused,
    transformer=Builder(),
)


@dataclass(frozen=True, slots=True)
class Parsed:
    """The tree, or None after a syntax error; `lexer` has all tokens and comments."""

    file: File | None
    lexer: Lexer


def parse(source: Source, reporter: Reporter) -> Parsed:
    """Parse one source; at most one syntax error is reported. Takes linear time and bounded stack."""
    lexer = Lexer(source.text)
    state = _LARK.parse_interactive().parser_state
    states = state.parse_conf.states
    token = Token("$END", "", 0, 0, 1, 1, 1, 1)
    try:
        while True:
            token = lexer.next(states[state.position])
            if token.type == "$END":
                return Parsed(File(source.name, state.feed_token(token, True)), lexer)  # type: ignore[arg-type]
            state.feed_token(token)  # type: ignore[arg-type]
    except LexError as error:
        reporter.report(error.rule, source, error.span, error.message, hint=error.hint)
    except UnexpectedToken:
        _report_unexpected(source, reporter, token, states, list(state.state_stack))
    return Parsed(None, lexer)


def _report_unexpected(source: Source, reporter: Reporter, token: Token, states: Any, stack: list[Any]) -> None:
    expected = phrases({kind for kind in states[stack[-1]] if kind.isupper() and _accepts(states, stack, kind)})
    found = "end of the file" if token.type == "$END" else f"`{source.text[token.start_pos : token.end_pos][:40]}`"
    if token.type == "CODE":
        found = "a script"
    wanted = f"expected {', '.join(expected[:-1])} or {expected[-1]}" if len(expected) > 1 else f"expected {expected[0]}"
    reporter.report("syntax-error", source, token.span, f"unexpected {found}; {wanted}")


def _accepts(states: Any, stack: list[Any], kind: str) -> bool:
    """Whether a token of this kind would really be shifted; a state's own table also lists reductions that fail later."""
    pushed: list[Any] = []  # states above stack[:depth]
    depth = len(stack)
    while True:
        state = pushed[-1] if pushed else stack[depth - 1]
        step = states[state].get(kind)
        if step is None:
            return False
        action, rule = step
        if action is Shift:
            return True
        if kind == "$END" and rule.origin.name == "start":
            return True
        for _ in rule.expansion:
            if pushed:
                pushed.pop()
            else:
                depth -= 1
        state = pushed[-1] if pushed else stack[depth - 1]
        pushed.append(states[state][rule.origin.name][1])
