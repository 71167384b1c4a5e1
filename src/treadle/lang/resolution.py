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
from treadle.lang.scope import CheckScope
from treadle.lang.types import BUILTIN


def check_unique(named: Sequence[nodes.Param | nodes.Arg | nodes.Step], rule: str, scope: CheckScope) -> None:
    """Report every repeated name, with the line of the first; the rule is `duplicate-` and the sort of the names."""
    if len(named) < 2 or len({node.name.text for node in named}) == len(named):
        return
    first: dict[str, int] = {}
    for name in [node.name for node in named]:
        if name.text in first:
            what, line = rule.removeprefix("duplicate-"), first[name.text]
            scope.report(rule, name.span, what=what, name=name.text, line=line)
        first.setdefault(name.text, name.span.line)


def resolve_callee(call: nodes.Call, scope: CheckScope) -> Declared | None:
    """Return the facet or schema that a step calls."""
    return _record(call, scope.context.symbols.resolve_callee(call.target, scope.opening), scope)


def resolve_facet(node: nodes.Call | nodes.Mixin, scope: CheckScope) -> Declared | None:
    """Return the facet of an implicit or mixin."""
    return _record(node, scope.context.symbols.resolve_facet(node.target, scope.opening), scope)


def _record(node: nodes.Call | nodes.Mixin, resolution: Resolution, scope: CheckScope) -> Declared | None:
    """Record the callee of a call or mixin; report ambiguous and unknown names, the latter as a warning if unqualified."""
    name = node.target
    if resolution.found is not None:
        scope.context.bindings.callees[id(node)] = resolution.found.qualified_name
        scope.use(name, scope.context.symbols.definition(resolution.found))
        return resolution.found
    if resolution.candidates:
        _report_ambiguous("ambiguous-facet", name, resolution, scope)
        return None
    if isinstance(node, nodes.Call) and name.text in WORDS:
        if name.text in FUNCTIONS:
            scope.report("function-arguments:named", name.span, hint=hint(name.text), name=name.text)
        else:
            scope.warn("external-facet:function", name.span, hint=hint(name.text), name=name.text)
        return None
    if isinstance(node, nodes.Call) and name.text == VALUE:
        value = scope.opening.source.part(node.args[0].value.span) if node.args else "..."
        advice = f"a value needs no call: write `name = {value}`"
        scope.report("unknown-facet", name.span, hint=advice, name=VALUE)
        return None
    built_in = () if isinstance(node, nodes.Call) else BUILTIN_MIXINS
    near = _near(name, (scope.context.symbols.facets, scope.context.symbols.schemas), scope, *built_in)
    if "." in name.text:
        scope.report("unknown-facet", name.span, **near, name=name.text)
        return None
    rule = "unknown-mixin" if isinstance(node, nodes.Mixin) else "external-facet"
    scope.warn(rule, name.span, hint=_effect(node), **near, name=name.text)
    return None


def _effect(node: nodes.Call | nodes.Mixin) -> str:
    """Return the effect of an undeclared name at run time, as a hint."""
    if isinstance(node, nodes.Call):
        return "without a declaration it is a record of its arguments: no handler runs, and it has no returns"
    built_in = " and ".join(f"`{name}`" for name in BUILTIN_MIXINS)
    return f"its arguments become parameters of the step, and nothing else happens; the built-in mixins are {built_in}"


def _near(name: nodes.Name, tables: Iterable[DeclarationTable], scope: CheckScope, *more: str) -> dict[str, Any]:
    """Return the names that could be meant, as they must be written here; if another namespace has the name, only those."""
    if not scope.context.reporter.detailed:
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
            clear = table.resolve(short_name, scope.opening).found is not None
            names += [short_name] if clear else [one.qualified_name for one in declared]
    return {"valid": names, "near": name.text}


def check_type(type_: nodes.Type, scope: CheckScope) -> None:
    """Report a type that is neither built in, nor a schema, nor (for a step reference) a facet."""
    while not isinstance(type_, nodes.NamedType):
        if isinstance(type_, nodes.OptionalType):
            scope.extend("optional", type_.span)
        type_ = type_.element
    if type_.too_deep:
        scope.report("too-deep", type_.span, limit=nodes.MAX_DEPTH, what="this type")
        return
    if type_.name in BUILTIN:
        return
    name = nodes.Name(type_.name, type_.span)
    resolution = scope.context.symbols.resolve_type(type_.name, scope.opening)
    if resolution.candidates:
        _report_ambiguous("ambiguous-type", name, resolution, scope, imports=True)
    elif resolution.found is None:
        near = _near(name, (scope.context.symbols.schemas,), scope, *BUILTIN)
        scope.report("unknown-type", name.span, **near, name=name.text)
    else:
        scope.use(name, scope.context.symbols.definition(resolution.found))


def _report_ambiguous(rule: str, name: nodes.Name, resolution: Resolution, scope: CheckScope, *, imports: bool = False) -> None:
    candidates = resolution.candidates
    fixes: list[Fix] = []
    for candidate in candidates[:12]:
        fixes.append(Fix(f"Change `{name.text}` to `{candidate}`", (Edit(name.span, candidate),)))
        if imports and (use := _import(candidate.rpartition(".")[0], scope.opening)) is not None:
            fixes.append(use)
    names = ", ".join(candidates[:12])
    scope.report(rule, name.span, valid=candidates, fixes=fixes, name=name.text, names=names)


def _import(namespace: str, opening: Opening) -> Fix | None:
    """Return the fix that adds `use namespace` before the first declaration, unless a doc comment stands before that."""
    first = opening.items[0]
    if not namespace or opening.namespace is None or getattr(first, "doc", None) is not None:
        return None
    at = first.span
    return Fix(f"Add `use {namespace}`", (Edit(at.part(0, 0), f"use {namespace}\n{' ' * (at.column - 1)}"),))
