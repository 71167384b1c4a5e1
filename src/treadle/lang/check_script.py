"""Checks scripts and prompts: a script has Python code that can run, a prompt a template whose placeholders are parameters.

Also warns about `{name}` and `${name}` in strings, which other languages replace by a value and AFL does not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from treadle.lang import nodes
from treadle.lang.diagnostics import Source, nearest, replace
from treadle.lang.literals import encode
from treadle.lang.names import Kind
from treadle.lang.scope import Context, Inputs, Scope
from treadle.lang.script_code import has_builtin, read_script
from treadle.model.scripts import SCRIPT_MODULES

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check_script(
    script: nodes.Script,
    inputs: Inputs,
    source: Source,
    context: Context,
    *,
    pre: bool = False,
) -> None:
    """Report another language than Python, a script without code, and code that cannot run.

    `inputs` has the names of `params`; a pre-script (`pre`) cannot read what it adds itself.
    """
    if script.language != nodes.PYTHON:
        message = f"unsupported script language `{script.language.text}`"
        context.reporter.report("script-language", source, script.language.span, message, valid=["python"])
        return
    if not script.code.strip():
        context.reporter.report("empty-script", source, script.span, "this script is empty")
        return
    code, warn = read_script(script), context.reporter.warn
    if code.error is not None:
        line, message = code.error
        warn("script-syntax", source, _line(script, line, source), f"Python cannot read this script: {message}")
    for name, line in code.forbidden.items():
        message = f"scripts cannot import `{name}`"
        hint = "scripts have no files, network or other packages: do this in the handler of an event facet"
        warn("script-import", source, _line(script, line, source), message, valid=SCRIPT_MODULES, hint=hint)
    for name, line in code.undefined.items():
        message = f"scripts do not have Python's `{name}`" if has_builtin(name) else f"this script never defines `{name}`"
        warn("script-name", source, _line(script, line, source), message)
    if code.rebinds is not None:
        message = "this assigns another value to `result`, so the script has no results"
        warn("script-result", source, _line(script, code.rebinds, source), message, hint='write `result["name"] = ...`')
    for name, line in code.reads.items():
        found, unsure = inputs.find(name)
        if found is not None and found.kind is Kind.SCRIPT and found.node is not script:
            known = context.keys_read.setdefault(id(found.node), set())
            if known is not None:
                known.add(name)
        own = pre and found is not None and found.node is script
        if (found is None and not unsure) or own:
            message = f"`params` has no `{name}` here"
            names = [each for each in inputs if not pre or each not in code.writes]
            warn("script-param", source, _line(script, line, source), message, valid=names, near=name)


def check_keys(facet: nodes.Facet, script: nodes.Script, source: Source, context: Context) -> None:
    """Warn about keys of a pre-script that are neither parameters nor read anywhere.

    A handler may read any key, and other programs those of a record; for them, only a key that resembles a parameter counts.
    """
    read = context.keys_read.get(id(script), set())
    if read is None or any(block.script is not None and read_script(block.script).reads_any for block in facet.blocks):
        return
    params = [param.name.text for param in facet.params]
    returns = {each.name.text for each in facet.returns}
    for name, line in read_script(script).writes.items():
        if name in params or name in returns or name in read:
            continue
        public = facet.kind is nodes.FacetKind.EVENT or not (facet.blocks or facet.kind is nodes.FacetKind.WORKFLOW)
        if not public or (context.reporter.detailed and nearest(name, params) is not None):
            message = f"nothing reads `{name}`, which this script adds to the inputs of `{facet.name.text}`"
            context.reporter.warn("script-key", source, _line(script, line, source), message, valid=params, near=name)


def check_results(script: nodes.Script, returns: Collection[str], source: Source, context: Context) -> None:
    """Warn about keys of a script after a block that are not declared as returns, and that no step's reader reads either."""
    read = context.keys_read.get(id(script), set())
    for name, line in read_script(script).writes.items():
        if name not in returns and read is not None and name not in read:
            message = f"this script gives `{name}`, which is not a declared return"
            context.reporter.warn("undeclared-return", source, _line(script, line, source), message, valid=returns, near=name)


def _line(script: nodes.Script, line: int, source: Source) -> nodes.Span:
    """Return the place of a line of the code, without its indentation."""
    number = min(script.code_line + line - 1, script.span.end_line)
    text = source.line(number)
    start = script.span.column - 1 if number == script.span.line else len(text) - len(text.lstrip())
    return nodes.Span(number, start + 1, number, max(len(text.rstrip()), start + 1) + 1)


def check_prompt(facet: nodes.Facet, prompt: nodes.Prompt, source: Source, context: Context) -> None:
    """Report a missing template, repeated directives and placeholders that are not parameters."""
    is_event = facet.kind is nodes.FacetKind.EVENT
    if not is_event:
        message = f"only an event facet's prompt is ever used; `{facet.name.text}` is a {facet.kind}"
        context.reporter.warn("prompt-without-event", source, prompt.span, message)
    say = context.reporter.report if is_event else context.reporter.warn
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
                say("unknown-placeholder", source, kind.span, message, valid=params, near=name)
    if "template" not in first:
        message = f"the prompt of `{facet.name.text}` has no `template`"
        context.reporter.report("prompt-template", source, prompt.span, message)


# --- placeholders in strings -----------------------------------------------------------------------------------------

_PATH = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_IN_STRING = re.compile(rf"(?<!\{{)\$?\{{((?:\$\.)?{_PATH})\}}(?!\}})|(?<![\w{{$])(\$\.{_PATH})")
_REFERENCE = re.compile(_PATH.replace(")*", ")+"))


def filled_by(args: Iterable[nodes.Arg]) -> frozenset[str]:
    """Return the names that a callee can replace itself in a template among its arguments: the other arguments, keys of maps."""
    found: set[str] = set()
    for arg in args:
        found.add(arg.name.text)
        if isinstance(arg.value, nodes.MapLiteral):
            found.update(entry.key.text for entry in arg.value.entries)
    return frozenset(found)


def check_placeholders(expr: nodes.Literal, filled: frozenset[str], scope: Scope, context: Context) -> None:
    """Warn about placeholders that are exactly the name of something visible here, unless the callee gets it, too."""
    pieces: list[str] = []
    first, position, text = "", 0, str(expr.value)
    whole = _REFERENCE.fullmatch(text)  # a reference in quotes
    places = (
        _IN_STRING.finditer(text) if whole is None else iter([whole] if scope.find_loop_or_step(text.partition(".")[0]) else [])
    )
    for found in places:
        inside = text if whole is not None else found[1] or found[2]
        path = inside.removeprefix("$.").split(".")
        meant = None if path[0] in filled else _meant(path, inside.startswith("$."), scope)
        if meant is not None:
            first = first or found[0]
            pieces += [encode(text[position : found.start()]), meant]
            position = found.end()
    if pieces:
        pieces += [encode(text[position:])]
        right = " ++ ".join(piece for number, piece in enumerate(pieces) if piece != '""' or (number == 0 and len(pieces) == 3))
        after = scope.opening.source.line(expr.span.end_line)[expr.span.end_column - 1 :]
        right = f"({right})" if after.lstrip().startswith("[") else right
        message = f"`{first}` in a string stays as it is; strings have no placeholders"
        fixes = [replace("Concatenate the parts", expr.span, right)]
        context.reporter.warn(
            "string-placeholder", scope.opening.source, expr.span, message, hint=f"join texts with `++`: `{right}`", fixes=fixes
        )


def _meant(path: list[str], is_input: bool, scope: Scope) -> str | None:
    """Return the reference that a placeholder means, if there is such a value."""
    hit = None if is_input else scope.find_loop_or_step(path[0])
    if hit is not None:
        step = hit[1]
        visible = path[0] in set(scope.visible())
        known = step is None or step.node.value is not None or (len(path) > 1 and step.attributes.find(path[1]) is not None)
        return ".".join(path) if visible and known else None
    return f"$.{'.'.join(path)}" if scope.inputs.find(path[0])[0] is not None else None
