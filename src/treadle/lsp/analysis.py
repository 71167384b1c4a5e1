"""The compiler as the server sees it: trees, declarations and diagnostics of the files of one program.

Parsing is cached by text, so an edit parses one file. A file with a syntax error keeps its last good tree for the others,
and for questions about names and types; its own diagnostics are then those of its syntax alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from treadle.lang import tree
from treadle.lang.analysis import Analysis as Queries
from treadle.lang.analysis import analyse as check_and_query
from treadle.lang.attributes import AttributeTables
from treadle.lang.bindings import Context
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
    """One program: its files by path, its declarations, queries about its names, and the diagnostics of each file."""

    files: dict[str, Parsed]
    queries: Queries
    diagnostics: dict[str, list[Diagnostic]]

    @property
    def symbols(self) -> Symbols:
        return self.queries.context.symbols


def analyse(files: dict[str, Parsed]) -> Analysis:
    """Check files as one program."""
    reporter = Reporter()
    queries = check_and_query([(each.source, each.tree) for each in files.values()], reporter)
    found = {path: list(parsed.diagnostics) for path, parsed in files.items()}
    for each in reporter.sorted():
        if each.source in files and not files[each.source].broken:
            found[each.source].append(each)
    return Analysis(files, queries, found)


def collect(files: dict[str, Parsed]) -> Analysis:
    """Collect the declarations of files without checking them; of several with one name the first counts."""
    reporter = Reporter()
    symbols = declare([(each.source, each.tree) for each in files.values()], reporter)
    return Analysis(files, Queries(Context(symbols, reporter, AttributeTables(symbols))), {})
