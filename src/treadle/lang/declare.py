"""Collects the declarations of all sources and reports clashes."""

from __future__ import annotations

from treadle.lang import tree
from treadle.lang.builtins import built_in_declarations
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.names import Declared, Opening, Symbols


def declare(files: list[tuple[Source, tree.File]], reporter: Reporter) -> Symbols:
    """Enter all declarations of all sources; the first of several with one name stays."""
    symbols = Symbols()
    symbols.facets.exact.update(built_in_declarations())
    for source, file in files:
        symbols.openings.extend(_openings(source, file, reporter))
    for opening in symbols.openings:
        if opening.namespace is not None:
            symbols.namespaces.setdefault(opening.namespace, opening)
        for item in opening.items:
            if isinstance(item, tree.Facet | tree.Schema):
                _declare(Declared(item, opening), symbols, reporter)
    for opening in symbols.openings:
        _check_uses(opening, symbols, reporter)
    return symbols


def _declare(declared: Declared, symbols: Symbols, reporter: Reporter) -> None:
    earlier = symbols.declare(declared)
    name, opening = declared.node.name, declared.opening
    if earlier is not None:
        message = f"`{name.text}` is already declared in {earlier.place}"
        if earlier.opening.source is not opening.source:
            message += f"; this is {opening.source.name}"
        reporter.report("duplicate-declaration", opening.source, name.span, message, hint="rename one of the two")
    if isinstance(declared.node, tree.Schema) and opening.namespace is None:
        message = f"schema `{name.text}` must be inside a namespace"
        reporter.report("schema-outside-namespace", opening.source, name.span, message)


def _check_uses(opening: Opening, symbols: Symbols, reporter: Reporter) -> None:
    for item in opening.items:
        if not isinstance(item, tree.Use):
            continue
        name = item.name
        if opening.namespace is None:
            message = f"`use {name.text}` must be inside a namespace"
            reporter.report("use-outside-namespace", opening.source, item.span, message)
        elif name.text not in symbols.namespaces:
            message = f"no source declares the namespace `{name.text}`"
            reporter.report("unknown-namespace", opening.source, name.span, message, valid=symbols.namespaces, near=name.text)


def _openings(source: Source, file: tree.File, reporter: Reporter) -> list[Opening]:
    """Split a file by namespace; a file-scoped namespace includes everything after it."""
    found: list[Opening] = []
    scoped: tree.Namespace | None = None
    braced: tree.Namespace | None = None
    loose: list[tree.Item] = []
    rest: list[tree.Item] = []
    for item in file.items:
        if isinstance(item, tree.Namespace):
            if item.file_scoped and scoped is None:
                scoped = item
            else:
                _check_mixed(source, item, scoped, reporter)
                found.append(_opening(item.name.text, item.items, source, item))
            braced = braced if item.file_scoped else braced or item
        elif scoped is not None:
            rest.append(item)
        else:
            loose.append(item)
    if scoped is not None:
        if braced is not None and braced.span.line < scoped.span.line:
            _check_mixed(source, braced, scoped, reporter)
        found.append(_opening(scoped.name.text, tuple(rest), source, scoped))
    if loose:
        found.append(_opening(None, tuple(loose), source, None))
    return found


def _check_mixed(source: Source, node: tree.Namespace, scoped: tree.Namespace | None, reporter: Reporter) -> None:
    if scoped is not None:
        message = (
            f"this file already belongs to the namespace `{scoped.name.text}` (line {scoped.span.line}); "
            f"`{node.name.text}` cannot be opened in it as well"
        )
        hint = "put it into a file of its own, or use braces for both"
        reporter.report("mixed-namespaces", source, node.name.span, message, hint=hint)


def _opening(name: str | None, items: tuple[tree.Item, ...], source: Source, node: tree.Namespace | None) -> Opening:
    uses = tuple(dict.fromkeys(item.name.text for item in items if isinstance(item, tree.Use)))
    return Opening(name, items, source, node, uses)
