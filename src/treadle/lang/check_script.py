"""Checks scripts and prompts: a script has Python code that can run, a prompt a template whose placeholders are parameters.

Also warns about `{name}` and `${name}` in strings, which other languages replace by a value and AFL does not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from treadle.lang import nodes
from treadle.lang.diagnostics import nearest, replace
from treadle.lang.literals import encode
from treadle.lang.names import Kind
from treadle.lang.scope import CheckScope
from treadle.lang.script_code import has_builtin, read_script
from treadle.model.scripts import SCRIPT_MODULES

_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")


def check_script(script: nodes.Script, scope: CheckScope, *, pre: bool = False) -> None:
    """Report another language than Python, a script without code, and code that cannot run.

    The inputs of the scope are the names of `params`; a pre-script (`pre`) cannot read what it adds itself.
    """
    if script.language != nodes.PYTHON:
        scope.report("script-language", script.language.span, valid=["python"], language=script.language.text)
        return
    if not script.code.strip():
        scope.report("empty-script", script.span)
        return
    code, warn = read_script(script), scope.warn
    if code.error is not None:
        line, message = code.error
        warn("script-syntax", _line(script, line, scope), error=message)
    for name, line in code.forbidden.items():
        warn("script-import", _line(script, line, scope), valid=SCRIPT_MODULES, name=name)
    for name, line in code.undefined.items():
        if has_builtin(name):
            warn("script-name:builtin", _line(script, line, scope), name=name)
        else:
            warn("script-name", _line(script, line, scope), name=name)
    if code.rebinds is not None:
        warn("script-result", _line(script, code.rebinds, scope))
    for name, line in code.reads.items():
        definition, unsure = scope.inputs.find(name)
        if definition is not None and definition.kind is Kind.SCRIPT and definition.node is not script:
            keys = scope.context.keys_read.setdefault(id(definition.node), set())
            if keys is not None:
                keys.add(name)
        own = pre and definition is not None and definition.node is script
        if (definition is None and not unsure) or own:
            names = [input_name for input_name in scope.inputs if not pre or input_name not in code.writes]
            warn("script-param", _line(script, line, scope), valid=names, near=name)


def check_keys(facet: nodes.Facet, script: nodes.Script, scope: CheckScope) -> None:
    """Warn about keys of a pre-script that are neither parameters nor read anywhere.

    A handler may read any key, and other programs those of a record; for them, only a key that resembles a parameter counts.
    """
    read = scope.context.keys_read.get(id(script), set())
    if read is None or any(block.script is not None and read_script(block.script).reads_any for block in facet.blocks):
        return
    params = [param.name.text for param in facet.params]
    returns = {param.name.text for param in facet.returns}
    for name, line in read_script(script).writes.items():
        if name in params or name in returns or name in read:
            continue
        public = facet.kind is nodes.FacetKind.EVENT or not (facet.blocks or facet.kind is nodes.FacetKind.WORKFLOW)
        if not public or (scope.context.reporter.detailed and nearest(name, params) is not None):
            scope.warn("script-key", _line(script, line, scope), valid=params, near=name, facet=facet.name.text)


def check_results(script: nodes.Script, returns: Collection[str], scope: CheckScope) -> None:
    """Warn about keys of a script after a block that are not declared as returns, and that no step's reader reads either."""
    read = scope.context.keys_read.get(id(script), set())
    for name, line in read_script(script).writes.items():
        if name not in returns and read is not None and name not in read:
            scope.warn("undeclared-return:script", _line(script, line, scope), valid=returns, near=name)


def _line(script: nodes.Script, line: int, scope: CheckScope) -> nodes.Span:
    """Return the place of a line of the code, without its indentation."""
    number = min(script.code_line + line - 1, script.span.end_line)
    text = scope.opening.source.line(number)
    start = script.span.column - 1 if number == script.span.line else len(text) - len(text.lstrip())
    return nodes.Span(number, start + 1, number, max(len(text.rstrip()), start + 1) + 1)


def check_prompt(facet: nodes.Facet, prompt: nodes.PromptBlock, scope: CheckScope) -> None:
    """Report a missing template, repeated directives and placeholders that are not parameters."""
    is_event = facet.kind is nodes.FacetKind.EVENT
    if not is_event:
        scope.warn("prompt-without-event", prompt.span, facet=facet.name.text, kind=facet.kind)
    say = scope.report if is_event else scope.warn
    params = {param.name.text for param in facet.params}
    first: dict[str, int] = {}
    for directive in prompt.directives:
        kind = directive.kind
        if kind.text in first:
            scope.warn("duplicate-directive", kind.span, kind=kind.text, line=first[kind.text])
        first.setdefault(kind.text, kind.span.line)
        if kind.text == "model":
            continue
        for name in dict.fromkeys(_PLACEHOLDER.findall(directive.text)):
            if name not in params:
                say("unknown-placeholder", kind.span, valid=params, near=name, kind=kind.text, facet=facet.name.text)
    if "template" not in first:
        scope.report("prompt-template", prompt.span, facet=facet.name.text)


# --- placeholders in strings -----------------------------------------------------------------------------------------

_PATH = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_IN_STRING = re.compile(rf"(?<!\{{)\$?\{{((?:\$\.)?{_PATH})\}}(?!\}})|(?<![\w{{$])(\$\.{_PATH})")
_REFERENCE = re.compile(_PATH.replace(")*", ")+"))


def filled_by(args: Iterable[nodes.Arg]) -> frozenset[str]:
    """Return the names that a callee can replace itself in a template among its arguments: the other arguments, keys of maps."""
    names: set[str] = set()
    for arg in args:
        names.add(arg.name.text)
        if isinstance(arg.value, nodes.MapLiteral):
            names.update(entry.name.text for entry in arg.value.entries)
    return frozenset(names)


def check_placeholders(expr: nodes.Literal, filled: frozenset[str], scope: CheckScope) -> None:
    """Warn about placeholders that are exactly the name of something visible here, unless the callee gets it, too."""
    pieces: list[str] = []
    first, position, text = "", 0, str(expr.value)
    whole = _REFERENCE.fullmatch(text)  # a reference in quotes
    places = (
        _IN_STRING.finditer(text) if whole is None else iter([whole] if scope.find_loop_or_step(text.partition(".")[0]) else [])
    )
    for match in places:
        inside = text if whole is not None else match[1] or match[2]
        path = inside.removeprefix("$.").split(".")
        meant = None if path[0] in filled else _meant(path, inside.startswith("$."), scope)
        if meant is not None:
            first = first or match[0]
            pieces += [encode(text[position : match.start()]), meant]
            position = match.end()
    if pieces:
        pieces += [encode(text[position:])]
        right = " ++ ".join(piece for number, piece in enumerate(pieces) if piece != '""' or (number == 0 and len(pieces) == 3))
        after = scope.opening.source.line(expr.span.end_line)[expr.span.end_column - 1 :]
        right = f"({right})" if after.lstrip().startswith("[") else right
        fixes = [replace("Concatenate the parts", expr.span, right)]
        scope.warn("string-placeholder", expr.span, fixes=fixes, first=first, right=right)


def _meant(path: list[str], is_input: bool, scope: CheckScope) -> str | None:
    """Return the reference that a placeholder means, if there is such a value."""
    hit = None if is_input else scope.find_loop_or_step(path[0])
    if hit is not None:
        step = hit[1]
        visible = path[0] in set(scope.visible())
        exists = step is None or step.node.value is not None or (len(path) > 1 and step.attributes.find(path[1]) is not None)
        return ".".join(path) if visible and exists else None
    return f"$.{'.'.join(path)}" if scope.inputs.find(path[0])[0] is not None else None
