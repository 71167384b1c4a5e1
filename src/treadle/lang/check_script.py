"""Checks scripts and prompts: a script has Python code, a prompt a template whose placeholders are parameters."""

from __future__ import annotations

import re

from treadle.lang import tree
from treadle.lang.bindings import Context
from treadle.lang.diagnostics import Source

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check_script(script: tree.Script, source: Source, context: Context) -> None:
    """Report another language than Python, and a script without code."""
    if script.language is not None and script.language.text != "python":
        message = f"unsupported script language `{script.language.text}`"
        context.reporter.report("script-language", source, script.language.span, message, valid=["python"])
    if not script.code.strip():
        context.reporter.report("empty-script", source, script.span, "this script is empty")


def check_prompt(facet: tree.Facet, prompt: tree.Prompt, source: Source, context: Context) -> None:
    """Report a missing template, repeated directives and placeholders that are not parameters."""
    if facet.kind is not tree.FacetKind.EVENT:
        message = f"only an event facet's prompt is ever used; `{facet.name.text}` is a {facet.kind}"
        context.reporter.warn("prompt-without-event", source, prompt.span, message)
    params = {param.name.text for param in facet.params}
    first: dict[str, int] = {}
    for directive in prompt.directives:
        kind = directive.kind
        if kind.text in first:
            message = f"`{kind.text}` is already given in line {first[kind.text]}; the last one counts"
            context.reporter.warn("duplicate-directive", source, kind.span, message)
        first.setdefault(kind.text, kind.span.line)
        if kind.text == "model":
            continue
        for name in dict.fromkeys(_PLACEHOLDER.findall(directive.text)):
            if name not in params:
                message = f"placeholder `{{{name}}}` in `{kind.text}` is not a parameter of `{facet.name.text}`"
                context.reporter.report("unknown-placeholder", source, kind.span, message, valid=params, near=name)
    if "template" not in first:
        message = f"the prompt of `{facet.name.text}` has no `template`"
        context.reporter.report("prompt-template", source, prompt.span, message)
