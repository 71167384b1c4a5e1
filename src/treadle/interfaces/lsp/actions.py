"""Code actions: the fixes that diagnostics carry."""

from __future__ import annotations

from lsprotocol import types

from treadle.interfaces.lsp.document import Document
from treadle.lang.diagnostics import Diagnostic, Severity

_SEVERITIES = {Severity.ERROR: types.DiagnosticSeverity.Error, Severity.WARNING: types.DiagnosticSeverity.Warning}


def diagnostic(each: Diagnostic, document: Document) -> types.Diagnostic:
    """Return a diagnostic for the protocol, with its hints below the message."""
    lines = [each.message]
    lines += [f"did you mean `{each.suggestion}`?"] if each.suggestion else []
    lines += [f"valid here: {', '.join(each.valid)}"] if each.valid else []
    lines += [f"help: {each.help}"] if each.help else []
    severity = _SEVERITIES[each.severity]
    return types.Diagnostic(document.span_range(each.span), "\n".join(lines), severity, each.rule, source="afl")


def code_actions(found: list[Diagnostic], document: Document, uri: str, start: int, end: int) -> list[types.CodeAction]:
    """Return the fixes of the diagnostics that touch a part of the text; the likeliest one is preferred."""
    actions = []
    for each in found:
        first, last = document.offsets(each.span)
        if last < start or end < first:
            continue
        for number, fix in enumerate(each.fixes):
            edits = [types.TextEdit(document.span_range(edit.span), edit.text) for edit in fix.edits]
            actions.append(
                types.CodeAction(
                    fix.title,
                    types.CodeActionKind.QuickFix,
                    [diagnostic(each, document)],
                    is_preferred=number == 0 or None,
                    edit=types.WorkspaceEdit({uri: edits}),
                )
            )
    return actions
