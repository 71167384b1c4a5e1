"""The compiler as the server sees it: trees, declarations and diagnostics of the files of one program.

Parsing is cached by text, so an edit parses one file. What cannot be read of a file with a syntax error is taken from its last
text that could be read; its own diagnostics are then those of its syntax alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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
    """A parsed text; if it is `broken`, declarations that cannot be read are those of an earlier text."""

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
        parsed = parse(source, reporter)
        file = parsed.file
        if file is None:
            file = parsed.partial if known is None else _completed(parsed.partial, known.tree)
        self._parsed[path] = Parsed(source, file, parsed.file is None, reporter.sorted())
        return self._parsed[path]

    def forget(self, path: str) -> None:
        self._parsed.pop(path, None)


def _completed(partial: tree.File, last: tree.File) -> tree.File:
    """Add the declarations of an earlier tree that a broken text does not have."""
    known = {name for name, _ in _declarations(partial.items)}
    more: list[tree.Namespace | tree.Item] = []
    for item in last.items:
        if isinstance(item, tree.Namespace) and not item.file_scoped:
            missing = tuple(each for name, each in _declarations((item,)) if name not in known)
            more += [replace(item, items=missing)] if missing else []
        else:
            more += [each for name, each in _declarations((item,)) if name not in known]
    return replace(partial, items=(*partial.items, *more))


def _declarations(items: tuple[tree.Namespace | tree.Item, ...], prefix: str = "") -> Iterator[tuple[str, tree.Item]]:
    for item in items:
        if isinstance(item, tree.Namespace):
            yield from _declarations(item.items, f"{item.name.text}.")
        elif isinstance(item, tree.Facet | tree.Schema):
            yield prefix + item.name.text, item


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
