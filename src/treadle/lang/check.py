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
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.names import Declared, Definition, Kind, Opening, Symbols
from treadle.lang.resolution import check_type, check_unique, resolve_facet
from treadle.lang.scope import CheckContext, CheckScope, Inputs
from treadle.lang.types import UNKNOWN


@without_collection
def check(symbols: Symbols, reporter: Reporter) -> CheckContext:
    """Report every semantic error and warning, in time linear in the size of the program."""
    context = CheckContext(symbols, reporter, AttributeTables(symbols))
    items = [(opening, item) for opening in symbols.openings for item in opening.items]
    for opening, item in items:
        if isinstance(item, nodes.Implicit) and (declared := symbols.resolve_facet(item.call.target, opening).found) is not None:
            context.implied.setdefault(declared.qualified_name, set()).update(arg.name.text for arg in item.call.args)
    for opening, item in items:
        match item:
            case nodes.Facet():
                _check_facet(symbols.declarations[id(item)], item, context)
            case nodes.Schema():
                _check_fields(item.fields, "duplicate-field", opening, context)
            case nodes.Implicit():
                _check_implicit(item, opening, context)
            case nodes.Use():
                _record_use(item, opening, context)
    _check_keys(context)
    check_recursion(context)
    return context


def _check_keys(context: CheckContext) -> None:
    """Check the keys of scripts, when all references to them are known."""
    with_scripts = [
        (opening, item, scripts)
        for opening in context.symbols.openings
        for item in opening.items
        if isinstance(item, nodes.Facet) and ((scripts := _scripts(item)) or item.pre_script is not None)
    ]
    if not with_scripts:
        return
    for _, _, _, meaning in context.bindings.uses:
        if meaning.kind is Kind.SCRIPT and (keys := context.keys_read.setdefault(id(meaning.node), set())) is not None:
            keys.add(meaning.name.text)
    for opening, item, scripts in with_scripts:
        if item.pre_script is not None:
            check_keys(item, item.pre_script, opening.source, context)
        if scripts:
            returns = _returns(context.symbols.declarations[id(item)], context)
            for script in scripts:
                check_results(script, returns, opening.source, context)


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


def _record_use(use: nodes.Use, opening: Opening, context: CheckContext) -> None:
    space = context.symbols.namespaces.get(use.name.text)
    if space is not None and space.node is not None:
        context.use(opening.source, use.name, Definition(Kind.NAMESPACE, space.node.name, UNKNOWN, space.source, space.node))


def _check_fields(params: tuple[nodes.Param, ...], rule: str, opening: Opening, context: CheckContext) -> None:
    check_unique(params, rule, opening, context)
    for param in params:
        if param.name.text[0] == "_" and rule == "duplicate-parameter":
            context.reporter.report("reserved-parameter", opening.source, param.name.span, param=param.name.text)
        check_type(param.type, opening, context)


def _check_facet(declared: Declared, facet: nodes.Facet, context: CheckContext) -> None:
    opening, source = declared.opening, declared.opening.source
    _check_fields(facet.params, "duplicate-parameter", opening, context)
    _check_fields(facet.returns, "duplicate-return", opening, context)
    attributes = context.tables.inputs(declared)
    inputs = Inputs().inside(attributes, may_have_more=attributes.open)
    root = CheckScope(opening, inputs, everywhere=frozenset(step.name.text for block in facet.all_blocks() for step in block.steps))
    _check_signature(declared, facet, root, context)
    if facet.pre_script is not None:
        check_script(facet.pre_script, inputs, source, context, pre=True)
    if facet.prompt is not None:
        check_prompt(facet, facet.prompt, source, context)
    if facet.blocks or facet.catch is not None:
        _check_body(declared, facet, root, context)
    check_returns(facet, opening, context)
    _warn_bodiless(facet, opening, context)


def _check_body(declared: Declared, facet: nodes.Facet, root: CheckScope, context: CheckContext) -> None:
    inputs, opening, targets = root.inputs, declared.opening, targets_of(declared, context)
    around = root.nested(targets=targets)
    if facet.kind is nodes.FacetKind.EVENT:  # its blocks run after its handler
        results = inputs.below(Attributes(dict(context.tables.returns(declared))), may_have_more=not facet.returns)
        around = root.nested(results, targets)
    for block in facet.blocks:
        check_block(block, around, context)
    if facet.catch is not None:
        failed = inputs.inside(Attributes(errors(opening.source, facet.name, facet.catch)), may_have_more=False)
        check_block(facet.catch, root.nested(failed, targets), context)


def _check_signature(declared: Declared, facet: nodes.Facet, root: CheckScope, context: CheckContext) -> None:
    source = declared.opening.source
    for params, table in ((facet.params, context.tables.params), (facet.returns, context.tables.returns)):
        for param in params:
            if param.default is not None:
                definitions = table(declared)
                root.label = f"the default of `{param.name.text}`"
                root.filled = frozenset() if params is facet.returns else _filled(facet, param.name.text)
                check_default(param.default, definitions[param.name.text], root.label, root, context)
    root.filled = None
    check_repeated(facet.mixins, declared.opening, context)
    names = {param.name.text for param in (*facet.params, *facet.returns)}
    for mixin in facet.mixins:
        root.label = f"mixin `{mixin.target.text}`"
        check_mixin(mixin, root, context, host=declared, signature=True)
        if mixin.alias is not None:
            if mixin.alias.text in names or mixin.alias.text == facet.name.text:
                context.reporter.report("alias-clash", source, mixin.alias.span, alias=mixin.alias.text, facet=facet.name.text)
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


def _warn_bodiless(facet: nodes.Facet, opening: Opening, context: CheckContext) -> None:
    if facet.kind is nodes.FacetKind.EVENT or facet.blocks or facet.prompt or facet.pre_script or facet.catch:
        return
    if any(param.is_needed for param in facet.returns):
        context.reporter.warn("returns-without-body", opening.source, facet.name.span, kind=facet.kind, facet=facet.name.text)


def _check_implicit(implicit: nodes.Implicit, opening: Opening, context: CheckContext) -> None:
    call = implicit.call
    declared = resolve_facet(call, opening, context)
    check_unique(call.args, "duplicate-argument", opening, context)
    scope = CheckScope(opening, Inputs(), label=f"implicit `{implicit.name.text}`")
    if declared is None:
        for arg in call.args:
            infer(arg.value, scope, context)
    else:
        attributes = context.tables.inputs(declared)
        scope.inputs = Inputs().inside(attributes, may_have_more=attributes.open)
        for arg in call.args:
            if arg.name.text not in attributes and not attributes.open:
                context.reporter.report(
                    "implicit-parameter",
                    opening.source,
                    arg.name.span,
                    valid=attributes,
                    near=arg.name.text,
                    implicit=implicit.name.text,
                    qualified_name=declared.qualified_name,
                )
        check_args(call.args, declared, context.tables.params(declared), scope, context)
    for mixin in call.mixins:
        check_mixin(mixin, scope, context, host=declared)


# --- recursion -------------------------------------------------------------------------------------------------------

_Edge = tuple[str, nodes.Call]
_SHOWN = 5


def check_recursion(context: CheckContext) -> None:
    """Report each call that closes a circle of calls; those in `when`, `foreach` and `catch`, or caught, may not happen or end."""
    graph: dict[str, tuple[Source, list[_Edge]]] = {}
    for opening in context.symbols.openings:
        for item in opening.items:
            if isinstance(item, nodes.Facet) and item.blocks and item.catch is None:
                graph.setdefault(opening.qualify(item.name.text), (opening.source, list(_certain(item.blocks, context))))
    done: set[str] = set()
    for start in graph:
        if start not in done:
            _follow(start, graph, done, context)


def _follow(start: str, graph: dict[str, tuple[Source, list[_Edge]]], done: set[str], context: CheckContext) -> None:
    path = {start: iter(graph[start][1])}  # the calls from the start to here, with the remaining calls of each
    while path:
        name = next(reversed(path))
        edge = next(path[name], None)
        if edge is None:
            done.add(name)
            del path[name]
        elif edge[0] in path:
            circle = [*path][[*path].index(edge[0]) :]
            _warn(edge[1], circle, graph[name][0], context)
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


def _warn(call: nodes.Call, circle: list[str], source: Source, context: CheckContext) -> None:
    if len(circle) == 1:
        context.reporter.warn("endless-recursion", source, call.target.span, name=circle[0])
    else:
        callees = [*circle[:_SHOWN], "..."] if len(circle) > _SHOWN else circle
        path = " -> ".join([*callees, circle[0]])
        context.reporter.warn("endless-recursion:circle", source, call.target.span, path=path)
