"""Checks operators and functions against the types of their operands, and derives the types of their results.

Operands that the reference implementation rejects are errors; others that always fail, or always give the same result, are
warnings.
"""

from __future__ import annotations

from treadle.lang import nodes
from treadle.lang.builtins import FUNCTIONS
from treadle.lang.diagnostics import Source
from treadle.lang.scope import CheckContext
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


def _needed(operator: str, operand: nodes.Expr, type_: Type, source: Source, context: CheckContext) -> Type:
    """Warn about an operand that may be null; return its type if it is not."""
    if not isinstance(type_, OptionalType):
        return type_
    context.reporter.warn("operator-type:null", source, operand.span, operator=operator)
    return type_.element


def check_unary(expr: nodes.Unary, operand: Type, source: Source, context: CheckContext) -> Type:
    """Return the type of `!a` or `-a`."""
    operand = _needed(expr.operator, expr.operand, operand, source, context)
    if expr.operator == "!":
        if not may_be(operand, BOOLEAN):
            context.reporter.report("operator-type:not", source, expr.span, operand=describe(operand))
        return BOOLEAN
    if operand in (STRING, BOOLEAN):
        context.reporter.report("operator-type:sign", source, expr.span, operand=describe(operand))
        return UNKNOWN
    if not is_number(operand) and not is_anything(operand):
        context.reporter.warn("operator-type:sign", source, expr.span, operand=describe(operand))
        return UNKNOWN
    return operand


def check_binary(expr: nodes.Binary, left: Type, right: Type, source: Source, context: CheckContext) -> Type:
    """Return the type of `a op b`."""
    operator = expr.operator
    if operator not in ("==", "!="):
        left = required(left) if operator in ("in", "not in") else _needed(operator, expr.left, left, source, context)
        right = required(right) if operator == "contains" else _needed(operator, expr.right, right, source, context)
    if operator in _ARITHMETIC:
        if operator in "/%" and isinstance(expr.right, nodes.Literal) and expr.right.value == 0 and is_number(right):
            context.reporter.warn("constant-condition:zero", source, expr.span)
        return _arithmetic(expr, left, right, source, context)
    if operator in _COMPARED and expr.left == expr.right and isinstance(expr.left, nodes.InputRef | nodes.Ref):
        context.reporter.warn(
            "constant-condition:itself", source, expr.span, outcome="true" if operator in ("==", "<=", ">=") else "false"
        )
    if operator in ("&&", "||"):
        wrong = next((kind for kind in (left, right) if not may_be(kind, BOOLEAN)), None)
        if wrong is not None:
            context.reporter.report("operator-type:logic", source, expr.span, operator=operator, wrong=describe(wrong))
    elif operator in _ORDERED:
        _ordered(expr, left, right, source, context)
    elif operator in _CONTAINMENT:
        container, element = (left, right) if operator == "contains" else (right, left)
        _containment(expr, container, element, source, context)
    elif operator in ("startsWith", "endsWith"):
        if not (may_be(left, STRING) and may_be(right, STRING)):
            _warn(expr, "needs texts", left, right, source, context)
    elif not comparable(left, right, context.tables.fields):
        outcome = "true" if operator == "!=" else "false"
        context.reporter.warn("comparison-type", source, expr.span, outcome=outcome, left=describe(left), right=describe(right))
    return BOOLEAN


def _arithmetic(expr: nodes.Binary, left: Type, right: Type, source: Source, context: CheckContext) -> Type:
    operator = expr.operator
    wrong: Type | None = next((kind for kind in (left, right) if kind in (STRING, BOOLEAN)), None)
    if wrong is not None:
        hint = "use `++` to join text" if STRING in (left, right) else None
        context.reporter.report("operator-type:arithmetic", source, expr.span, hint=hint, operator=operator, wrong=describe(wrong))
        return UNKNOWN
    if operator == "+" and isinstance(left, ListType) and isinstance(right, ListType):
        return join((left, right))
    wrong = next((kind for kind in (left, right) if not is_number(kind) and not is_anything(kind)), None)
    if wrong is not None:
        if operator == "+" and isinstance(wrong, ListType) and (is_anything(left) or is_anything(right)):
            return ListType(UNKNOWN)
        _warn(expr, "needs numbers", left, right, source, context)
        return UNKNOWN
    if operator == "/" or DOUBLE in (left, right):
        return DOUBLE
    return LONG if is_number(left) and is_number(right) else UNKNOWN


def _ordered(expr: nodes.Binary, left: Type, right: Type, source: Source, context: CheckContext) -> None:
    if BOOLEAN in (left, right):
        context.reporter.report("operator-type:order", source, expr.span, operator=expr.operator)
        return
    texts = may_be(left, STRING) and may_be(right, STRING)
    numbers = may_be(left, LONG, INT, DOUBLE) and may_be(right, LONG, INT, DOUBLE)
    if not texts and not numbers:
        _warn(expr, "needs two numbers or two texts", left, right, source, context)


def _containment(expr: nodes.Binary, container: Type, element: Type, source: Source, context: CheckContext) -> None:
    if isinstance(container, ListType):
        if not comparable(element, container.element, context.tables.fields):
            outcome = "true" if expr.operator == "not in" else "false"
            context.reporter.warn(
                "comparison-type:contains",
                source,
                expr.span,
                outcome=outcome,
                container=describe(container),
                element=describe(element),
            )
    elif (is_scalar(container) and container != STRING) or container == NULL:
        context.reporter.warn("operator-type:container", source, expr.span, operator=expr.operator, container=describe(container))
    elif not is_anything(container) and not may_be(element, STRING):
        what = "a text" if container == STRING else "a key of a map"
        context.reporter.warn(
            "operator-type:element", source, expr.span, operator=expr.operator, what=what, element=describe(element)
        )


def _warn(expr: nodes.Binary, needs: str, left: Type, right: Type, source: Source, context: CheckContext) -> None:
    context.reporter.warn(
        "operator-type:operands", source, expr.span, operator=expr.operator, needs=needs, left=describe(left), right=describe(right)
    )


def check_index(expr: nodes.Index, target: Type, index: Type, source: Source, context: CheckContext) -> Type:
    """Return the type of `target[index]`."""
    if isinstance(target, OptionalType):
        target = target.element
        context.reporter.warn("index-type:null", source, expr.target.span)
    if is_anything(target):
        return UNKNOWN
    if isinstance(index, OptionalType):
        index = index.element
        context.reporter.warn("index-type:null-index", source, expr.index.span)
    if isinstance(target, ListType) or target == STRING:
        if not may_be(index, LONG, INT):
            context.reporter.warn("index-type:position", source, expr.index.span, target=describe(target), index=describe(index))
        return target.element if isinstance(target, ListType) else STRING
    if is_scalar(target) or target == NULL:
        context.reporter.warn("index-type:scalar", source, expr.span, target=describe(target))
        return UNKNOWN
    if not may_be(index, STRING):
        context.reporter.warn("index-type:key", source, expr.index.span, target=describe(target), index=describe(index))
        return UNKNOWN
    fields = dict(target.fields) if isinstance(target, RecordType) else context.tables.fields(words(target))
    key = expr.index.value if isinstance(expr.index, nodes.Literal) else None
    if fields is None or not isinstance(key, str):
        return UNKNOWN
    if key not in fields:
        context.reporter.warn("unknown-field:index", source, expr.index.span, valid=fields, near=key, type=describe(target))
    type_ = fields.get(key, UNKNOWN)
    if isinstance(type_, OptionalType) and not isinstance(target, RecordType):
        context.bindings.optional[id(expr)] = set()
    return type_


# --- functions -------------------------------------------------------------------------------------------------------


def check_function(expr: nodes.FunctionCall, arg_types: list[Type], source: Source, context: CheckContext) -> Type:
    """Return the type of `name(...)`; a null list counts as empty."""
    name = expr.name.text
    context.extensions.append(("function", source, expr.name.span))
    function = FUNCTIONS[name]
    if len(arg_types) != function.arity:
        wanted = "one argument, a list" if function.arity == 1 else "two arguments, a list and a separator"
        context.reporter.report(
            "function-arguments",
            source,
            expr.span,
            name=name,
            wanted=wanted,
            verb="is" if len(arg_types) == 1 else "are",
            count=len(arg_types),
            form=function.form,
        )
        return {"count": LONG, "join": STRING}.get(name, UNKNOWN)
    element = _element(expr, required(arg_types[0]), source, context)
    match name:
        case "count":
            return LONG
        case "sum":
            return _sum(expr, element, source, context)
        case "first":
            return element if is_anything(element) else optional(element)
        case "join":
            if not may_be(arg_types[1], STRING):
                _report(expr, 1, "a text as separator", arg_types[1], source, context)
            elif isinstance(arg_types[1], OptionalType):
                context.reporter.warn("function-type:null-separator", source, expr.args[1].span)
            return STRING
    inner = required(element)
    if isinstance(inner, ListType):
        return list_of(inner.element)
    if not is_anything(inner) and inner != NULL:
        _report(expr, 0, "a list of lists", arg_types[0], source, context)
    return list_of(UNKNOWN)


def _element(expr: nodes.FunctionCall, type_: Type, source: Source, context: CheckContext) -> Type:
    """Return the type of the elements of the list, which comes first."""
    if isinstance(type_, ListType):
        return type_.element
    if not is_anything(type_) and type_ != NULL:
        _report(expr, 0, "a list", type_, source, context)
    return UNKNOWN


def _sum(expr: nodes.FunctionCall, element: Type, source: Source, context: CheckContext) -> Type:
    if isinstance(element, OptionalType) and is_number(element.element):
        context.reporter.warn("function-type:null-element", source, expr.args[0].span)
        element = element.element
    if is_number(element):
        return DOUBLE if element == DOUBLE else LONG
    if not is_anything(element):
        _report(expr, 0, "a list of numbers", list_of(element), source, context)
    return UNKNOWN


def _report(expr: nodes.FunctionCall, number: int, wanted: str, type_: Type, source: Source, context: CheckContext) -> None:
    context.reporter.report(
        "function-type", source, expr.args[number].span, function=expr.name.text, wanted=wanted, type=describe(type_)
    )
