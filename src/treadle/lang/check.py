"""Checks a whole program, declaration by declaration, and collects the bindings for the emitter.

Also warns about declarations that call themselves in every run, directly or through others: such a run never ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.lang import nodes
from treadle.lang.attributes import Attributes, AttributeTables, errors
from treadle.lang.check_block import check_block
from treadle.lang.check_call import check_args, check_default, check_mixin, check_repeated
from treadle.lang.check_expr import infer
from treadle.lang.check_script import check_keys, check_prompt, check_results, check_script
from treadle.lang.check_yield import check_returns, targets_of
from treadle.lang.collection import without_collection
from treadle.lang.diagnostics import Reporter
from treadle.lang.names import Declared, Definition, Kind, Symbols
from treadle.lang.resolution import check_type, check_unique, resolve_facet
from treadle.lang.scope import CheckContext, CheckScope
from treadle.lang.types import UNKNOWN


@without_collection
def check(symbols: Symbols, reporter: Reporter) -> CheckContext:
    """Report every semantic error and warning, in time linear in the size of the program."""
    context = CheckContext(symbols, reporter, AttributeTables(symbols))
    items = [(CheckScope(context, opening), item) for opening in symbols.openings for item in opening.items]
    for scope, item in items:
        if isinstance(item, nodes.Implicit):
            declared = symbols.resolve_facet(item.call.target, scope.opening).found
            if declared is not None:
                context.implied.setdefault(declared.qualified_name, set()).update(arg.name.text for arg in item.call.args)
    for scope, item in items:
        match item:
            case nodes.Facet():
                _check_facet(symbols.declarations[id(item)], item, scope)
            case nodes.Schema():
                _check_fields(item.fields, "duplicate-field", scope)
            case nodes.Implicit():
                _check_implicit(item, scope)
            case nodes.Use():
                _record_use(item, scope)
    _check_keys([(scope, item) for scope, item in items if isinstance(item, nodes.Facet)], context)
    check_recursion(context)
    return context


def _check_keys(facets: list[tuple[CheckScope, nodes.Facet]], context: CheckContext) -> None:
    """Check the keys of scripts, when all references to them are known."""
    with_scripts = [
        (scope, facet, scripts) for scope, facet in facets if (scripts := _scripts(facet)) or facet.pre_script is not None
    ]
    if not with_scripts:
        return
    for _, _, _, meaning in context.bindings.uses:
        if meaning.kind is Kind.SCRIPT and (keys := context.keys_read.setdefault(id(meaning.node), set())) is not None:
            keys.add(meaning.name.text)
    for scope, facet, scripts in with_scripts:
        if facet.pre_script is not None:
            check_keys(facet, facet.pre_script, scope)
        if scripts:
            returns = _returns(context.symbols.declarations[id(facet)], context)
            for script in scripts:
                check_results(script, returns, scope)


def _scripts(facet: nodes.Facet) -> list[nodes.Script]:
    return [block.script for block in facet.blocks if block.script is not None]


def _returns(declared: Declared, context: CheckContext) -> set[str]:
    """Return the names that blocks of a declaration can give: its returns, and those of its mixins without an alias."""
    names = set(context.tables.returns(declared))
    for mixin in declared.mixins:
        target = context.symbols.resolve_facet(mixin.target, declared.opening).found
        if mixin.alias is None and target is not None:
            names.update(context.tables.returns(target))
    return names


def _record_use(use: nodes.Use, scope: CheckScope) -> None:
    space = scope.context.symbols.namespaces.get(use.name.text)
    if space is not None and space.node is not None:
        scope.use(use.name, Definition(Kind.NAMESPACE, space.node.name, UNKNOWN, space.source, space.node))


def _check_fields(params: tuple[nodes.Param, ...], rule: str, scope: CheckScope) -> None:
    check_unique(params, rule, scope)
    for param in params:
        if param.name.text[0] == "_" and rule == "duplicate-parameter":
            scope.report("reserved-parameter", param.name.span, param=param.name.text)
        check_type(param.type, scope)


def _check_facet(declared: Declared, facet: nodes.Facet, scope: CheckScope) -> None:
    _check_fields(facet.params, "duplicate-parameter", scope)
    _check_fields(facet.returns, "duplicate-return", scope)
    attributes = scope.context.tables.inputs(declared)
    scope.inputs = scope.inputs.inside(attributes, may_have_more=attributes.open)
    scope.everywhere = frozenset(step.name.text for block in facet.all_blocks() for step in block.steps)
    _check_signature(declared, facet, scope)
    if facet.pre_script is not None:
        check_script(facet.pre_script, scope, pre=True)
    if facet.prompt is not None:
        check_prompt(facet, facet.prompt, scope)
    if facet.blocks or facet.catch is not None:
        _check_body(declared, facet, scope)
    check_returns(facet, scope)
    _warn_bodiless(facet, scope)


def _check_body(declared: Declared, facet: nodes.Facet, scope: CheckScope) -> None:
    inputs, targets = scope.inputs, targets_of(declared, scope)
    around = scope.nested(targets=targets)
    if facet.kind is nodes.FacetKind.EVENT:  # its blocks run after its handler
        results = inputs.below(Attributes(dict(scope.context.tables.returns(declared))), may_have_more=not facet.returns)
        around = scope.nested(results, targets)
    for block in facet.blocks:
        check_block(block, around)
    if facet.catch is not None:
        failed = inputs.inside(Attributes(errors(scope.opening.source, facet.name, facet.catch)), may_have_more=False)
        check_block(facet.catch, scope.nested(failed, targets))


def _check_signature(declared: Declared, facet: nodes.Facet, scope: CheckScope) -> None:
    tables = scope.context.tables
    for params, table in ((facet.params, tables.params), (facet.returns, tables.returns)):
        for param in params:
            if param.default is not None:
                scope.label = f"the default of `{param.name.text}`"
                scope.filled = frozenset() if params is facet.returns else _filled(facet, param.name.text)
                check_default(param.default, table(declared)[param.name.text], scope.label, scope)
    scope.filled = None
    check_repeated(facet.mixins, scope)
    names = {param.name.text for param in (*facet.params, *facet.returns)}
    for mixin in facet.mixins:
        scope.label = f"mixin `{mixin.target.text}`"
        check_mixin(mixin, scope, host=declared, signature=True)
        if mixin.alias is not None:
            if mixin.alias.text in names or mixin.alias.text == facet.name.text:
                scope.report("alias-clash", mixin.alias.span, alias=mixin.alias.text, facet=facet.name.text)
            names.add(mixin.alias.text)


def _filled(facet: nodes.Facet, name: str) -> frozenset[str] | None:
    """Return the inputs that may be filled into a parameter, as calls pass them on with it; a handler may fill in anything."""
    if facet.kind is nodes.FacetKind.EVENT:
        return None
    filled: set[str] = set()
    for block in facet.all_blocks():
        for step in block.steps:
            passed = {arg.value.path[0] for arg in step.call.args if isinstance(arg.value, nodes.InputRef)}
            filled |= passed if name in passed else set()
    return frozenset(filled)


def _warn_bodiless(facet: nodes.Facet, scope: CheckScope) -> None:
    if facet.kind is nodes.FacetKind.EVENT or facet.blocks or facet.prompt or facet.pre_script or facet.catch:
        return
    if any(param.is_needed for param in facet.returns):
        scope.warn("returns-without-body", facet.name.span, kind=facet.kind, facet=facet.name.text)


def _check_implicit(implicit: nodes.Implicit, scope: CheckScope) -> None:
    call = implicit.call
    declared = resolve_facet(call, scope)
    check_unique(call.args, "duplicate-argument", scope)
    scope.label = f"implicit `{implicit.name.text}`"
    if declared is None:
        for arg in call.args:
            infer(arg.value, scope)
    else:
        attributes = scope.context.tables.inputs(declared)
        scope.inputs = scope.inputs.inside(attributes, may_have_more=attributes.open)
        for arg in call.args:
            if arg.name.text not in attributes and not attributes.open:
                scope.report(
                    "implicit-parameter",
                    arg.name.span,
                    valid=attributes,
                    near=arg.name.text,
                    implicit=implicit.name.text,
                    qualified_name=declared.qualified_name,
                )
        check_args(call.args, declared, scope.context.tables.params(declared), scope)
    for mixin in call.mixins:
        check_mixin(mixin, scope, host=declared)


# --- recursion -------------------------------------------------------------------------------------------------------

_Edge = tuple[str, nodes.Call]
_SHOWN = 5


def check_recursion(context: CheckContext) -> None:
    """Report each call that closes a circle of calls; those in `when`, `foreach` and `catch`, or caught, may not happen or end."""
    graph: dict[str, tuple[CheckScope, list[_Edge]]] = {}
    for opening in context.symbols.openings:
        for item in opening.items:
            if isinstance(item, nodes.Facet) and item.blocks and item.catch is None:
                graph.setdefault(
                    opening.qualify(item.name.text), (CheckScope(context, opening), list(_certain(item.blocks, context)))
                )
    done: set[str] = set()
    for start in graph:
        if start not in done:
            _follow(start, graph, done)


def _follow(start: str, graph: dict[str, tuple[CheckScope, list[_Edge]]], done: set[str]) -> None:
    path = {start: iter(graph[start][1])}  # the calls from the start to here, with the remaining calls of each
    while path:
        name = next(reversed(path))
        edge = next(path[name], None)
        if edge is None:
            done.add(name)
            del path[name]
        elif edge[0] in path:
            circle = [*path][[*path].index(edge[0]) :]
            _warn(edge[1], circle, graph[name][0])
        elif edge[0] in graph and edge[0] not in done:
            path[edge[0]] = iter(graph[edge[0]][1])


def _certain(blocks: tuple[nodes.Block, ...], context: CheckContext) -> Iterator[_Edge]:
    """Yield the calls that run whenever these blocks run, with their qualified callees."""
    pending = list(blocks)
    while pending:
        block = pending.pop()
        if block.foreach is not None:
            continue
        for statement in block.statements:
            if isinstance(statement, nodes.Step) and statement.catch is None:
                callee = context.bindings.callees.get(id(statement.call))
                if statement.body is not None:
                    pending.append(statement.body)  # in place of the callee's own blocks
                elif callee is not None:
                    yield callee, statement.call


def _warn(call: nodes.Call, circle: list[str], scope: CheckScope) -> None:
    if len(circle) == 1:
        scope.warn("endless-recursion", call.target.span, name=circle[0])
    else:
        callees = [*circle[:_SHOWN], "..."] if len(circle) > _SHOWN else circle
        path = " -> ".join([*callees, circle[0]])
        scope.warn("endless-recursion:circle", call.target.span, path=path)
