"""Checks operators and functions against the types of their operands, and derives the types of their results.

Operands that the reference implementation rejects are errors; others that always fail, or always give the same result, are
warnings.
"""

from __future__ import annotations

from treadle.lang import nodes
from treadle.lang.builtins import FUNCTIONS
from treadle.lang.scope import CheckScope
from treadle.lang.types import (
    BOOLEAN,
    DOUBLE,
    INT,
    LONG,
    NULL,
    STRING,
    UNKNOWN,
    ListType,
    OptionalType,
    RecordType,
    Type,
    comparable,
    describe,
    is_anything,
    is_number,
    is_scalar,
    join,
    list_of,
    may_be,
    optional,
    required,
    words,
)

_ARITHMETIC = frozenset("+-*/%")
_ORDERED = frozenset(["<", ">", "<=", ">="])
_COMPARED = _ORDERED | {"==", "!="}
_CONTAINMENT = frozenset(["in", "not in", "contains"])


def _needed(operator: str, operand: nodes.Expr, type_: Type, scope: CheckScope) -> Type:
    """Warn about an operand that may be null; return its type if it is not."""
    if not isinstance(type_, OptionalType):
        return type_
    scope.warn("operator-type:null", operand.span, operator=operator)
    return type_.element


def check_unary(expr: nodes.Unary, operand: Type, scope: CheckScope) -> Type:
    """Return the type of `!a` or `-a`."""
    operand = _needed(expr.operator, expr.operand, operand, scope)
    if expr.operator == "!":
        if not may_be(operand, BOOLEAN):
            scope.report("operator-type:not", expr.span, operand=describe(operand))
        return BOOLEAN
    if operand in (STRING, BOOLEAN):
        scope.report("operator-type:sign", expr.span, operand=describe(operand))
        return UNKNOWN
    if not is_number(operand) and not is_anything(operand):
        scope.warn("operator-type:sign", expr.span, operand=describe(operand))
        return UNKNOWN
    return operand


def check_binary(expr: nodes.Binary, left: Type, right: Type, scope: CheckScope) -> Type:
    """Return the type of `a op b`."""
    operator = expr.operator
    if operator not in ("==", "!="):
        left = required(left) if operator in ("in", "not in") else _needed(operator, expr.left, left, scope)
        right = required(right) if operator == "contains" else _needed(operator, expr.right, right, scope)
    if operator in _ARITHMETIC:
        if operator in "/%" and isinstance(expr.right, nodes.Literal) and expr.right.value == 0 and is_number(right):
            scope.warn("constant-condition:zero", expr.span)
        return _arithmetic(expr, left, right, scope)
    if operator in _COMPARED and expr.left == expr.right and isinstance(expr.left, nodes.InputRef | nodes.Ref):
        scope.warn("constant-condition:itself", expr.span, outcome="true" if operator in ("==", "<=", ">=") else "false")
    if operator in ("&&", "||"):
        wrong = next((kind for kind in (left, right) if not may_be(kind, BOOLEAN)), None)
        if wrong is not None:
            scope.report("operator-type:logic", expr.span, operator=operator, wrong=describe(wrong))
    elif operator in _ORDERED:
        _ordered(expr, left, right, scope)
    elif operator in _CONTAINMENT:
        container, element = (left, right) if operator == "contains" else (right, left)
        _containment(expr, container, element, scope)
    elif operator in ("startsWith", "endsWith"):
        if not (may_be(left, STRING) and may_be(right, STRING)):
            _warn(expr, "needs texts", left, right, scope)
    elif not comparable(left, right, scope.context.tables.fields):
        outcome = "true" if operator == "!=" else "false"
        scope.warn("comparison-type", expr.span, outcome=outcome, left=describe(left), right=describe(right))
    return BOOLEAN


def _arithmetic(expr: nodes.Binary, left: Type, right: Type, scope: CheckScope) -> Type:
    operator = expr.operator
    wrong: Type | None = next((kind for kind in (left, right) if kind in (STRING, BOOLEAN)), None)
    if wrong is not None:
        hint = "use `++` to join text" if STRING in (left, right) else None
        scope.report("operator-type:arithmetic", expr.span, hint=hint, operator=operator, wrong=describe(wrong))
        return UNKNOWN
    if operator == "+" and isinstance(left, ListType) and isinstance(right, ListType):
        return join((left, right))
    wrong = next((kind for kind in (left, right) if not is_number(kind) and not is_anything(kind)), None)
    if wrong is not None:
        if operator == "+" and isinstance(wrong, ListType) and (is_anything(left) or is_anything(right)):
            return ListType(UNKNOWN)
        _warn(expr, "needs numbers", left, right, scope)
        return UNKNOWN
    if operator == "/" or DOUBLE in (left, right):
        return DOUBLE
    return LONG if is_number(left) and is_number(right) else UNKNOWN


def _ordered(expr: nodes.Binary, left: Type, right: Type, scope: CheckScope) -> None:
    if BOOLEAN in (left, right):
        scope.report("operator-type:order", expr.span, operator=expr.operator)
        return
    texts = may_be(left, STRING) and may_be(right, STRING)
    numbers = may_be(left, LONG, INT, DOUBLE) and may_be(right, LONG, INT, DOUBLE)
    if not texts and not numbers:
        _warn(expr, "needs two numbers or two texts", left, right, scope)


def _containment(expr: nodes.Binary, container: Type, element: Type, scope: CheckScope) -> None:
    if isinstance(container, ListType):
        if not comparable(element, container.element, scope.context.tables.fields):
            outcome = "true" if expr.operator == "not in" else "false"
            scope.warn(
                "comparison-type:contains", expr.span, outcome=outcome, container=describe(container), element=describe(element)
            )
    elif (is_scalar(container) and container != STRING) or container == NULL:
        scope.warn("operator-type:container", expr.span, operator=expr.operator, container=describe(container))
    elif not is_anything(container) and not may_be(element, STRING):
        what = "a text" if container == STRING else "a key of a map"
        scope.warn("operator-type:element", expr.span, operator=expr.operator, what=what, element=describe(element))


def _warn(expr: nodes.Binary, needs: str, left: Type, right: Type, scope: CheckScope) -> None:
    scope.warn("operator-type:operands", expr.span, operator=expr.operator, needs=needs, left=describe(left), right=describe(right))


def check_index(expr: nodes.Index, target: Type, index: Type, scope: CheckScope) -> Type:
    """Return the type of `target[index]`."""
    if isinstance(target, OptionalType):
        target = target.element
        scope.warn("index-type:null", expr.target.span)
    if is_anything(target):
        return UNKNOWN
    if isinstance(index, OptionalType):
        index = index.element
        scope.warn("index-type:null-index", expr.index.span)
    if isinstance(target, ListType) or target == STRING:
        if not may_be(index, LONG, INT):
            scope.warn("index-type:position", expr.index.span, target=describe(target), index=describe(index))
        return target.element if isinstance(target, ListType) else STRING
    if is_scalar(target) or target == NULL:
        scope.warn("index-type:scalar", expr.span, target=describe(target))
        return UNKNOWN
    if not may_be(index, STRING):
        scope.warn("index-type:key", expr.index.span, target=describe(target), index=describe(index))
        return UNKNOWN
    fields = dict(target.fields) if isinstance(target, RecordType) else scope.context.tables.fields(words(target))
    key = expr.index.value if isinstance(expr.index, nodes.Literal) else None
    if fields is None or not isinstance(key, str):
        return UNKNOWN
    if key not in fields:
        scope.warn("unknown-field:index", expr.index.span, valid=fields, near=key, type=describe(target))
    type_ = fields.get(key, UNKNOWN)
    if isinstance(type_, OptionalType) and not isinstance(target, RecordType):
        scope.context.bindings.optional[id(expr)] = set()
    return type_


# --- functions -------------------------------------------------------------------------------------------------------


def check_function(expr: nodes.FunctionCall, arg_types: list[Type], scope: CheckScope) -> Type:
    """Return the type of `name(...)`; a null list counts as empty."""
    name = expr.name.text
    scope.extend("function", expr.name.span)
    function = FUNCTIONS[name]
    if len(arg_types) != function.arity:
        wanted = "one argument, a list" if function.arity == 1 else "two arguments, a list and a separator"
        scope.report(
            "function-arguments",
            expr.span,
            name=name,
            wanted=wanted,
            verb="is" if len(arg_types) == 1 else "are",
            count=len(arg_types),
            form=function.form,
        )
        return {"count": LONG, "join": STRING}.get(name, UNKNOWN)
    element = _element(expr, required(arg_types[0]), scope)
    match name:
        case "count":
            return LONG
        case "sum":
            return _sum(expr, element, scope)
        case "first":
            return element if is_anything(element) else optional(element)
        case "join":
            if not may_be(arg_types[1], STRING):
                _report(expr, 1, "a text as separator", arg_types[1], scope)
            elif isinstance(arg_types[1], OptionalType):
                scope.warn("function-type:null-separator", expr.args[1].span)
            return STRING
    inner = required(element)
    if isinstance(inner, ListType):
        return list_of(inner.element)
    if not is_anything(inner) and inner != NULL:
        _report(expr, 0, "a list of lists", arg_types[0], scope)
    return list_of(UNKNOWN)


def _element(expr: nodes.FunctionCall, type_: Type, scope: CheckScope) -> Type:
    """Return the type of the elements of the list, which comes first."""
    if isinstance(type_, ListType):
        return type_.element
    if not is_anything(type_) and type_ != NULL:
        _report(expr, 0, "a list", type_, scope)
    return UNKNOWN


def _sum(expr: nodes.FunctionCall, element: Type, scope: CheckScope) -> Type:
    if isinstance(element, OptionalType) and is_number(element.element):
        scope.warn("function-type:null-element", expr.args[0].span)
        element = element.element
    if is_number(element):
        return DOUBLE if element == DOUBLE else LONG
    if not is_anything(element):
        _report(expr, 0, "a list of numbers", list_of(element), scope)
    return UNKNOWN


def _report(expr: nodes.FunctionCall, number: int, wanted: str, type_: Type, scope: CheckScope) -> None:
    scope.report("function-type", expr.args[number].span, function=expr.name.text, wanted=wanted, type=describe(type_))
