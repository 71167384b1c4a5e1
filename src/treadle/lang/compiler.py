"""Compiles sources to one program and all diagnostics, and applies the fixes of the diagnostics."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from treadle.lang import nodes
from treadle.lang.check import check
from treadle.lang.collection import without_collection
from treadle.lang.declare import declare
from treadle.lang.diagnostics import Diagnostic, Edit, Reporter, Severity, Source
from treadle.lang.emit import emit, encode_program
from treadle.lang.parse import parse
from treadle.lang.program import Program
from treadle.lang.scope import CheckContext

_DOUBLE = re.compile(rb'"type":"Double","value":([^,}]*)')


@dataclass(frozen=True, slots=True)
class Compiled:
    """A compilation: with errors, `program` and `digest` are empty; warnings alone do not prevent compilation."""

    program: dict[str, Any]
    diagnostics: tuple[Diagnostic, ...]
    digest: str

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(diagnostic for diagnostic in self.diagnostics if diagnostic.severity is Severity.ERROR)

    @property
    def warnings(self) -> tuple[Diagnostic, ...]:
        return tuple(diagnostic for diagnostic in self.diagnostics if diagnostic.severity is Severity.WARNING)

    def strictly(self) -> Compiled:
        """Return the result of a strict compilation: warnings are errors, and the program is strict about results of handlers."""
        if self.diagnostics:
            return Compiled({}, tuple(replace(diagnostic, severity=Severity.ERROR) for diagnostic in self.diagnostics), "")
        program = {**self.program, "strict": True}
        return Compiled(program, (), digest_of(encode_program(Program.load(program), locations=False)))

    def render(self) -> str:
        """Format all diagnostics as text."""
        return "\n".join(diagnostic.render() for diagnostic in self.diagnostics)


@without_collection
def compile_sources(
    sources: Iterable[tuple[str, str]],
    *,
    libraries: Iterable[tuple[str, str]] = (),
    locations: bool = True,
    reference: bool = False,
) -> Compiled:
    """Compile `(name, text)` pairs into one program; never raises because of their content.

    Libraries are compiled too, without reporting their warnings. After a syntax error in any source only syntax is checked,
    because many names would be missing. With `reference`, extensions that the reference implementation does not have are errors.
    """
    reporter = Reporter()
    every = [Source(name, text) for name, text in sources] + [Source(name, text, True) for name, text in libraries]
    files: list[tuple[Source, nodes.File]] = []
    for number, source in enumerate(every):
        reporter.sources.setdefault(source.name, number)
        file = parse(source, reporter).file
        if file is not None:
            files.append((source, file))
    if len(files) < len(every):
        return Compiled({}, reporter.sorted(), "")
    context = check(declare(files, reporter), reporter)
    if reference:
        check_reference(context)
    diagnostics = reporter.sorted()
    if any(diagnostic.severity is Severity.ERROR for diagnostic in diagnostics):
        return Compiled({}, diagnostics, "")
    program, digest = emit(context, digest_of, locations=locations)
    return Compiled(program, diagnostics, digest)


def digest_of(program: dict[str, Any]) -> str:
    """Return the sha256 of a program without locations, in canonical JSON: equal for sources with the same meaning."""
    return hashlib.sha256(_canonical(program)).hexdigest()


def _canonical(program: dict[str, Any]) -> bytes:
    """Return the same bytes as `json.dumps` with sorted keys and ASCII only, which is slower and defines the digest."""
    try:
        data = msgspec.json.encode(program, order="sorted")
    except (OverflowError, ValueError, msgspec.MsgspecError):
        data = b"\x7f"
    if data.isascii() and b"\x7f" not in data and all(repr(float(number)) == number.decode() for number in _DOUBLE.findall(data)):
        return data
    return json.dumps(program, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")


# --- extensions to the reference implementation ----------------------------------------------------------------------

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


def check_reference(context: CheckContext) -> None:
    """Report every use of an extension as an error, for programs that must run on the reference implementation, too."""
    for name, source, span in context.extensions:
        construct, instead = EXTENSIONS[name]
        context.reporter.report("reference-extension", source, span, shown=construct, instead=instead)


# --- fixes, applied round by round, as the fix of one error often brings the next to light ---------------------------

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
    for diagnostic in diagnostics:
        accepted = edits.setdefault(diagnostic.source, [])
        if diagnostic.fixes and not any(_overlap(new, old) for new in diagnostic.fixes[0].edits for old in accepted):
            chosen.append(diagnostic)
            accepted += diagnostic.fixes[0].edits
    return chosen, edits


def _overlap(one: Edit, other: Edit) -> bool:
    if one.span[:2] == other.span[:2]:
        return True
    return one.span[:2] < other.span[2:] and other.span[:2] < one.span[2:]
