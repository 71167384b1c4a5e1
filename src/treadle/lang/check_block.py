"""Checks blocks: steps in order, nested bodies, yields to valid targets; computes the dependencies of each statement.

All cases whose condition is true run, and of the values that they yield the last one counts; other languages take the first
case. So cases that can both be true and yield the same return cause a warning.
"""

from __future__ import annotations

from math import inf
from typing import assert_never

from msgspec import structs

from treadle.lang import nodes
from treadle.lang.attributes import Attributes
from treadle.lang.check_call import check_call
from treadle.lang.check_expr import check_after, infer, known_if, require_boolean
from treadle.lang.check_script import check_script
from treadle.lang.check_yield import check_yields, fails, given_although_failed, given_by, targets_inside
from treadle.lang.diagnostics import Edit, Fix
from treadle.lang.names import Declared, Definition, Kind
from treadle.lang.resolution import check_unique
from treadle.lang.scope import CheckScope, StepInfo, YieldTarget
from treadle.lang.types import (
    JSON,
    LONG,
    STRING,
    UNKNOWN,
    ListType,
    Misfit,
    NamedType,
    RecordType,
    Type,
    describe,
    is_anything,
    list_of,
    misfit,
    required,
    words,
)


def check_block(block: nodes.Block, around: CheckScope) -> None:
    """Check one block and everything below it."""
    if block.too_deep:
        around.report("too-deep", block.span, limit=nodes.MAX_BLOCKS, what="this block")
        return
    if block.script is not None:
        check_script(block.script, around)
        return
    if block.cases is not None:
        _check_cases(block, block.cases, around.nested(label="case"))
        return
    scope = around.nested()
    if block.foreach is not None:
        scope.loop = loop = _check_foreach(block.foreach, around.nested(label="foreach"))
        _check_mode(block.foreach, around.targets.own, loop.type, scope)
        scope.inputs = around.inputs.inside(Attributes({loop.name.text: loop}), may_have_more=False)
    scope.context.bindings.scopes.append((block.span, scope))
    _check_statements(block, scope)


def _check_foreach(foreach: nodes.Foreach, scope: CheckScope) -> Definition:
    """Check the list, and return the loop variable."""
    type_ = required(infer(foreach.iterable, scope))
    if not isinstance(type_, ListType) and not is_anything(type_):
        scope.warn("foreach-type", foreach.iterable.span, variable=foreach.variable.text, type=describe(type_))
    element = type_.element if isinstance(type_, ListType) else UNKNOWN
    return Definition(Kind.LOOP, foreach.variable, element, scope.opening.source, foreach)


def _check_mode(foreach: nodes.Foreach, owner: YieldTarget, element: Type, scope: CheckScope) -> None:
    """Check that the return that collects the errors of a foreach can hold them."""
    if foreach.mode is not None:
        scope.extend(foreach.mode.text, foreach.mode.span)
    name = foreach.failed
    if name is None:
        return
    definition = (owner.returns or {}).get(name.text)
    if definition is None:
        if owner.declared is not None:
            scope.context.misyielded[id(owner.declared.node)] = None
        valid = owner.returns or ()
        scope.report("collect-errors:missing", name.span, valid=valid, near=name.text, owner=owner.key)
        return
    scope.use(name, definition)
    error = RecordType((("index", LONG), ("item", element), ("error", STRING), ("error_type", STRING)))
    wrong = misfit(list_of(error), definition.type, scope.context.tables.fields)
    if wrong is not None or required(definition.type) == JSON:
        scope.report(
            "collect-errors:type", name.span, name=name.text, owner=owner.key, type=describe(definition.type), detail=_field(wrong)
        )


def _field(wrong: Misfit | None) -> str:
    """Return which field of the schema does not suit the errors, as a clause."""
    name = "" if wrong is None else wrong.path.removeprefix("[...].")
    if wrong is None or name == wrong.path:
        return ""
    if wrong.wanted is None:
        return f", which has no field `{name}`"
    if wrong.found is None:
        return f", and errors have no `{name}`"
    actual = f"the items are {words(wrong.found)}" if name == "item" else f"it is {describe(wrong.found)}"
    return f", whose `{name}` must be {describe(wrong.wanted)}, but {actual}"


def _check_cases(block: nodes.Block, cases: tuple[nodes.Case, ...], scope: CheckScope) -> None:
    defaults = [case for case in cases if case.condition is None]
    if len(defaults) != 1 or cases[-1].condition is not None:
        scope.report("when-default", defaults[0].span if defaults else block.span)
    check_overlap(cases, scope)
    before = otherwise = scope.known
    for case in cases:
        non_null = otherwise
        if case.condition is not None:
            require_boolean(case.condition, scope, "a case condition")
            non_null = before | known_if(True, case.condition, scope)
            otherwise |= known_if(False, case.condition, scope)
        inner = scope.nested()
        inner.known = non_null
        check_block(case.block, inner)


def _check_statements(block: nodes.Block, scope: CheckScope) -> None:
    steps = block.steps
    check_unique(steps, "duplicate-step", scope)
    _check_order(block, scope)
    for index, step in enumerate(steps):
        if step.name.text not in scope.steps:
            scope.steps[step.name.text] = _step_info(step, index, scope)
    for statement in block.statements:
        match statement:
            case nodes.Step():
                info = scope.steps[statement.name.text]
                if info.node is not statement:
                    info = _step_info(statement, info.index, scope)
                scope.begin(f"step `{statement.name.text}`", info)
                _check_step(statement, info, scope)
            case nodes.Sys(nodes.SysKind.LOG):
                scope.begin("sys.log")
                check_unique(statement.args, "duplicate-argument", scope)
                for arg in statement.args:
                    infer(arg.value, scope)
                check_after(statement.after, scope)
            case nodes.Sys():
                scope.begin("sys.assert")
                if statement.condition is not None and not fails(statement):
                    require_boolean(statement.condition, scope, "the condition of sys.assert")
                check_after(statement.after, scope)
            case nodes.Yield():
                continue
            case _:
                assert_never(statement)
        scope.context.bindings.depends[id(statement)] = tuple(scope.depends)
    check_yields(block.yields, scope)


def _check_order(block: nodes.Block, scope: CheckScope) -> None:
    yielded: nodes.Yield | None = None
    for statement in block.statements:
        if type(statement) is nodes.Yield:
            yielded = yielded or statement
        elif yielded is not None and isinstance(statement, nodes.Step):
            scope.report("step-after-yield", statement.name.span, step=statement.name.text, line=yielded.span.line)


def _step_info(step: nodes.Step, index: int, scope: CheckScope) -> StepInfo:
    symbols, opening = scope.context.symbols, scope.opening
    if step.value is not None:
        return StepInfo(step, index, None, Definition(Kind.VALUE, step.name, UNKNOWN, opening.source, step), frozenset())
    declared = symbols.resolve_callee(step.call.target, opening).found
    facets: set[str] = set()
    if declared is not None:
        facets.add(declared.qualified_name)
        places = [(mixin, opening) for mixin in step.call.mixins]
        if isinstance(declared.node, nodes.Facet):
            places += [(mixin, declared.opening) for mixin in declared.node.mixins]
        for mixin, where in places:
            mixed_in = symbols.resolve_facet(mixin.target, where).found
            if mixed_in is not None:
                facets.add(mixed_in.qualified_name)
    type_ = UNKNOWN if declared is None else NamedType(declared.qualified_name)
    definition = Definition(Kind.STEP, step.name, type_, opening.source, step, declared)
    return StepInfo(step, index, declared, definition, frozenset(facets))


def _report_uncalled(value: nodes.Expr, scope: CheckScope) -> bool:
    """Report a value that names a facet or schema instead of calling it, and return whether it does."""
    if not isinstance(value, nodes.Ref):
        return False
    first, name = value.path[0], nodes.Name(".".join(value.path), value.span)
    declared = scope.context.symbols.resolve_callee(name, scope.opening).found
    if declared is None or scope.find_loop_or_step(first) is not None or first in scope.everywhere:
        return False
    fix = Fix("Insert `()`", (Edit(value.span.end, "()"),))
    what = "schema" if isinstance(declared.node, nodes.Schema) else "facet"
    scope.report("unknown-step:uncalled", value.span, fixes=[fix], name=name.text, what=what)
    return True


def _check_step(step: nodes.Step, info: StepInfo, scope: CheckScope) -> None:
    declared = info.declared
    if step.value is not None:
        scope.extend("value", step.value.span)
        if not _report_uncalled(step.value, scope):
            info.definition.type = infer(step.value, scope)
        return
    check_call(step.call, scope)
    check_after(step.after, scope)
    info.attributes = scope.context.tables.of_call(step, declared, scope.opening, scope.context.bindings.types)
    if step.body is None and step.catch is None:
        return
    scope.inside = True
    if declared is not None and isinstance(declared.node, nodes.Schema):
        scope.warn("body-on-schema", step.name.span, step=step.name.text)
    inputs = scope.inputs.inside(info.attributes, may_have_more=_results_open(declared))
    inner = scope.nested(inputs, targets_inside(scope.targets, step, declared, scope))
    for block in (step.body, step.catch):
        if block is not None:
            check_block(block, inner)
    if declared is not None and isinstance(declared.node, nodes.Facet):
        info.absent = _absent(step, declared.node, scope)


def _absent(step: nodes.Step, facet: nodes.Facet, scope: CheckScope) -> dict[str, str]:
    """Return the returns of a step that its own body or catch, which replace those of its facet, may leave without a value."""
    reasons: dict[str, str] = {}
    names = [param.name.text for param in facet.returns if param.is_needed]
    if step.catch is not None:
        blocks = structs.replace(facet, blocks=()) if step.body is not None else facet
        yielded = given_although_failed(blocks, step.catch, scope)
        for name in names:
            if name not in yielded.always and not yielded.open:
                reasons[name] = "the step's `catch` does not yield it"
    if step.body is not None and facet.kind is not nodes.FacetKind.EVENT:
        yielded = given_by((step.body,), scope)
        for name in names:
            if name not in yielded.always and not yielded.open:
                reasons[name] = f"the step's body replaces that of `{facet.name.text}` and does not yield it"
    params = {param.name.text for param in facet.params}
    return {name: why for name, why in reasons.items() if name not in params}


def _results_open(declared: Declared | None) -> bool:
    """Return whether a step may have undeclared attributes: external facets, pre-scripts, undeclared event results."""
    if declared is None:
        return True
    node = declared.node
    if isinstance(node, nodes.Schema):
        return False
    return node.pre_script is not None or (node.kind is nodes.FacetKind.EVENT and not node.returns)


# --- overlapping cases -----------------------------------------------------------------------------------------------

_Interval = tuple[float, bool, float, bool]
"""The low end, whether it is included, the high end, whether it is included."""
_MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}


def check_overlap(cases: tuple[nodes.Case, ...], scope: CheckScope) -> None:
    """Warn about a case that overlaps an earlier one and yields the same return."""
    before: list[tuple[nodes.Case, nodes.Expr, set[str]]] = []
    for case in cases:
        if case.condition is None or len(before) > 100:
            return
        yielded = {arg.name.text for statement in case.block.yields for arg in statement.call.args}
        for other, condition, names in before:
            both = sorted(yielded & names)
            if both and _overlap(case.condition, condition):
                scope.warn("overlapping-cases", case.condition.span, line=other.span.line, name=both[0])
                break
        before.append((case, case.condition, yielded))


def _overlap(one: nodes.Expr, other: nodes.Expr) -> bool:
    """Return whether the conditions are the same, or compare the same value with numbers so that both can hold."""
    if one == other:
        return True
    first, second = _interval(one), _interval(other)
    if first is None or second is None or first[0] != second[0]:
        return False
    return _meet(first[1], second[1]) is not None


def _interval(expr: nodes.Expr) -> tuple[nodes.Expr, _Interval] | None:
    """Return the reference that a condition compares with numbers, and the numbers for which it holds."""
    if not isinstance(expr, nodes.Binary):
        return None
    if expr.operator == "&&":
        left, right = _interval(expr.left), _interval(expr.right)
        if left is None or right is None or left[0] != right[0]:
            return None
        both = _meet(left[1], right[1])
        return None if both is None else (left[0], both)
    operator, value, number = expr.operator, expr.left, expr.right
    if isinstance(value, nodes.Literal):
        operator, value, number = _MIRRORED.get(operator, operator), number, value
    if not isinstance(value, nodes.InputRef | nodes.Ref) or not isinstance(number, nodes.Literal):
        return None
    if isinstance(number.value, bool) or not isinstance(number.value, int | float):
        return None
    at = number.value
    match operator:
        case "<" | "<=":
            return value, (-inf, False, at, operator == "<=")
        case ">" | ">=":
            return value, (at, operator == ">=", inf, False)
        case "==":
            return value, (at, True, at, True)
    return None


def _meet(one: _Interval, other: _Interval) -> _Interval | None:
    low = max((one[0], not one[1]), (other[0], not other[1]))
    high = min((one[2], one[3]), (other[2], other[3]))
    if low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1])):
        return None
    return low[0], not low[1], high[0], high[1]
