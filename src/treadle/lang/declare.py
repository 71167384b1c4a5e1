"""Collects the declarations of all sources and reports clashes.

The engine itself implements some facets; a declaration of the same name takes precedence.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from treadle.lang import nodes
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.names import Declared, Opening, Symbols
from treadle.lang.nodes import Facet
from treadle.lang.parse import parse
from treadle.lang.program import Program

APPROVAL = "sys.approval"
SOURCE = Source(
    "<built in>",
    """namespace sys {
    /** Asks a person and waits for the decision. A denial fails the step with `approval_denied`, an expired request with
     * `approval_expired`. Nobody has to write a handler.
     * @param question the question, as the deciders see it
     * @param context a map with the facts needed to decide
     * @param requested_by the name of the requester, for display
     * @param deciders names and groups that may decide; empty: anyone
     * @param quorum the number of votes that approve it
     * @param denials the number of votes that deny it
     * @param edits whether an approver may change the context
     * @param expires seconds until the request expires; null: never
     * @param on_expiry `fail`, or `ask_again`
     * @param remind_after seconds until the first reminder
     * @param remind_every seconds between reminders
     * @param escalate_after seconds until further deciders are added
     * @param escalate_to these further deciders
     * @param notify a separate webhook URL, if the settings permit it
     * @return by the name of the decider; with several votes, of the last one
     * @return at the time of the decision, in milliseconds since 1970
     * @return reason the comment of the decider, or null
     * @return edited whether an approver changed the context
     * @return context the context with all edits
     * @return votes all votes: actor, decision, at, reason
     * @return decision always `approved`
     * @return approval_id the id of the request
     */
    event facet approval(
        question: String, context: Json = #{}, requested_by: String = null, deciders: [String] = [], quorum: Long = 1,
        denials: Long = 1, edits: Boolean = false, expires: Double = null, on_expiry: String = "fail",
        remind_after: Double = null, remind_every: Double = null, escalate_after: Double = null, escalate_to: [String] = [],
        notify: String = null,
    ) => (
        by: String, at: Long, reason: String?, edited: Boolean, context: Json, votes: [Json], decision: String,
        approval_id: String,
    )
}
""",
)


@cache
def built_in_declarations() -> Mapping[str, Declared]:
    """Return the declarations by qualified name."""
    file = parse(SOURCE, Reporter()).partial
    declarations = {}
    for space in file.items:
        if isinstance(space, nodes.Namespace):
            opening = Opening(space.name.text, space.items, SOURCE, space)
            for item in space.items:
                if isinstance(item, nodes.Facet):
                    declared = Declared(item, opening)
                    declarations[declared.qualified_name] = declared
    return declarations


@cache
def built_in_facets() -> Mapping[str, Facet]:
    """Return the compiled facets by qualified name."""
    from treadle.lang.compiler import compile_sources

    return Program.load(compile_sources([(SOURCE.name, SOURCE.text)]).program).facets


def declare(files: list[tuple[Source, nodes.File]], reporter: Reporter) -> Symbols:
    """Enter all declarations of all sources; the first of several with one name stays."""
    symbols = Symbols()
    symbols.facets.exact.update(built_in_declarations())
    for source, file in files:
        symbols.openings.extend(_openings(source, file, reporter))
    for opening in symbols.openings:
        if opening.namespace is not None:
            symbols.namespaces.setdefault(opening.namespace, opening)
        for item in opening.items:
            if isinstance(item, nodes.Facet | nodes.Schema):
                declared = symbols.declarations[id(item)] = Declared(item, opening)
                _declare(declared, symbols, reporter)
    for opening in symbols.openings:
        _check_uses(opening, symbols, reporter)
    return symbols


def _declare(declared: Declared, symbols: Symbols, reporter: Reporter) -> None:
    earlier = symbols.declare(declared)
    name, opening = declared.node.name, declared.opening
    if earlier is not None:
        here = f"; this is {opening.source.name}" if earlier.opening.source is not opening.source else ""
        reporter.report("duplicate-declaration", opening.source, name.span, name=name.text, place=earlier.place, here=here)
    if isinstance(declared.node, nodes.Schema) and opening.namespace is None:
        reporter.report("schema-outside-namespace", opening.source, name.span, name=name.text)


def _check_uses(opening: Opening, symbols: Symbols, reporter: Reporter) -> None:
    for item in opening.items:
        if not isinstance(item, nodes.Use):
            continue
        name = item.name
        if opening.namespace is None:
            reporter.report("use-outside-namespace", opening.source, item.span, name=name.text)
        elif name.text not in symbols.namespaces:
            reporter.report("unknown-namespace", opening.source, name.span, valid=symbols.namespaces, near=name.text)


def _openings(source: Source, file: nodes.File, reporter: Reporter) -> list[Opening]:
    """Split a file by namespace; a file-scoped namespace includes everything after it."""
    openings: list[Opening] = []
    scoped: nodes.Namespace | None = None
    braced: nodes.Namespace | None = None
    loose: list[nodes.Item] = []
    rest: list[nodes.Item] = []
    for item in file.items:
        if isinstance(item, nodes.Namespace):
            if item.file_scoped and scoped is None:
                scoped = item
            else:
                _check_mixed(source, item, scoped, reporter)
                openings.append(_opening(item.name.text, item.items, source, item))
            braced = braced if item.file_scoped else braced or item
        elif scoped is not None:
            rest.append(item)
        else:
            loose.append(item)
    if scoped is not None:
        if braced is not None and braced.span.line < scoped.span.line:
            _check_mixed(source, braced, scoped, reporter)
        openings.append(_opening(scoped.name.text, tuple(rest), source, scoped))
    if loose:
        openings.append(_opening(None, tuple(loose), source, None))
    return openings


def _check_mixed(source: Source, node: nodes.Namespace, scoped: nodes.Namespace | None, reporter: Reporter) -> None:
    if scoped is not None:
        place, line = node.name, scoped.span.line
        reporter.report("mixed-namespaces", source, place.span, scoped=scoped.name.text, line=line, name=place.text)


def _opening(name: str | None, items: tuple[nodes.Item, ...], source: Source, node: nodes.Namespace | None) -> Opening:
    uses = tuple(dict.fromkeys(item.name.text for item in items if isinstance(item, nodes.Use)))
    return Opening(name, items, source, node, uses)
