"""The compiler as the server sees it: trees, declarations and diagnostics of the files of one program.

Parsing is cached by text, so an edit parses one file. A file with a syntax error keeps its last good tree for the others,
and for questions about names and types; its own diagnostics are then those of its syntax alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.lang import tree
from treadle.lang.check import check
from treadle.lang.declare import declare
from treadle.lang.diagnostics import Diagnostic, Reporter, Source
from treadle.lang.names import Symbols
from treadle.lang.parse import parse


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed text; `tree` is that of the last good text if `broken`."""

    source: Source
    tree: tree.File
    broken: bool
    diagnostics: tuple[Diagnostic, ...]


class Parser:
    """Parses files, each text once, and remembers the last good tree of each."""

    def __init__(self) -> None:
        self._parsed: dict[str, Parsed] = {}

    def parse(self, path: str, text: str) -> Parsed:
        known = self._parsed.get(path)
        if known is not None and known.source.text == text:
            return known
        reporter, source = Reporter(), Source(path, text)
        file = parse(source, reporter).file
        last = known.tree if known is not None else tree.File(path, ())
        self._parsed[path] = Parsed(source, file or last, file is None, reporter.sorted())
        return self._parsed[path]

    def forget(self, path: str) -> None:
        self._parsed.pop(path, None)


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """One program: its files by path, its declarations, and the diagnostics of each file."""

    files: dict[str, Parsed]
    symbols: Symbols
    diagnostics: dict[str, list[Diagnostic]] = field(default_factory=dict)


def analyse(files: dict[str, Parsed], *, checked: bool = True) -> Analysis:
    """Check files as one program, or only collect what they declare; of several declarations of one name the first counts."""
    reporter = Reporter()
    symbols = declare([(each.source, each.tree) for each in files.values()], reporter)
    if not checked:
        return Analysis(files, symbols)
    check(symbols, reporter)
    found = {path: list(parsed.diagnostics) for path, parsed in files.items()}
    for each in reporter.sorted():
        if each.source in files and not files[each.source].broken:
            found[each.source].append(each)
    return Analysis(files, symbols, found)
