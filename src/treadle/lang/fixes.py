"""Applies the fixes of diagnostics, round by round, as the fix of one error often brings the next to light."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from treadle.lang.compiler import Compiled, compile_sources
from treadle.lang.diagnostics import Diagnostic, Edit, Source

_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Fixed:
    """The sources after all fixes, the diagnostics whose fixes were applied, and the compilation of the result."""

    sources: tuple[tuple[str, str], ...]
    applied: tuple[Diagnostic, ...]
    compiled: Compiled


def fix_sources(sources: Iterable[tuple[str, str]]) -> Fixed:
    """Apply the first fix of every diagnostic until none is left; fixes that overlap wait for the next round."""
    texts = dict(sources)
    applied: list[Diagnostic] = []
    seen = {tuple(texts.values())}
    compiled = compile_sources(texts.items())
    for _ in range(_ROUNDS):
        chosen, edits = _choose(compiled.diagnostics)
        if not chosen:
            break
        changed = {name: Source(name, text).apply(edits.get(name, ())) for name, text in texts.items()}
        if tuple(changed.values()) in seen:
            break
        texts = changed
        seen.add(tuple(texts.values()))
        applied += chosen
        compiled = compile_sources(texts.items())
    return Fixed(tuple(texts.items()), tuple(applied), compiled)


def _choose(diagnostics: Iterable[Diagnostic]) -> tuple[list[Diagnostic], dict[str, list[Edit]]]:
    chosen: list[Diagnostic] = []
    edits: dict[str, list[Edit]] = {}
    for each in diagnostics:
        taken = edits.setdefault(each.source, [])
        if each.fixes and not any(_overlap(new, old) for new in each.fixes[0].edits for old in taken):
            chosen.append(each)
            taken += each.fixes[0].edits
    return chosen, edits


def _overlap(one: Edit, other: Edit) -> bool:
    if one.span[:2] == other.span[:2]:
        return True
    return one.span[:2] < other.span[2:] and other.span[:2] < one.span[2:]
