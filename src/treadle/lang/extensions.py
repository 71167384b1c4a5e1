"""Extensions to the reference implementation. The checks note where a program uses one; `--reference` reports every use."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.lang.bindings import Context

EXTENSIONS: Mapping[str, tuple[str, str]] = {
    "after": ("`after`", "pass a value of the earlier step, on which the later one then depends"),
    "approval": ("`sys.approval(...)`", "call an event facet whose handler returns `AwaitingApproval`"),
    "collectErrors": ("`collectErrors(...)`", "catch the failure in the items"),
    "failFast": ("`failFast`", "leave it out, so that the other items finish"),
    "retry": ("`with Retry(...)`", "set the policy of the handler instead"),
    "function": ("a function", "compute it in a `script`"),
    "optional": ("an optional type `T?`", "give the parameter the type `T` and the default `null`"),
    "value": (
        "a value computed between steps",
        "a step calls a facet: with `facet Value(v: Json)` write `name = Value(v = ...)` and read `name.v`",
    ),
}
"""Each extension as written, and its replacement in programs for the reference."""


def check_reference(context: Context) -> None:
    """Report every use of an extension as an error, for programs that must run on the reference implementation, too."""
    for name, source, span in context.extensions:
        shown, instead = EXTENSIONS[name]
        message = f"{shown} is an extension that the reference does not have"
        context.reporter.report("reference-extension", source, span, message, hint=f"{instead}, or compile without --reference")
