"""Parses text to a syntax tree: one LALR pass over Lark's tables; a syntax error becomes a readable diagnostic.

Lark reads the grammar and builds the tables. The loop over them is here, because the lexer must see the parser's state
before each token, and because it is the hottest loop of the compiler: `InteractiveParser.accepts()`, the public alternative,
copies the parser for every token. The tables are not public API of Lark: pyproject.toml bounds its version, and
tests/unit/lang/test_lark.py reports the parts that changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

from lark import Lark
from lark.lexer import Lexer as LarkLexer
from lark.parsers.lalr_analysis import Shift

from treadle.lang.build import Builder
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.lexer import Lexer, LexError
from treadle.lang.tokens import Token, phrases
from treadle.lang.tree import File


class _Unused(LarkLexer):
    """Lark requires a lexer class, but never calls it."""

    __future_interface__ = 2

    def __init__(self, conf: Any) -> None:
        pass

    def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[Any]:
        return iter(())


class _Action(NamedTuple):
    """Shift to the state `target`, or (if there is a `build`) reduce `size` values to one and continue by rule `target`."""

    build: Callable[[list[Any]], Any] | None
    size: int
    target: Any


class _Tables(NamedTuple):
    actions: dict[Any, dict[str, _Action]]
    gotos: dict[Any, dict[str, Any]]
    start: Any
    end: Any


def _tables() -> _Tables:
    grammar = files("treadle.lang").joinpath("afl.lark").read_text(encoding="utf-8")
    lark = Lark(grammar, parser="lalr", lexer=_Unused, transformer=Builder())
    conf = lark.parse_interactive().parser_state.parse_conf
    actions: dict[Any, dict[str, _Action]] = {}
    gotos: dict[Any, dict[str, Any]] = {}
    for state, row in conf.states.items():
        actions[state], gotos[state] = {}, {}
        for name, (kind, arg) in row.items():
            if kind is not Shift:
                actions[state][name] = _Action(conf.callbacks[arg], len(arg.expansion), arg.origin.name)
            elif name.isupper():
                actions[state][name] = _Action(None, 0, arg)
            else:
                gotos[state][name] = arg
    return _Tables(actions, gotos, conf.start_state, conf.end_state)


_TABLES = _tables()


@dataclass(frozen=True, slots=True)
class Parsed:
    """The tree, or None after a syntax error; `lexer` has the tokens and comments if they were kept."""

    file: File | None
    lexer: Lexer


def parse(source: Source, reporter: Reporter, *, keep_tokens: bool = False) -> Parsed:
    """Parse one source; at most one syntax error is reported. Takes linear time and bounded stack."""
    lexer = Lexer(source.text, keep_tokens)
    try:
        items = _run(lexer, source, reporter)
    except LexError as error:
        reporter.report(error.rule, source, error.span, error.message, hint=error.hint)
        items = None
    return Parsed(None if items is None else File(source.name, items), lexer)


def _run(lexer: Lexer, source: Source, reporter: Reporter) -> Any:
    """Return the value of the start rule; None after an unexpected token."""
    actions, gotos, start, end = _TABLES
    states: list[Any] = [start]
    values: list[Any] = []
    while True:
        row = actions[states[-1]]
        token = lexer.next(row)
        kind = token.type
        reduced: list[list[Any]] = []  # the states that each reduction before this token removed
        while True:
            action = row.get(kind)
            if action is None:
                for taken in reversed(reduced):
                    states[-1:] = taken
                _report_unexpected(source, reporter, token, states)
                return None
            build, size, target = action
            if build is None:
                states.append(target)
                values.append(token)
                break
            at = len(states) - size
            children = values[at - 1 :]
            reduced.append(states[at:])
            del values[at - 1 :], states[at:]
            state = gotos[states[-1]][target]
            states.append(state)
            values.append(build(children))
            if state == end and kind == "$END":
                return values[-1]
            row = actions[state]


def _report_unexpected(source: Source, reporter: Reporter, token: Token, stack: list[Any]) -> None:
    expected = phrases({kind for kind in _TABLES.actions[stack[-1]] if _accepts(stack, kind)})
    found = "end of the file" if token.type == "$END" else f"`{source.text[token.start_pos : token.end_pos][:40]}`"
    if token.type == "CODE":
        found = "a script"
    wanted = f"expected {', '.join(expected[:-1])} or {expected[-1]}" if len(expected) > 1 else f"expected {expected[0]}"
    reporter.report("syntax-error", source, token.span, f"unexpected {found}; {wanted}")


def _accepts(stack: list[Any], kind: str) -> bool:
    """Return whether a token of this kind would be shifted; a state's own row also lists reductions that fail later."""
    pushed: list[Any] = []  # states above stack[:depth]
    depth = len(stack)
    while True:
        state = pushed[-1] if pushed else stack[depth - 1]
        action = _TABLES.actions[state].get(kind)
        if action is None:
            return False
        if action.build is None or (kind == "$END" and action.target == "start"):
            return True
        for _ in range(action.size):
            if pushed:
                pushed.pop()
            else:
                depth -= 1
        state = pushed[-1] if pushed else stack[depth - 1]
        pushed.append(_TABLES.gotos[state][action.target])
