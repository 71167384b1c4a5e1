"""Checks expressions: every reference must resolve, and operators must fit the known types."""

from __future__ import annotations

from typing import assert_never

from treadle.lang import program, tree
from treadle.lang.attributes import Attributes, KnownType
from treadle.lang.bindings import Context
from treadle.lang.scope import Scope, StepInfo

_ARITHMETIC = frozenset("+-*/%")
_ORDERED = frozenset(["<", ">", "<=", ">="])
_BOOLEAN = program.NamedType("Boolean")
_STRING = program.NamedType("String")
_LONG = program.NamedType("Long")
_DOUBLE = program.NamedType("Double")
_JSON = program.NamedType("Json")
_LITERALS: dict[tree.LiteralKind, KnownType] = {
    tree.LiteralKind.STRING: _STRING,
    tree.LiteralKind.INT: _LONG,
    tree.LiteralKind.DOUBLE: _DOUBLE,
    tree.LiteralKind.BOOLEAN: _BOOLEAN,
    tree.LiteralKind.NULL: None,
}


def infer(expr: tree.Expr, scope: Scope, context: Context) -> KnownType:
    """Check an expression, record its references, and return its type if known."""
    match expr:
        case tree.Literal():
            return _LITERALS[expr.kind]
        case tree.InputRef():
            return _input(expr, scope, context)
        case tree.Ref():
            return _reference(expr, scope, context)
        case tree.Concat():
            for operand in expr.operands:
                infer(operand, scope, context)
            return _STRING
        case tree.Binary():
            left = infer(expr.left, scope, context)
            right = infer(expr.right, scope, context)
            return _binary(expr, left, right, scope, context)
        case tree.Unary():
            return _unary(expr, infer(expr.operand, scope, context), scope, context)
        case tree.ArrayLiteral():
            kinds = {infer(element, scope, context) for element in expr.elements}
            only = kinds.pop() if len(kinds) == 1 else None
            return program.ListType(only or _JSON)
        case tree.MapLiteral():
            for entry in expr.entries:
                infer(entry.value, scope, context)
            return None
        case tree.Index():
            target = infer(expr.target, scope, context)
            infer(expr.index, scope, context)
            return target.element if isinstance(target, program.ListType) else None
        case tree.TooDeep():
            context.report_too_deep(expr, scope.opening.source, tree.MAX_DEPTH, "this expression")
            return None
    assert_never(expr)


def require_boolean(expr: tree.Expr, scope: Scope, context: Context, what: str) -> None:
    """Check a condition; a known type must be Boolean."""
    found = infer(expr, scope, context)
    if _not_boolean(found):
        message = f"{what} must be a Boolean, this is {describe(found)}"
        context.reporter.report("condition-type", scope.opening.source, expr.span, message)


def describe(type_: KnownType) -> str:
    """Return a phrase for a type."""
    match type_:
        case program.NamedType(name):
            return f"a {name}" if name not in ("Int",) else "an Int"
        case program.ListType():
            return "a list"
        case None:
            return "unknown"
    assert_never(type_)


def _not_boolean(type_: KnownType) -> bool:
    return type_ is not None and type_ not in (_BOOLEAN, _JSON)


def _binary(expr: tree.Binary, left: KnownType, right: KnownType, scope: Scope, context: Context) -> KnownType:
    operator, source = expr.operator, scope.opening.source
    if operator in _ARITHMETIC:
        wrong: KnownType = next((kind for kind in (left, right) if kind in (_STRING, _BOOLEAN)), None)
        if wrong is not None:
            message = f"operator `{operator}` needs numbers, this is {describe(wrong)}"
            hint = "use `++` to join text" if _STRING in (left, right) else None
            context.reporter.report("operator-type", source, expr.span, message, hint=hint)
            return None
        if operator == "/" or _DOUBLE in (left, right):
            return _DOUBLE
        return _LONG if left is not None and right is not None and _JSON not in (left, right) else None
    if operator in ("&&", "||"):
        wrong = next((kind for kind in (left, right) if _not_boolean(kind)), None)
        if wrong is not None:
            message = f"operator `{operator}` needs Booleans, this is {describe(wrong)}"
            context.reporter.report("operator-type", source, expr.span, message)
    elif operator in _ORDERED and _BOOLEAN in (left, right):
        message = f"operator `{operator}` cannot order Booleans"
        context.reporter.report("operator-type", source, expr.span, message, hint="use `==` or `!=`")
    return _BOOLEAN


def _unary(expr: tree.Unary, operand: KnownType, scope: Scope, context: Context) -> KnownType:
    source = scope.opening.source
    if expr.operator == "!":
        if _not_boolean(operand):
            message = f"operator `!` needs a Boolean, this is {describe(operand)}"
            context.reporter.report("operator-type", source, expr.span, message)
        return _BOOLEAN
    if operand in (_STRING, _BOOLEAN):
        message = f"operator `-` needs a number, this is {describe(operand)}"
        context.reporter.report("operator-type", source, expr.span, message)
        return None
    return operand


def _input(expr: tree.InputRef, scope: Scope, context: Context) -> KnownType:
    name = expr.path[0]
    known, type_ = scope.inputs.find(name)
    if not known:
        names = set(scope.inputs) if context.reporter.detailed else set()
        message = f"unknown input `$.{name}` in {scope.label}"
        hint = None if names else "there are no inputs here"
        context.reporter.report("unknown-input", scope.opening.source, expr.span, message, valid=names, near=name, hint=hint)
    return _path_type(type_, expr.path[1:], expr, scope, context)


def _reference(expr: tree.Ref, scope: Scope, context: Context) -> KnownType:
    name = expr.path[0]
    hit = scope.find_loop_or_step(name)
    if hit is None:
        _report_unknown_step(expr, scope, context)
        return None
    where, step = hit
    if step is None:
        context.bindings.loops.add(id(expr))
        element = where.loop[1] if where.loop else None
        return _path_type(element, expr.path[1:], expr, scope, context)
    if not note_step(expr, where, step, scope, context):
        return None
    if len(expr.path) == 1:
        message = f"step `{name}` by itself is not a value"
        hint = f"name one of its attributes, as in `{name}.{next(iter(step.attributes), 'attribute')}`"
        context.reporter.report("bare-step", scope.opening.source, expr.span, message, hint=hint)
        return None
    return _step_attribute(expr, step, scope, context)


def note_step(expr: tree.Ref, where: Scope, step: StepInfo, scope: Scope, context: Context) -> bool:
    """Record the dependency on a step; report forward and self references."""
    current, name = where.current, expr.path[0]
    if current is not None and step is current:
        if where.inside:
            return True
        message = f"step `{name}` refers to itself"
        context.reporter.report("self-reference", scope.opening.source, expr.span, message)
        return False
    if current is not None and step.index > current.index:
        line = step.node.name.span.line
        message = f"{scope.label} refers to step `{name}`, which is only defined later (line {line})"
        context.reporter.report(
            "forward-reference", scope.opening.source, expr.span, message, hint="put the step it needs before it"
        )
        return False
    where.depends.setdefault(name)
    return True


def _step_attribute(expr: tree.Ref, step: StepInfo, scope: Scope, context: Context) -> KnownType:
    name, attribute = expr.path[0], expr.path[1]
    attributes: Attributes = step.attributes
    if attribute not in attributes and not attributes.any_name:
        message = f"step `{name}` ({step.node.call.target.text}) has no attribute `{attribute}`"
        names = set(attributes) if context.reporter.detailed else set()
        context.reporter.report("unknown-attribute", scope.opening.source, expr.span, message, valid=names, near=attribute)
        return None
    return _path_type(attributes.type_of(attribute), expr.path[2:], expr, scope, context)


def _path_type(
    type_: KnownType, path: tuple[str, ...], expr: tree.InputRef | tree.Ref, scope: Scope, context: Context
) -> KnownType:
    """Return the type at the end of a path into a value; through a step reference the attributes must exist."""
    for name in path:
        if not isinstance(type_, program.NamedType):
            return None
        facet = context.symbols.facets.exact.get(type_.name)
        declared = facet or context.symbols.schemas.exact.get(type_.name)
        if declared is None:
            return None
        attributes = context.tables.attributes(declared)
        if facet is not None and name not in attributes and not attributes.any_name:
            message = f"facet `{type_.name}` has no attribute `{name}`"
            context.reporter.report("unknown-attribute", scope.opening.source, expr.span, message, valid=attributes, near=name)
            return None
        type_ = attributes.type_of(name)
    return type_


def _report_unknown_step(expr: tree.Ref, scope: Scope, context: Context) -> None:
    name = expr.path[0]
    source = scope.opening.source
    few = context.reporter.detailed
    valid = set(scope.visible()) if few else set()
    if name in scope.everywhere:
        message = f"{scope.label} refers to step `{name}`, which belongs to another block"
        where = "steps are visible in their own block and in the bodies below it"
        context.reporter.report("step-of-other-block", source, expr.span, message, valid=valid, hint=where)
        return
    known, _ = scope.inputs.find(name)
    hint = f"write `$.{'.'.join(expr.path)}` for an input" if known else None
    message = f"{scope.label} refers to unknown step `{name}`"
    context.reporter.report("unknown-step", source, expr.span, message, valid=valid, near=name, hint=hint)
