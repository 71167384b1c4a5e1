"""Checks operators and functions against the types of their operands, and derives the types of their results.

Operands that the reference implementation rejects are errors; others that always fail, or always give the same result, are
warnings.
"""

from __future__ import annotations

from treadle.lang import nodes
from treadle.lang.builtins import FUNCTIONS
from treadle.lang.diagnostics import Source
from treadle.lang.scope import Context
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


def _needed(operator: str, operand: nodes.Expr, type_: Type, source: Source, context: Context) -> Type:
    """Warn about an operand that may be null; return its type if it is not."""
    if not isinstance(type_, OptionalType):
        return type_
    message = f"operator `{operator}` needs a value, this may be null"
    context.reporter.warn("operator-type", source, operand.span, message)
    return type_.element


def check_unary(expr: nodes.Unary, operand: Type, source: Source, context: Context) -> Type:
    """Return the type of `!a` or `-a`."""
    operand = _needed(expr.operator, expr.operand, operand, source, context)
    if expr.operator == "!":
        if not may_be(operand, BOOLEAN):
            message = f"operator `!` needs a Boolean, this is {describe(operand)}"
            context.reporter.report("operator-type", source, expr.span, message)
        return BOOLEAN
    if operand in (STRING, BOOLEAN):
        context.reporter.report("operator-type", source, expr.span, f"operator `-` needs a number, this is {describe(operand)}")
        return UNKNOWN
    if not is_number(operand) and not is_anything(operand):
        context.reporter.warn("operator-type", source, expr.span, f"operator `-` needs a number, this is {describe(operand)}")
        return UNKNOWN
    return operand


def check_binary(expr: nodes.Binary, left: Type, right: Type, source: Source, context: Context) -> Type:
    """Return the type of `a op b`."""
    operator = expr.operator
    if operator not in ("==", "!="):
        left = required(left) if operator in ("in", "not in") else _needed(operator, expr.left, left, source, context)
        right = required(right) if operator == "contains" else _needed(operator, expr.right, right, source, context)
    if operator in _ARITHMETIC:
        if operator in "/%" and isinstance(expr.right, nodes.Literal) and expr.right.value == 0 and is_number(right):
            context.reporter.warn("constant-condition", source, expr.span, "this divides by zero, which always fails")
        return _arithmetic(expr, left, right, source, context)
    if operator in _COMPARED and expr.left == expr.right and isinstance(expr.left, nodes.InputRef | nodes.Ref):
        message = f"this compares a value with itself, which is always {'true' if operator in ('==', '<=', '>=') else 'false'}"
        context.reporter.warn("constant-condition", source, expr.span, message)
    if operator in ("&&", "||"):
        wrong = next((kind for kind in (left, right) if not may_be(kind, BOOLEAN)), None)
        if wrong is not None:
            message = f"operator `{operator}` needs Booleans, this is {describe(wrong)}"
            context.reporter.report("operator-type", source, expr.span, message)
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
        message = f"this is always {outcome}: {describe(left)} never equals {describe(right)}"
        context.reporter.warn("comparison-type", source, expr.span, message)
    return BOOLEAN


def _arithmetic(expr: nodes.Binary, left: Type, right: Type, source: Source, context: Context) -> Type:
    operator = expr.operator
    wrong: Type | None = next((kind for kind in (left, right) if kind in (STRING, BOOLEAN)), None)
    if wrong is not None:
        hint = "use `++` to join text" if STRING in (left, right) else None
        message = f"operator `{operator}` needs numbers, this is {describe(wrong)}"
        context.reporter.report("operator-type", source, expr.span, message, hint=hint)
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


def _ordered(expr: nodes.Binary, left: Type, right: Type, source: Source, context: Context) -> None:
    if BOOLEAN in (left, right):
        message = f"operator `{expr.operator}` cannot order Booleans"
        context.reporter.report("operator-type", source, expr.span, message, hint="use `==` or `!=`")
        return
    texts = may_be(left, STRING) and may_be(right, STRING)
    numbers = may_be(left, LONG, INT, DOUBLE) and may_be(right, LONG, INT, DOUBLE)
    if not texts and not numbers:
        _warn(expr, "needs two numbers or two texts", left, right, source, context)


def _containment(expr: nodes.Binary, container: Type, element: Type, source: Source, context: Context) -> None:
    if isinstance(container, ListType):
        if not comparable(element, container.element, context.tables.fields):
            outcome = "true" if expr.operator == "not in" else "false"
            message = f"this is always {outcome}: {describe(container)} never contains {describe(element)}"
            context.reporter.warn("comparison-type", source, expr.span, message)
    elif (is_scalar(container) and container != STRING) or container == NULL:
        message = f"operator `{expr.operator}` needs a list, a map or a text to search, this is {describe(container)}"
        context.reporter.warn("operator-type", source, expr.span, message)
    elif not is_anything(container) and not may_be(element, STRING):
        what = "a text" if container == STRING else "a key of a map"
        message = f"operator `{expr.operator}` searches for {what}, this is {describe(element)}"
        context.reporter.warn("operator-type", source, expr.span, message)


def _warn(expr: nodes.Binary, needs: str, left: Type, right: Type, source: Source, context: Context) -> None:
    message = f"operator `{expr.operator}` {needs}, these are {describe(left)} and {describe(right)}"
    context.reporter.warn("operator-type", source, expr.span, message)


def check_index(expr: nodes.Index, target: Type, index: Type, source: Source, context: Context) -> Type:
    """Return the type of `target[index]`."""
    if isinstance(target, OptionalType):
        target = target.element
        context.reporter.warn("index-type", source, expr.target.span, "this may be null, and null has no elements to index")
    if is_anything(target):
        return UNKNOWN
    if isinstance(index, OptionalType):
        index = index.element
        context.reporter.warn("index-type", source, expr.index.span, "the index must have a value, this may be null")
    if isinstance(target, ListType) or target == STRING:
        if not may_be(index, LONG, INT):
            message = f"the index of {describe(target)} must be a whole number, this is {describe(index)}"
            context.reporter.warn("index-type", source, expr.index.span, message)
        return target.element if isinstance(target, ListType) else STRING
    if is_scalar(target) or target == NULL:
        context.reporter.warn("index-type", source, expr.span, f"{describe(target)} has no elements to index")
        return UNKNOWN
    if not may_be(index, STRING):
        message = f"the key of {'a map' if isinstance(target, RecordType) else describe(target)} must be a text"
        context.reporter.warn("index-type", source, expr.index.span, f"{message}, this is {describe(index)}")
        return UNKNOWN
    fields = dict(target.fields) if isinstance(target, RecordType) else context.tables.fields(words(target))
    key = expr.index.value if isinstance(expr.index, nodes.Literal) else None
    if fields is None or not isinstance(key, str):
        return UNKNOWN
    if key not in fields:
        message = f"{describe(target)} has no field `{key}`"
        context.reporter.warn("unknown-field", source, expr.index.span, message, valid=fields, near=key)
    found = fields.get(key, UNKNOWN)
    if isinstance(found, OptionalType) and not isinstance(target, RecordType):
        context.bindings.optional[id(expr)] = set()
    return found


# --- functions -------------------------------------------------------------------------------------------------------


def check_function(expr: nodes.Function, given: list[Type], source: Source, context: Context) -> Type:
    """Return the type of `name(...)`; a null list counts as empty."""
    name = expr.name.text
    context.extensions.append(("function", source, expr.name.span))
    known = FUNCTIONS[name]
    if len(given) != known.arity:
        wanted = "one argument, a list" if known.arity == 1 else "two arguments, a list and a separator"
        message = f"`{name}` takes {wanted}; here {'is' if len(given) == 1 else 'are'} {len(given)}"
        context.reporter.report("function-arguments", source, expr.span, message, hint=f"write `{known.form}`")
        return {"count": LONG, "join": STRING}.get(name, UNKNOWN)
    element = _element(expr, required(given[0]), source, context)
    match name:
        case "count":
            return LONG
        case "sum":
            return _sum(expr, element, source, context)
        case "first":
            return element if is_anything(element) else optional(element)
        case "join":
            if not may_be(given[1], STRING):
                _report(expr, 1, "a text as separator", given[1], source, context)
            elif isinstance(given[1], OptionalType):
                message = "`join` needs a text as separator, this may be null"
                context.reporter.warn("function-type", source, expr.args[1].span, message)
            return STRING
    inner = required(element)
    if isinstance(inner, ListType):
        return list_of(inner.element)
    if not is_anything(inner) and inner != NULL:
        _report(expr, 0, "a list of lists", given[0], source, context)
    return list_of(UNKNOWN)


def _element(expr: nodes.Function, given: Type, source: Source, context: Context) -> Type:
    """Return the type of the elements of the list, which comes first."""
    if isinstance(given, ListType):
        return given.element
    if not is_anything(given) and given != NULL:
        _report(expr, 0, "a list", given, source, context)
    return UNKNOWN


def _sum(expr: nodes.Function, element: Type, source: Source, context: Context) -> Type:
    if isinstance(element, OptionalType) and is_number(element.element):
        message = "`sum` needs a list of numbers, the elements of this one may be null"
        context.reporter.warn("function-type", source, expr.args[0].span, message)
        element = element.element
    if is_number(element):
        return DOUBLE if element == DOUBLE else LONG
    if not is_anything(element):
        _report(expr, 0, "a list of numbers", list_of(element), source, context)
    return UNKNOWN


def _report(expr: nodes.Function, number: int, wanted: str, found: Type, source: Source, context: Context) -> None:
    message = f"`{expr.name.text}` needs {wanted}, this is {describe(found)}"
    context.reporter.report("function-type", source, expr.args[number].span, message)
