"""The facets that the engine itself implements. A declaration of the same name takes precedence."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from treadle.lang import tree
from treadle.lang.diagnostics import Reporter, Source
from treadle.lang.names import Declared, Opening
from treadle.lang.parse import parse
from treadle.lang.program import Facet, Program

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
    found = {}
    for space in file.items:
        if isinstance(space, tree.Namespace):
            opening = Opening(space.name.text, space.items, SOURCE, space)
            for each in space.items:
                if isinstance(each, tree.Facet):
                    declared = Declared(each, opening)
                    found[declared.qualified_name] = declared
    return found


@cache
def built_in_facets() -> Mapping[str, Facet]:
    """Return the compiled facets by qualified name."""
    from treadle.lang.compiler import compile_sources

    return Program.load(compile_sources([(SOURCE.name, SOURCE.text)]).program).facets
