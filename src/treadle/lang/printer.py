"""Prints a syntax tree as AFL; parsing the result gives an equal tree."""

from __future__ import annotations

from typing import assert_never

from treadle.lang import tree
from treadle.lang.escapes import encode

_LEVELS = {"||": 1, "&&": 2, "++": 4, "+": 5, "-": 5, "*": 6, "/": 6, "%": 6}
_COMPARISON = 3
_UNARY = 7
_POSTFIX = 8


def print_expr(expr: tree.Expr, level: int = 0) -> str:
    """An expression with the fewest parentheses that keep its meaning; `level` is what the surroundings bind with."""
    match expr:
        case tree.Literal():
            return _literal(expr)
        case tree.InputRef():
            return "$." + ".".join(expr.path)
        case tree.Ref():
            return ".".join(expr.path)
        case tree.Concat():
            text = " ++ ".join([print_expr(operand, 5) for operand in expr.operands])
            return _enclosed(text, 4, level)
        case tree.Binary():
            own = _LEVELS.get(expr.operator, _COMPARISON)
            left = print_expr(expr.left, own if own != _COMPARISON else own + 1)
            return _enclosed(f"{left} {expr.operator} {print_expr(expr.right, own + 1)}", own, level)
        case tree.Unary():
            return _enclosed(expr.operator + print_expr(expr.operand, _UNARY), _UNARY, level)
        case tree.ArrayLiteral():
            return "[" + ", ".join([print_expr(element) for element in expr.elements]) + "]"
        case tree.MapLiteral():
            return "#{" + ", ".join([f"{encode(entry.key.text)}: {print_expr(entry.value)}" for entry in expr.entries]) + "}"
        case tree.Index():
            return f"{print_expr(expr.target, _POSTFIX)}[{print_expr(expr.index)}]"
        case tree.TooDeep():
            return "null"
    assert_never(expr)


def _enclosed(text: str, own: int, level: int) -> str:
    return f"({text})" if own < level else text


def _literal(expr: tree.Literal) -> str:
    match expr.value:
        case None:
            return "null"
        case bool():
            return "true" if expr.value else "false"
        case str():
            return encode(expr.value)
        case int():
            return str(expr.value)
        case float():
            text = repr(expr.value)
            if "e" not in text:
                return text
            mantissa, exponent = text.split("e")
            return f"{mantissa if '.' in mantissa else mantissa + '.0'}e{exponent}"
    assert_never(expr.value)
