"""Checks calls and mixins: the callee, its arguments, and step references among them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from treadle.lang import program, tree
from treadle.lang.bindings import Context
from treadle.lang.check_expr import infer, note_step
from treadle.lang.diagnostics import Source
from treadle.lang.names import BUILTIN_MIXINS, Declared, Opening, Resolution
from treadle.lang.scope import Scope


def check_unique(names: Iterable[tree.Name], rule: str, what: str, source: Source, context: Context) -> None:
    """Report every repeated name, with the line of the first."""
    first: dict[str, int] = {}
    for name in names:
        if name.text in first:
            message = f"{what} `{name.text}` is already given in line {first[name.text]}"
            context.reporter.report(rule, source, name.span, message)
        first.setdefault(name.text, name.span.line)


def resolve(
    node: tree.Call | tree.Mixin, found: Resolution, opening: Opening, context: Context, *, rule: str, what: str
) -> Declared | None:
    """Record the callee of a call or mixin; report ambiguous and unknown names, the latter as a warning if unqualified."""
    name, source = node.target, opening.source
    if found.found is not None:
        context.bindings.callees[id(node)] = found.found.qualified_name
        return found.found
    if found.candidates:
        shown = ", ".join(found.candidates[:12])
        message = f"`{name.text}` is ambiguous, it must be qualified: {shown}"
        context.reporter.report("ambiguous-facet", source, name.span, message, valid=found.candidates)
        return None
    known: Iterable[str] = ()
    if "." in name.text:
        known = context.symbols.taken if context.reporter.detailed else ()
        message = f"unknown facet `{name.text}`"
        context.reporter.report("unknown-facet", source, name.span, message, valid=known, near=name.text)
        return None
    known = context.symbols.facets.short if context.reporter.detailed else ()
    message = f"{what} `{name.text}` is not declared anywhere"
    context.reporter.warn(rule, source, name.span, message, valid=known, near=name.text)
    return None


def check_call(call: tree.Call, scope: Scope, context: Context) -> Declared | None:
    """Check a step's call and return its callee."""
    opening = scope.opening
    found = context.symbols.resolve_callee(call.target, opening)
    declared = resolve(call, found, opening, context, rule="external-facet", what="facet")
    check_unique((arg.name for arg in call.args), "duplicate-argument", "argument", opening.source, context)
    _check_args(call.args, declared, scope, context)
    if declared is not None and isinstance(declared.node, tree.Schema):
        _check_schema_call(call, declared, declared.node, opening, context)
        return declared
    if declared is not None and isinstance(declared.node, tree.Facet):
        _check_facet_args(call, declared, opening, context)
    for mixin in call.mixins:
        check_mixin(mixin, scope, context, host=declared)
    return declared


def check_mixin(mixin: tree.Mixin, scope: Scope, context: Context, host: Declared | None) -> Declared | None:
    """Check `with Target(...)`; arguments may be parameters of the mixin or of the facet it is attached to."""
    opening = scope.opening
    declared: Declared | None = None
    found = context.symbols.resolve_facet(mixin.target, opening)
    if found.found is not None or mixin.target.text not in BUILTIN_MIXINS:
        declared = resolve(mixin, found, opening, context, rule="unknown-mixin", what="mixin")
    check_unique((arg.name for arg in mixin.args), "duplicate-argument", "argument", opening.source, context)
    _check_args(mixin.args, declared, scope, context)
    if declared is not None and host is not None and isinstance(host.node, tree.Facet):
        allowed = context.tables.inputs(declared)
        outer = context.tables.inputs(host)
        for arg in mixin.args:
            if arg.name.text not in allowed and arg.name.text not in outer and not (allowed.open or outer.open):
                _warn_unknown_argument(arg, declared, opening, allowed, context)
    return declared


def _check_args(args: tuple[tree.Arg, ...], declared: Declared | None, scope: Scope, context: Context) -> None:
    params: dict[str, tree.Param] = {}
    if args and declared is not None and isinstance(declared.node, tree.Facet):
        params = context.tables.params(declared)
    for arg in args:
        param = params.get(arg.name.text)
        wanted = None
        if declared is not None and param is not None:
            wanted = _referenced_facet(param, declared.opening, context)
        if wanted is None:
            infer(arg.value, scope, context)
        else:
            _check_step_reference(arg, wanted, scope, context)


def _referenced_facet(param: tree.Param, opening: Opening, context: Context) -> str | None:
    type_ = context.symbols.type_of(param.type, opening)
    if isinstance(type_, program.NamedType) and type_.name in context.symbols.facets.exact:
        return type_.name
    return None


def _check_step_reference(arg: tree.Arg, wanted: str, scope: Scope, context: Context) -> None:
    """Check the argument for a parameter whose type is a facet: a bare step of that facet, or such a parameter passed on."""
    source, value = scope.opening.source, arg.value
    message = f"`{arg.name.text}` takes a step of facet `{wanted}`"
    if isinstance(value, tree.Ref) and len(value.path) == 1:
        hit = scope.find_loop_or_step(value.path[0])
        if hit is None or hit[1] is None:
            infer(value, scope, context)
            return
        where, step = hit[0], hit[1]
        if note_step(value, where, step, scope, context) and step.facets and wanted not in step.facets:
            actual = ", ".join(sorted(step.facets))
            context.reporter.report(
                "step-reference", source, value.span, f"{message}, but step `{value.path[0]}` is one of `{actual}`"
            )
        return
    type_ = infer(value, scope, context)
    if isinstance(value, tree.InputRef) and type_ in (None, program.NamedType(wanted)):
        return
    if isinstance(value, tree.Literal) and value.value is None:
        return
    context.reporter.report("step-reference", source, value.span, message, hint="pass the step by its name alone")


def _check_facet_args(call: tree.Call, declared: Declared, opening: Opening, context: Context) -> None:
    allowed = context.tables.inputs(declared)
    given = {arg.name.text for arg in call.args}
    if not allowed.open:
        for arg in call.args:
            if arg.name.text not in allowed:
                _warn_unknown_argument(arg, declared, opening, allowed, context)
    for mixin in call.mixins:
        if mixin.alias is None:
            given.update(arg.name.text for arg in mixin.args)
    given |= context.implied.get(declared.qualified_name, set())
    missing = _first_missing(context.tables.required(declared), given)
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        message = f"call of `{call.target.text}` gives no value for {names}"
        context.reporter.warn("missing-argument", opening.source, call.target.span, message)


def _first_missing(required: list[str], given: set[str]) -> list[str]:
    """Return the first few required names that are missing, without collecting all of them."""
    return list(islice((name for name in required if name not in given), 12))


def _warn_unknown_argument(arg: tree.Arg, declared: Declared, opening: Opening, valid: Iterable[str], context: Context) -> None:
    message = f"`{declared.qualified_name}` has no parameter `{arg.name.text}`"
    context.reporter.warn("unknown-argument", opening.source, arg.name.span, message, valid=valid, near=arg.name.text)


def _check_schema_call(call: tree.Call, declared: Declared, schema: tree.Schema, opening: Opening, context: Context) -> None:
    fields = context.tables.attributes(declared)
    name = declared.qualified_name
    for arg in call.args:
        if arg.name.text not in fields:
            message = f"schema `{name}` has no field `{arg.name.text}`"
            context.reporter.report("unknown-field", opening.source, arg.name.span, message, valid=fields, near=arg.name.text)
    given = {arg.name.text for arg in call.args}
    missing = _first_missing([field.name.text for field in schema.fields], given)
    if missing:
        shown = ", ".join(f"`{each}`" for each in missing)
        message = f"instance of schema `{name}` has no value for {shown}"
        context.reporter.warn("missing-field", opening.source, call.target.span, message)
    if call.mixins:
        message = f"schema `{name}` cannot have mixins"
        context.reporter.report("mixin-on-schema", opening.source, call.mixins[0].span, message)
