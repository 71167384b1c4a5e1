"""Checks a whole program, declaration by declaration, and collects the bindings for the emitter."""

from __future__ import annotations

from collections.abc import Iterator

from treadle.lang import tree
from treadle.lang.attributes import STRING, Attributes, AttributeTables
from treadle.lang.bindings import Context
from treadle.lang.check_block import Surroundings, check_block
from treadle.lang.check_call import check_mixin, check_unique, resolve
from treadle.lang.check_expr import infer
from treadle.lang.check_script import check_prompt, check_script
from treadle.lang.check_yield import targets_of
from treadle.lang.diagnostics import Reporter
from treadle.lang.names import BUILTIN_TYPES, Declared, Opening, Symbols
from treadle.lang.scope import Inputs, Scope


def check(symbols: Symbols, reporter: Reporter) -> Context:
    """Report every semantic error and warning, in time linear in the size of the program."""
    context = Context(symbols, reporter, AttributeTables(symbols))
    for opening, implicit in _implicits(symbols):
        found = symbols.resolve_facet(implicit.call.target, opening).found
        if found is not None:
            names = (arg.name.text for arg in implicit.call.args)
            context.implied.setdefault(found.qualified_name, set()).update(names)
    for opening in symbols.openings:
        for item in opening.items:
            match item:
                case tree.Facet():
                    _check_facet(Declared(item, opening), item, context)
                case tree.Schema():
                    _check_fields(item.fields, "duplicate-field", "field", opening, context)
                case tree.Implicit():
                    _check_implicit(item, opening, context)
                case tree.Use():
                    pass
    return context


def _implicits(symbols: Symbols) -> Iterator[tuple[Opening, tree.Implicit]]:
    for opening in symbols.openings:
        for item in opening.items:
            if isinstance(item, tree.Implicit):
                yield opening, item


def _check_fields(params: tuple[tree.Param, ...], rule: str, what: str, opening: Opening, context: Context) -> None:
    check_unique((param.name for param in params), rule, what, opening.source, context)
    for param in params:
        if param.name.text.startswith("_") and what == "parameter":
            message = f"parameter `{param.name.text}` begins with `_`: such keys of a payload belong to the runner"
            context.reporter.report("reserved-parameter", opening.source, param.name.span, message)
        check_type(param.type, opening, context)


def check_type(type_: tree.Type, opening: Opening, context: Context) -> None:
    """Report a type that is neither built in, nor a schema, nor (for a step reference) a facet."""
    while isinstance(type_, tree.ListType):
        type_ = type_.element
    if isinstance(type_, tree.TooDeep):
        context.report_too_deep(type_, opening.source, tree.MAX_DEPTH, "this type")
        return
    name = type_.name
    if name.text in BUILTIN_TYPES:
        return
    found = context.symbols.resolve_type(name, opening)
    if found.candidates:
        shown = ", ".join(found.candidates[:12])
        message = f"type `{name.text}` is ambiguous, it must be qualified: {shown}"
        context.reporter.report("ambiguous-type", opening.source, name.span, message, valid=found.candidates)
    elif found.found is None:
        names: set[str] = set()
        if context.reporter.detailed:
            schemas = context.symbols.schemas
            names = set(BUILTIN_TYPES) | set(schemas.exact if "." in name.text else schemas.short)
        message = f"unknown type `{name.text}`"
        context.reporter.report("unknown-type", opening.source, name.span, message, valid=names, near=name.text)


def _check_facet(declared: Declared, facet: tree.Facet, context: Context) -> None:
    opening, source = declared.opening, declared.opening.source
    _check_fields(facet.params, "duplicate-parameter", "parameter", opening, context)
    _check_fields(facet.returns, "duplicate-return", "return", opening, context)
    attributes = context.tables.inputs(declared)
    inputs = Inputs().inside(attributes, may_have_more=attributes.open)
    root = Scope(opening, inputs, everywhere=frozenset(_step_names(facet)))
    _check_signature(declared, facet, root, context)
    if facet.pre_script is not None:
        check_script(facet.pre_script, source, context)
    if facet.prompt is not None:
        check_prompt(facet, facet.prompt, source, context)
    around = Surroundings(root, inputs, targets_of(declared, context))
    for block in facet.blocks:
        check_block(block, around, context)
    if facet.catch is not None:
        failed = inputs.inside(Attributes({"error": STRING, "error_type": STRING}), may_have_more=False)
        check_block(facet.catch, Surroundings(Scope(opening, failed), failed, around.targets), context)
    _warn_bodiless(facet, opening, context)


def _check_signature(declared: Declared, facet: tree.Facet, root: Scope, context: Context) -> None:
    source = declared.opening.source
    for param in (*facet.params, *facet.returns):
        if param.default is not None:
            root.label = f"the default of `{param.name.text}`"
            infer(param.default, root, context)
    taken = {param.name.text for param in (*facet.params, *facet.returns)}
    for mixin in facet.mixins:
        root.label = f"mixin `{mixin.target.text}`"
        check_mixin(mixin, root, context, host=declared)
        if mixin.alias is not None:
            if mixin.alias.text in taken or mixin.alias.text == facet.name.text:
                message = f"alias `{mixin.alias.text}` is already the name of something else in `{facet.name.text}`"
                context.reporter.report("alias-clash", source, mixin.alias.span, message)
            taken.add(mixin.alias.text)


def _warn_bodiless(facet: tree.Facet, opening: Opening, context: Context) -> None:
    if facet.kind is tree.FacetKind.EVENT or not facet.returns:
        return
    if not (facet.blocks or facet.prompt or facet.pre_script or facet.catch):
        message = f"{facet.kind} `{facet.name.text}` declares returns but has no body, so they never get a value"
        hint = "add a body, or make it an event facet"
        context.reporter.warn("returns-without-body", opening.source, facet.name.span, message, hint=hint)


def _check_implicit(implicit: tree.Implicit, opening: Opening, context: Context) -> None:
    call = implicit.call
    found = context.symbols.resolve_facet(call.target, opening)
    declared = resolve(call, found, opening, context, rule="external-facet", what="facet")
    source = opening.source
    check_unique((arg.name for arg in call.args), "duplicate-argument", "argument", source, context)
    inputs = Inputs()
    if declared is not None:
        attributes = context.tables.inputs(declared)
        inputs = inputs.inside(attributes, may_have_more=attributes.open)
        for arg in call.args:
            if arg.name.text not in attributes and not attributes.open:
                message = (
                    f"implicit `{implicit.name.text}` passes `{arg.name.text}`, "
                    f"which is not a parameter of `{declared.qualified_name}`"
                )
                context.reporter.report("implicit-parameter", source, arg.name.span, message, valid=attributes, near=arg.name.text)
    scope = Scope(opening, inputs, label=f"implicit `{implicit.name.text}`")
    for arg in call.args:
        infer(arg.value, scope, context)
    for mixin in call.mixins:
        check_mixin(mixin, scope, context, host=declared)


def _step_names(facet: tree.Facet) -> Iterator[str]:
    """Yield the names of all steps anywhere in a declaration."""
    left: list[tree.Block | tree.TooDeep | None] = [*facet.blocks, facet.catch]
    while left:
        block = left.pop()
        if not isinstance(block, tree.Block):
            continue
        left.extend(case.block for case in block.cases or ())
        for statement in block.statements:
            if isinstance(statement, tree.Step):
                yield statement.name.text
                left += [statement.body, statement.catch]
