"""Builds the syntax tree bottom up while the parser reduces; it keeps no state and never recurses."""

from __future__ import annotations

from typing import Any, TypeVar

from lark import Transformer, v_args

from treadle.lang import tree
from treadle.lang.scripts import dedent
from treadle.lang.tokens import Token
from treadle.lang.tree import LiteralKind, Span

_T = TypeVar("_T")
_Name = tree.Name


def _name(token: Token) -> tree.Name:
    return tree.Name(token.value, token.span)


def _limited(node: _T, depth: int) -> _T | tree.TooDeep:
    span: Span = node.span  # type: ignore[attr-defined]
    return node if depth <= tree.MAX_DEPTH else tree.TooDeep(span)


def _deepest(*nodes: Any) -> int:
    return 1 + max((node.depth for node in nodes), default=0)


def _block_depth(block: tree.Block | tree.TooDeep | None) -> int:
    return 0 if block is None else block.depth


class _Thens:
    """The parts after a signature: an optional script, blocks, a prompt."""

    def __init__(self, pre_script: Any = None, blocks: tuple[Any, ...] = (), prompt: Any = None) -> None:
        self.pre_script, self.blocks, self.prompt = pre_script, blocks, prompt


@v_args(inline=True)
class Builder(Transformer[Token, tree.File]):
    """One method per grammar rule, with the same name."""

    def start(self, *items: Any) -> tuple[Any, ...]:
        return items

    # --- declarations

    def namespace(self, word: Token, name: _Name, _open: Token, *rest: Any) -> tree.Namespace:
        *items, close = rest
        return tree.Namespace(name, tuple(items), False, word.doc, word.span.to(close.span))

    def file_namespace(self, word: Token, name: _Name) -> tree.Namespace:
        return tree.Namespace(name, (), True, word.doc, word.span.to(name.span))

    def use(self, word: Token, name: _Name) -> tree.Use:
        return tree.Use(name, word.span.to(name.span))

    def kind(self, first: Token, second: Token | None = None) -> tuple[Token, tree.FacetKind]:
        return first, tree.FacetKind.EVENT if second else tree.FacetKind(first.value)

    def facet(
        self, kind: Any, name: Token, params: Any, close: Token, returns: Any, mixins: Any, tail: Any, catch: Any
    ) -> tree.Facet:
        first, facet_kind = kind
        return_params, end = returns or ((), close.span)
        tail = tail or _Thens()
        last = end
        for part in (mixins, (tail.pre_script,), tail.blocks, (tail.prompt, catch)):
            for node in part:
                last = node.span if node is not None else last
        return tree.Facet(
            facet_kind, _name(name), params or (), return_params, mixins,
            tail.pre_script, tail.blocks, tail.prompt, catch, first.doc, first.span.to(last),
        )  # fmt: skip

    def returns(self, params: Any, close: Token) -> tuple[tuple[tree.Param, ...], Span]:
        return params or (), close.span

    def params(self, *params: tree.Param) -> tuple[tree.Param, ...]:
        return params

    def param(self, name: Token, type_: tree.Type, default: tree.Expr | None) -> tree.Param:
        return tree.Param(_name(name), type_, default)

    def implicit(self, word: Token, name: Token, call: tree.Call) -> tree.Implicit:
        return tree.Implicit(_name(name), call, word.span.to(call.span))

    def schema(self, word: Token, name: Token, _open: Token, fields: Any, close: Token) -> tree.Schema:
        return tree.Schema(_name(name), fields or (), word.doc, word.span.to(close.span))

    def fields(self, *fields: tree.Param) -> tuple[tree.Param, ...]:
        return fields

    def field(self, name: Token, type_: tree.Type) -> tree.Param:
        return tree.Param(_name(name), type_)

    def list_type(self, first: Token, element: tree.Type, close: Token) -> tree.Type:
        depth = _deepest(element)
        return _limited(tree.ListType(element, first.span.to(close.span), depth), depth)

    def named_type(self, name: Token) -> tree.Type:
        return tree.NamedType(_name(name), name.span)

    def name(self, name: Token) -> tree.Name:
        return _name(name)

    # --- tails and blocks

    def sig_mixins(self, *mixins: tree.Mixin) -> tuple[tree.Mixin, ...]:
        return mixins

    def pre_script(self, script: tree.Script, *blocks: tree.Block) -> _Thens:
        return _Thens(pre_script=script, blocks=blocks)

    def thens(self, *blocks: tree.Block) -> _Thens:
        return _Thens(blocks=blocks)

    def prompt(self, word: Token, _open: Token, *rest: Any) -> _Thens:
        *directives, close = rest
        return _Thens(prompt=tree.Prompt(tuple(directives), word.span.to(close.span)))

    def directive(self, word: Token, text: Token) -> tree.Directive:
        return tree.Directive(_name(word), text.value, word.span.to(text.span))

    def script(self, word: Token, language: Token | None, code: Token) -> tree.Script:
        text, line = code.value, code.code_line
        if code.type == "STRING":
            text, dropped = dedent(text)
            line += dropped
        return tree.Script(_name(language) if language else None, text, line, word.span.to(code.span))

    def then(self, _word: Token, block: Any) -> Any:
        return block

    body = then
    catch = then

    def then_when(self, word: Token, cases: Any) -> Any:
        cases, close = cases
        depth = 1 + max((_block_depth(case.block) for case in cases), default=0)
        return self._block(tree.Block(cases=cases, span=word.span.to(close.span), depth=depth))

    catch_when = then_when

    def then_foreach(self, _word: Token, foreach: tree.Foreach, block: Any) -> Any:
        if isinstance(block, tree.TooDeep):
            return block
        span = foreach.span.to(block.span)
        return tree.Block(block.statements, foreach, span=span, depth=block.depth)

    def then_script(self, _word: Token, script: tree.Script) -> tree.Block:
        return tree.Block(script=script, span=script.span)

    def foreach(self, word: Token, variable: Token, _in: Token, iterable: Any) -> tree.Foreach:
        return tree.Foreach(_name(variable), iterable, word.span.to(iterable.span))

    def when(self, _word: Token, _open: Token, *rest: Any) -> tuple[tuple[tree.Case, ...], Token]:
        return rest[:-1], rest[-1]

    def case(self, word: Token, condition: tree.Expr, block: tree.Block) -> tree.Case:
        return tree.Case(condition, block, word.span.to(block.span))

    def block(self, first: Token, *rest: Any) -> Any:
        *statements, close = rest
        depth = 1
        for statement in statements:
            if isinstance(statement, tree.Step):
                depth = max(depth, 1 + _block_depth(statement.body), 1 + _block_depth(statement.catch))
        return self._block(tree.Block(tuple(statements), span=first.span.to(close.span), depth=depth))

    def _block(self, block: tree.Block) -> tree.Block | tree.TooDeep:
        return block if block.depth <= tree.MAX_BLOCKS else tree.TooDeep(block.span)

    def step(self, name: Token, call: tree.Call, body: Any, catch: Any) -> tree.Step:
        last = catch or body or call
        return tree.Step(_name(name), call, body, catch, name.span.to(last.span))

    def yield_(self, word: Token, call: tree.Call) -> tree.Yield:
        return tree.Yield(call, word.span.to(call.span))

    def sys_log(self, word: Token, args: Any, close: Token) -> tree.SysLog:
        return tree.SysLog(args or (), word.span.to(close.span))

    def sys_assert(self, word: Token, condition: tree.Expr, close: Token) -> tree.SysAssert:
        return tree.SysAssert(condition, word.span.to(close.span))

    # --- calls

    def call(self, name: _Name, args: Any, close: Token, mixins: tuple[tree.Mixin, ...]) -> tree.Call:
        end = mixins[-1].span if mixins else close.span
        return tree.Call(name, args or (), mixins, name.span.to(end))

    mixins = sig_mixins

    def mixin(self, word: Token, name: _Name, args: Any, close: Token, alias: Token | None) -> tree.Mixin:
        end = alias or close
        return tree.Mixin(name, args or (), _name(alias) if alias else None, word.span.to(end.span))

    def args(self, *args: tree.Arg) -> tuple[tree.Arg, ...]:
        return args

    def arg(self, name: Token, value: tree.Expr) -> tree.Arg:
        return tree.Arg(_name(name), value)

    # --- expressions

    def string(self, token: Token) -> tree.Expr:
        return tree.Literal(LiteralKind.STRING, token.value, token.span)

    def double(self, token: Token) -> tree.Expr:
        return tree.Literal(LiteralKind.DOUBLE, float(token.value), token.span)

    def integer(self, token: Token) -> tree.Expr:
        return tree.Literal(LiteralKind.INT, int(token.value), token.span)

    def boolean(self, token: Token) -> tree.Expr:
        return tree.Literal(LiteralKind.BOOLEAN, token.value == "true", token.span)

    def null(self, token: Token) -> tree.Expr:
        return tree.Literal(LiteralKind.NULL, None, token.span)

    def input_ref(self, token: Token) -> tree.Expr:
        return tree.InputRef(tuple(token.value.split(".")[1:]), token.span)

    def step_ref(self, token: Token) -> tree.Expr:
        return tree.Ref(tuple(token.value.split(".")), token.span)

    def array(self, first: Token, elements: Any, close: Token) -> tree.Expr:
        depth = _deepest(*(elements or ()))
        return _limited(tree.ArrayLiteral(elements or (), first.span.to(close.span), depth), depth)

    def elements(self, *elements: tree.Expr) -> tuple[tree.Expr, ...]:
        return elements

    def map(self, first: Token, entries: Any, close: Token) -> tree.Expr:
        depth = _deepest(*(entry.value for entry in entries or ()))
        return _limited(tree.MapLiteral(entries or (), first.span.to(close.span), depth), depth)

    def entries(self, *entries: tree.Entry) -> tuple[tree.Entry, ...]:
        return entries

    def entry(self, key: Token, value: tree.Expr) -> tree.Entry:
        return tree.Entry(_name(key), value)

    def group(self, inner: tree.Expr, _close: Token) -> tree.Expr:
        return inner

    def index(self, target: tree.Expr, _open: Token, index: tree.Expr, close: Token) -> tree.Expr:
        depth = _deepest(target, index)
        return _limited(tree.Index(target, index, target.span.to(close.span), depth), depth)

    def plus(self, _sign: Token, operand: tree.Expr) -> tree.Expr:
        return operand

    def prefix(self, sign: Token, operand: tree.Expr) -> tree.Expr:
        depth = _deepest(operand)
        return _limited(tree.Unary(sign.value, operand, sign.span.to(operand.span), depth), depth)

    def binary(self, left: tree.Expr, sign: Token, right: tree.Expr) -> tree.Expr:
        return self._binary(sign.value, left, right)

    def not_in(self, left: tree.Expr, _not: Token, _in: Token, right: tree.Expr) -> tree.Expr:
        return self._binary("not in", left, right)

    def _binary(self, operator: str, left: tree.Expr, right: tree.Expr) -> tree.Expr:
        depth = _deepest(left, right)
        return _limited(tree.Binary(operator, left, right, left.span.to(right.span), depth), depth)

    def concat(self, *operands: tree.Expr) -> tree.Expr:
        depth = _deepest(*operands)
        return _limited(tree.Concat(operands, operands[0].span.to(operands[-1].span), depth), depth)
