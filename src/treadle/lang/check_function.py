"""Checks calls of functions in expressions, and derives the types of their results."""

from __future__ import annotations

from treadle.lang import tree
from treadle.lang.bindings import Context
from treadle.lang.diagnostics import Source
from treadle.lang.functions import FUNCTIONS
from treadle.lang.types import (
    DOUBLE,
    LONG,
    NULL,
    STRING,
    UNKNOWN,
    ListType,
    OptionalType,
    Type,
    describe,
    is_anything,
    is_number,
    list_of,
    may_be,
    optional,
    required,
)


def check_function(expr: tree.Function, given: list[Type], source: Source, context: Context) -> Type:
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


def _element(expr: tree.Function, given: Type, source: Source, context: Context) -> Type:
    """Return the type of the elements of the list, which comes first."""
    if isinstance(given, ListType):
        return given.element
    if not is_anything(given) and given != NULL:
        _report(expr, 0, "a list", given, source, context)
    return UNKNOWN


def _sum(expr: tree.Function, element: Type, source: Source, context: Context) -> Type:
    if isinstance(element, OptionalType) and is_number(element.element):
        message = "`sum` needs a list of numbers, the elements of this one may be null"
        context.reporter.warn("function-type", source, expr.args[0].span, message)
        element = element.element
    if is_number(element):
        return DOUBLE if element == DOUBLE else LONG
    if not is_anything(element):
        _report(expr, 0, "a list of numbers", list_of(element), source, context)
    return UNKNOWN


def _report(expr: tree.Function, number: int, wanted: str, found: Type, source: Source, context: Context) -> None:
    message = f"`{expr.name.text}` needs {wanted}, this is {describe(found)}"
    context.reporter.report("function-type", source, expr.args[number].span, message)
