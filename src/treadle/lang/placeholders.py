"""Warns about `{name}` and `${name}` in strings, which other languages replace by a value and AFL does not."""

from __future__ import annotations

import re
from collections.abc import Iterable

from treadle.lang import tree
from treadle.lang.bindings import Context
from treadle.lang.diagnostics import replace
from treadle.lang.escapes import encode
from treadle.lang.scope import Scope

_PATH = r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*"
_PLACEHOLDER = re.compile(rf"(?<!\{{)\$?\{{((?:\$\.)?{_PATH})\}}(?!\}})|(?<![\w{{$])(\$\.{_PATH})")
_REFERENCE = re.compile(_PATH.replace(")*", ")+"))


def filled_by(args: Iterable[tree.Arg]) -> frozenset[str]:
    """Return the names that a callee can replace itself in a template among its arguments: the other arguments, keys of maps."""
    found: set[str] = set()
    for arg in args:
        found.add(arg.name.text)
        if isinstance(arg.value, tree.MapLiteral):
            found.update(entry.key.text for entry in arg.value.entries)
    return frozenset(found)


def check_placeholders(expr: tree.Literal, filled: frozenset[str], scope: Scope, context: Context) -> None:
    """Warn about placeholders that are exactly the name of something visible here, unless the callee gets it, too."""
    pieces: list[str] = []
    first, position, text = "", 0, str(expr.value)
    whole = _REFERENCE.fullmatch(text)  # a reference in quotes
    places = (
        _PLACEHOLDER.finditer(text) if whole is None else iter([whole] if scope.find_loop_or_step(text.partition(".")[0]) else [])
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
