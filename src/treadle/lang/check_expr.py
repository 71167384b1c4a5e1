"""Infers the type of every expression: each reference must resolve, and operators must fit the types of their operands.

A condition can find that a reference is not null, within the blocks and operands that run only then. All true cases of a `when`
run, and `case _` only if none is true: a case knows what its own condition says if it is true, and the default what every
condition says if it is false.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from treadle.lang import hints, nodes
from treadle.lang.check_operator import check_binary, check_function, check_index, check_unary
from treadle.lang.check_script import check_placeholders
from treadle.lang.diagnostics import replace
from treadle.lang.names import Kind
from treadle.lang.scope import CheckScope, Known, StepInfo
from treadle.lang.types import (
    BOOLEAN,
    DOUBLE,
    LONG,
    NULL,
    STRING,
    UNKNOWN,
    ListType,
    NamedType,
    OptionalType,
    RecordType,
    Type,
    describe,
    is_anything,
    join,
    list_of,
    may_be,
    required,
)

_NOTHING: frozenset[Known] = frozenset()


def known_if(outcome: bool, expr: nodes.Expr, scope: CheckScope) -> frozenset[Known]:
    """Return the references that are not null if the condition is true, or if it is false."""
    match expr:
        case nodes.Unary(operator="!"):
            return known_if(not outcome, expr.operand, scope)
        case nodes.Binary(operator="==" | "!="):
            if (expr.operator == "!=") is outcome:
                for value, other in ((expr.left, expr.right), (expr.right, expr.left)):
                    if isinstance(other, nodes.Literal) and other.value is None and (key := key_of(value, scope)) is not None:
                        return frozenset([key])
        case nodes.Binary(operator="&&" | "||"):
            return _all_if(outcome, expr.operator, (expr.left, expr.right), scope)
        case nodes.Chain() if expr.operators[0] in ("&&", "||"):
            return _all_if(outcome, expr.operators[0], expr.operands, scope)
    return _NOTHING


def _all_if(outcome: bool, operator: str, operands: Iterable[nodes.Expr], scope: CheckScope) -> frozenset[Known]:
    """A true `&&` has only true operands, a false `||` only false ones."""
    if (operator == "&&") is not outcome:
        return _NOTHING
    return frozenset().union(*(known_if(outcome, operand, scope) for operand in operands))


def key_of(expr: nodes.Expr, scope: CheckScope) -> Known | None:
    """Resolve a reference: the owner of its first name, and the path."""
    if isinstance(expr, nodes.InputRef):
        owner: object = next((names for names, _ in scope.inputs.layers if names.find(expr.path[0]) is not None), None)
    elif isinstance(expr, nodes.Ref):
        hit = scope.find_loop_or_step(expr.path[0])
        owner = None if hit is None else hit[1] or hit[0].loop
    else:
        return None
    return None if owner is None else (id(owner), expr.path)


_LITERALS: dict[type, Type] = {str: STRING, int: LONG, float: DOUBLE, bool: BOOLEAN, type(None): NULL}

# Words before a reference in other languages, which AFL does not need.
_OWNERS = frozenset(["this", "self", "params", "inputs", "input", "args", "ctx", "context", "steps", "results", "outputs"])


def infer(expr: nodes.Expr, scope: CheckScope) -> Type:
    """Check an expression, record its references, and return its type."""
    type_ = _INFER[type(expr)](expr, scope)
    if type(type_) is OptionalType and is_anything(type_.element):
        type_ = type_.element
    scope.context.bindings.types[id(expr)] = type_
    return type_


def require_boolean(expr: nodes.Expr, scope: CheckScope, what: str) -> None:
    """Check a condition; a known type must be Boolean."""
    type_ = infer(expr, scope)
    if not may_be(type_, BOOLEAN):
        hint = "compare it with something, as in `$.x == 1`" if isinstance(expr, nodes.Literal) else None
        scope.report("condition-type", expr.span, hint=hint, what=what, type=describe(type_))
    elif isinstance(type_, OptionalType):
        scope.warn("condition-type:null", expr.span, what=what)
    elif isinstance(expr, nodes.Literal):
        scope.warn("constant-condition", expr.span, what=what, outcome="true" if expr.value else "false")


def whole_number(expr: nodes.Expr) -> int | None:
    """Return the value of a whole number as written, with its sign; None for other expressions."""
    if isinstance(expr, nodes.Unary) and expr.operator == "-" and isinstance(expr.operand, nodes.Literal):
        return -expr.operand.value if type(expr.operand.value) is int else None
    return expr.value if isinstance(expr, nodes.Literal) and type(expr.value) is int else None


def _check_range(expr: nodes.Expr, value: int, scope: CheckScope) -> Type:
    if not -(1 << 63) <= value < 1 << 63:
        scope.warn("number-range", expr.span)
    return LONG


def _literal(expr: nodes.Literal, scope: CheckScope) -> Type:
    value = expr.value
    if type(value) is int:
        return _check_range(expr, value, scope)
    if scope.filled is not None and isinstance(value, str) and ("{" in value or "." in value):
        check_placeholders(expr, scope.filled, scope)
    return _LITERALS[type(value)]


def _concat(expr: nodes.Concat, scope: CheckScope) -> Type:
    for operand in expr.operands:
        infer(operand, scope)
    return STRING


def _binary(expr: nodes.Binary, scope: CheckScope) -> Type:
    left, outer = infer(expr.left, scope), scope.known
    _learn(expr.operator, expr.left, scope)
    right = infer(expr.right, scope)
    scope.known = outer
    return check_binary(expr, left, right, scope)


def _chain(expr: nodes.Chain, scope: CheckScope) -> Type:
    first = expr.operands[0]
    type_, outer, before = infer(first, scope), scope.known, first
    for operator, operand in zip(expr.operators, expr.operands[1:], strict=True):
        pair = nodes.Binary(operator, first, operand, span=operand.span)
        _learn(operator, before, scope)
        type_ = check_binary(pair, type_, infer(operand, scope), scope)
        before = operand
    scope.known = outer
    return type_


def _learn(operator: str, left: nodes.Expr, scope: CheckScope) -> None:
    """Note what holds to the right of `&&` or `||`, which is evaluated only if the left side is true, or false."""
    if operator in ("&&", "||"):
        scope.known |= known_if(operator == "&&", left, scope)


def _unary(expr: nodes.Unary, scope: CheckScope) -> Type:
    value = whole_number(expr)
    if value is not None:
        scope.context.bindings.types[id(expr.operand)] = LONG
        return _check_range(expr, value, scope)
    return check_unary(expr, infer(expr.operand, scope), scope)


def _array(expr: nodes.ArrayLiteral, scope: CheckScope) -> Type:
    return list_of(join([infer(element, scope) for element in expr.elements]))


def check_keys_once(expr: nodes.MapLiteral, scope: CheckScope) -> None:
    """Warn about keys that a map has twice, of which the last value counts."""
    seen: set[str] = set()
    for entry in expr.entries:
        if entry.name.text in seen:
            scope.warn("duplicate-key", entry.name.span, name=entry.name.text)
        seen.add(entry.name.text)


def _map(expr: nodes.MapLiteral, scope: CheckScope) -> Type:
    check_keys_once(expr, scope)
    types = {entry.name.text: infer(entry.value, scope) for entry in expr.entries}
    return RecordType(tuple(types.items()))


def _index(expr: nodes.Index, scope: CheckScope) -> Type:
    target, index = infer(expr.target, scope), infer(expr.index, scope)
    return check_index(expr, target, index, scope)


def _function(expr: nodes.FunctionCall, scope: CheckScope) -> Type:
    return check_function(expr, [infer(arg, scope) for arg in expr.args], scope)


def _too_deep(expr: nodes.TooDeep, scope: CheckScope) -> Type:
    scope.report("too-deep", expr.span, limit=nodes.MAX_DEPTH, what="this expression")
    return UNKNOWN


def _input(expr: nodes.InputRef, scope: CheckScope) -> Type:
    definition, unsure = scope.inputs.find(expr.path[0])
    if definition is None:
        if not unsure:
            _report_unknown_input(expr, scope)
        return UNKNOWN
    scope.use(expr, definition)
    return UNKNOWN if unsure else _follow(definition.type, expr, 1, scope)


def _report_unknown_input(expr: nodes.InputRef, scope: CheckScope) -> None:
    name = expr.path[0]
    hit = scope.find_loop_or_step(name)
    hint, fixes = None if any(True for _ in scope.inputs) else "there are no inputs here", []
    if hit is not None and hit[1] is not None:
        hint = f"`{name}` is a step: write `{'.'.join(expr.path)}` without `$.`"
        if len(expr.path) > 1 and name in set(scope.visible()):
            fixes = [replace(f"Write `{'.'.join(expr.path)}`", expr.span, ".".join(expr.path))]
    scope.report("unknown-input", expr.span, valid=scope.inputs, near=name, hint=hint, fixes=fixes, label=scope.label)


def _reference(expr: nodes.Ref, scope: CheckScope) -> Type:
    hit = scope.find_loop_or_step(expr.path[0])
    if hit is None:
        _report_unknown_step(expr, scope)
        return UNKNOWN
    where, step = hit
    if step is None:
        assert where.loop is not None
        scope.context.bindings.loops.add(id(expr))
        scope.use(expr, where.loop)
        return _follow(where.loop.type, expr, 1, scope)
    if not note_step(expr, where, step, scope):
        return UNKNOWN
    if step.definition.kind is Kind.VALUE:
        scope.context.bindings.values.add(id(expr))
        return _follow(step.definition.type, expr, 1, scope)
    if len(expr.path) == 1:
        _report_bare_step(expr, step, scope)
        return UNKNOWN
    return _step_attribute(expr, step, scope)


def _report_bare_step(expr: nodes.Ref, step: StepInfo, scope: CheckScope) -> None:
    name = expr.path[0]
    node, fixes = None if step.declared is None else step.declared.node, []
    results = [param.name.text for param in node.returns] if isinstance(node, nodes.Facet) else []
    hint = f"name one of its attributes, as in `{name}.{next(iter([*results, *step.attributes]), 'attribute')}`"
    if len(results) == 1:
        fixes = [replace(f"Write `{name}.{results[0]}`", expr.span, f"{name}.{results[0]}")]
    if isinstance(node, nodes.Schema):
        fields = ", ".join(f"{attribute}: {name}.{attribute}" for attribute in step.attributes)
        hint = f"name one of its fields, or write all of them as a map: `#{{{fields}}}`"
    scope.report("bare-step", expr.span, hint=hint, fixes=fixes, name=name)


def note_step(expr: nodes.Ref, where: CheckScope, step: StepInfo, scope: CheckScope) -> bool:
    """Record the reference to a step and the dependency on it; report forward and self references."""
    current, name = where.current, expr.path[0]
    scope.use(expr, step.definition)
    if current is not None and step is current:
        if where.inside:
            return True
        scope.report("self-reference", expr.span, name=name)
        return False
    if current is not None and step.index > current.index:
        line = step.node.name.span.line
        scope.report("forward-reference", expr.span, label=scope.label, name=name, line=line)
        return False
    where.depends.setdefault(name)
    return True


def check_after(steps: tuple[nodes.Name, ...], scope: CheckScope) -> None:
    """Check the steps that a statement follows without reading them."""
    if steps:
        scope.extend("after", steps[0].span.to(steps[-1].span))
    for step in steps:
        expr, name, what = nodes.Ref((step.text,), span=step.span), step.text, None
        hit = scope.find_loop_or_step(name)
        if hit is not None and hit[1] is not None:
            note_step(expr, hit[0], hit[1], scope)
            continue
        if hit is not None:
            what = "a loop variable"
        elif name not in scope.everywhere and scope.inputs.find(name)[0] is not None:
            what = "an input, which is there from the start"
        if what is None:
            _report_unknown_step(expr, scope, inputs=False)
        else:
            scope.report("unknown-step:after", expr.span, valid=_steps(scope), name=name, what=what)


def _steps(scope: CheckScope) -> set[str]:
    """Return the steps that `after` can name here."""
    return {name for name in scope.visible() if (hit := scope.find_loop_or_step(name)) is not None and hit[1] is not None}


def _step_attribute(expr: nodes.Ref, step: StepInfo, scope: CheckScope) -> Type:
    name, attribute = expr.path[0], expr.path[1]
    attributes = step.attributes
    definition = attributes.find(attribute)
    if definition is None:
        if not attributes.any_name:
            say = scope.warn if attributes.lenient else scope.report
            say(
                "unknown-attribute",
                expr.span,
                valid=attributes,
                near=attribute,
                hint=_undeclared(step, attribute),
                name=name,
                target=step.node.call.target.text,
            )
        return UNKNOWN
    scope.use(expr, definition, 1)
    if attribute in step.absent and scope.current is not step:
        scope.warn("absent-value", expr.span, name=name, attribute=attribute, reason=step.absent[attribute])
    return _follow(definition.type, expr, 2, scope)


def _undeclared(step: StepInfo, attribute: str) -> str | None:
    node = None if step.declared is None else step.declared.node
    if isinstance(node, nodes.Facet) and node.kind is nodes.FacetKind.EVENT and not node.returns:
        head = f"{node.name.text}({'...' if node.params else ''})"
        return f"declare what its handler returns, as in `event facet {head} => ({attribute}: Json)`"
    return None


def _follow(type_: Type, expr: nodes.InputRef | nodes.Ref, start: int, scope: CheckScope) -> Type:
    """Return the type at the end of a path into a value of the given type."""
    key = key_of(expr, scope) if scope.known else None
    owner = 0 if key is None else key[0]
    for part in range(start, len(expr.path)):
        if is_anything(type_):
            return UNKNOWN
        name = expr.path[part]
        if isinstance(type_, OptionalType):
            type_, path = type_.element, shown_path(expr, part)
            if (owner, expr.path[:part]) not in scope.known:
                hint = hints.WITHOUT_NULL.format(path)
                scope.warn("type-mismatch:null", expr.span, hint=hint, shown=path, name=name)
        if isinstance(type_, RecordType):
            fields = dict(type_.fields)
            if name not in fields:
                return _report_no_field(type_, part, list(fields), expr, scope)
            type_ = fields[name]
            continue
        members = scope.context.tables.members(type_)
        member = None if members is None else members.find(name)
        if member is not None:
            scope.use(expr, member, part)
            type_ = member.type
            if member.kind is Kind.FIELD and isinstance(type_, OptionalType):
                scope.context.bindings.optional.setdefault(id(expr), set()).add(part)
        elif members is None or not isinstance(type_, NamedType) or type_.name in scope.context.symbols.schemas.exact:
            return _report_no_field(type_, part, list(members or ()), expr, scope)
        else:
            if not members.any_name:
                say = scope.warn if members.lenient else scope.report
                say("unknown-attribute:facet", expr.span, valid=members, near=name, type=type_.name)
            return UNKNOWN
    return required(type_) if (owner, expr.path) in scope.known else type_


def shown_path(expr: nodes.InputRef | nodes.Ref, part: int | None = None) -> str:
    """Return a path, or its beginning, as written."""
    return ("$." if isinstance(expr, nodes.InputRef) else "") + ".".join(expr.path[:part])


def _report_no_field(type_: Type, part: int, names: list[str], expr: nodes.InputRef | nodes.Ref, scope: CheckScope) -> Type:
    """Warn about a field that a value does not have."""
    path = shown_path(expr, part)
    kind = f"a `{type_.name}`" if names and isinstance(type_, NamedType) else describe(type_)
    hint = "take one element, as in `[0]`, or loop over it with `foreach`" if isinstance(type_, ListType) else None
    scope.warn("unknown-field:value", expr.span, valid=names, near=expr.path[part], hint=hint, value=path, kind=kind)
    return UNKNOWN


def _report_unknown_step(expr: nodes.Ref, scope: CheckScope, *, inputs: bool = True) -> None:
    name = expr.path[0]
    valid = set(scope.visible()) if inputs else _steps(scope)
    if name in scope.everywhere:
        scope.report("step-of-other-block", expr.span, valid=valid, label=scope.label, name=name)
        return
    rest = expr.path[1:] if name in _OWNERS else expr.path
    definition, unsure = scope.inputs.find(rest[0]) if rest and inputs else (None, False)
    meant = f"$.{'.'.join(rest)}" if definition is not None or (unsure and rest is expr.path) else None
    hint = f"write `{meant}` for an input" if meant else None
    if rest and rest[0] in valid and (len(rest) > 1 or scope.find_loop_or_step(rest[0]) == (scope, None)):
        meant = ".".join(rest)
        hint = f"write `{meant}`"
    fixes = [replace(f"Write `{meant}`", expr.span, meant)] if meant and (definition is not None or rest is not expr.path) else []
    scope.report("unknown-step", expr.span, valid=valid, near=name, hint=hint, fixes=fixes, label=scope.label)


_INFER: dict[type, Callable[[Any, CheckScope], Type]] = {
    nodes.Literal: _literal,
    nodes.InputRef: _input,
    nodes.Ref: _reference,
    nodes.Concat: _concat,
    nodes.Binary: _binary,
    nodes.Chain: _chain,
    nodes.Unary: _unary,
    nodes.ArrayLiteral: _array,
    nodes.MapLiteral: _map,
    nodes.Index: _index,
    nodes.FunctionCall: _function,
    nodes.TooDeep: _too_deep,
}
