"""Records the meanings of the names of callees, mixins and types, and reports undefined and ambiguous names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from treadle.lang import nodes
from treadle.lang.builtins import BUILTIN_MIXINS, FUNCTIONS, WORDS, hint
from treadle.lang.declare import built_in_declarations
from treadle.lang.diagnostics import Edit, Fix
from treadle.lang.names import DeclarationTable, Declared, Opening, Resolution
from treadle.lang.nodes import VALUE
from treadle.lang.scope import CheckContext
from treadle.lang.types import BUILTIN


def check_unique(named: Sequence[nodes.Param | nodes.Arg | nodes.Step], rule: str, opening: Opening, context: CheckContext) -> None:
    """Report every repeated name, with the line of the first; the rule is `duplicate-` and the sort of the names."""
    if len(named) < 2 or len({node.name.text for node in named}) == len(named):
        return
    first: dict[str, int] = {}
    for name in [node.name for node in named]:
        if name.text in first:
            what, line = rule.removeprefix("duplicate-"), first[name.text]
            context.reporter.report(rule, opening.source, name.span, what=what, name=name.text, line=line)
        first.setdefault(name.text, name.span.line)


def resolve_callee(call: nodes.Call, opening: Opening, context: CheckContext) -> Declared | None:
    """Return the facet or schema that a step calls."""
    return _record(call, context.symbols.resolve_callee(call.target, opening), opening, context)


def resolve_facet(node: nodes.Call | nodes.Mixin, opening: Opening, context: CheckContext) -> Declared | None:
    """Return the facet of an implicit or mixin."""
    return _record(node, context.symbols.resolve_facet(node.target, opening), opening, context)


def _record(node: nodes.Call | nodes.Mixin, resolution: Resolution, opening: Opening, context: CheckContext) -> Declared | None:
    """Record the callee of a call or mixin; report ambiguous and unknown names, the latter as a warning if unqualified."""
    name, source = node.target, opening.source
    if resolution.found is not None:
        context.bindings.callees[id(node)] = resolution.found.qualified_name
        context.use(source, name, context.symbols.definition(resolution.found))
        return resolution.found
    if resolution.candidates:
        _report_ambiguous("ambiguous-facet", name, resolution, opening, context)
        return None
    if isinstance(node, nodes.Call) and name.text in WORDS:
        if name.text in FUNCTIONS:
            context.reporter.report("function-arguments:named", source, name.span, hint=hint(name.text), name=name.text)
        else:
            context.reporter.warn("external-facet:function", source, name.span, hint=hint(name.text), name=name.text)
        return None
    if isinstance(node, nodes.Call) and name.text == VALUE:
        value = source.part(node.args[0].value.span) if node.args else "..."
        advice = f"a value needs no call: write `name = {value}`"
        context.reporter.report("unknown-facet", source, name.span, hint=advice, name=VALUE)
        return None
    built_in = () if isinstance(node, nodes.Call) else BUILTIN_MIXINS
    near = _near(name, (context.symbols.facets, context.symbols.schemas), opening, context, *built_in)
    if "." in name.text:
        context.reporter.report("unknown-facet", source, name.span, **near, name=name.text)
        return None
    rule = "unknown-mixin" if isinstance(node, nodes.Mixin) else "external-facet"
    context.reporter.warn(rule, source, name.span, hint=_effect(node), **near, name=name.text)
    return None


def _effect(node: nodes.Call | nodes.Mixin) -> str:
    """Return the effect of an undeclared name at run time, as a hint."""
    if isinstance(node, nodes.Call):
        return "without a declaration it is a record of its arguments: no handler runs, and it has no returns"
    built_in = " and ".join(f"`{name}`" for name in BUILTIN_MIXINS)
    return f"its arguments become parameters of the step, and nothing else happens; the built-in mixins are {built_in}"


def _near(
    name: nodes.Name, tables: Iterable[DeclarationTable], opening: Opening, context: CheckContext, *more: str
) -> dict[str, Any]:
    """Return the names that could be meant, as they must be written here; if another namespace has the name, only those."""
    if not context.reporter.detailed:
        return {"near": name.text}
    same = sorted(declaration.qualified_name for table in tables for declaration in table.short.get(name.short, ()))
    same = same or [
        qualified_name for qualified_name, declaration in built_in_declarations().items() if declaration.node.name.text == name.text
    ]
    if same:
        fixes = [
            Fix(f"Change `{name.text}` to `{qualified_name}`", (Edit(name.span, qualified_name),)) for qualified_name in same[:12]
        ]
        return {"valid": same, "near": same[0], "fixes": fixes}
    names = [*more]
    for table in tables:
        if "." in name.text:
            names += table.exact
            continue
        for short_name, declared in table.short.items():
            clear = table.resolve(short_name, opening).found is not None
            names += [short_name] if clear else [one.qualified_name for one in declared]
    return {"valid": names, "near": name.text}


def check_type(type_: nodes.Type, opening: Opening, context: CheckContext) -> None:
    """Report a type that is neither built in, nor a schema, nor (for a step reference) a facet."""
    while not isinstance(type_, nodes.NamedType):
        if isinstance(type_, nodes.OptionalType):
            context.extensions.append(("optional", opening.source, type_.span))
        type_ = type_.element
    if type_.too_deep:
        context.reporter.report("too-deep", opening.source, type_.span, limit=nodes.MAX_DEPTH, what="this type")
        return
    if type_.name in BUILTIN:
        return
    name = nodes.Name(type_.name, type_.span)
    resolution = context.symbols.resolve_type(type_.name, opening)
    if resolution.candidates:
        _report_ambiguous("ambiguous-type", name, resolution, opening, context, imports=True)
    elif resolution.found is None:
        near = _near(name, (context.symbols.schemas,), opening, context, *BUILTIN)
        context.reporter.report("unknown-type", opening.source, name.span, **near, name=name.text)
    else:
        context.use(opening.source, name, context.symbols.definition(resolution.found))


def _report_ambiguous(
    rule: str, name: nodes.Name, resolution: Resolution, opening: Opening, context: CheckContext, *, imports: bool = False
) -> None:
    candidates = resolution.candidates
    fixes: list[Fix] = []
    for candidate in candidates[:12]:
        fixes.append(Fix(f"Change `{name.text}` to `{candidate}`", (Edit(name.span, candidate),)))
        if imports and (use := _import(candidate.rpartition(".")[0], opening)) is not None:
            fixes.append(use)
    names = ", ".join(candidates[:12])
    context.reporter.report(rule, opening.source, name.span, valid=candidates, fixes=fixes, name=name.text, names=names)


def _import(namespace: str, opening: Opening) -> Fix | None:
    """Return the fix that adds `use namespace` before the first declaration, unless a doc comment stands before that."""
    first = opening.items[0]
    if not namespace or opening.namespace is None or getattr(first, "doc", None) is not None:
        return None
    at = first.span
    return Fix(f"Add `use {namespace}`", (Edit(at.part(0, 0), f"use {namespace}\n{' ' * (at.column - 1)}"),))
