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
        if known is not None and (again := _parsed_again(known, source)) is not None:
            self._parsed[path] = again
            return again
        parsed = parse(source, reporter)
        file = parsed.file
        if file is None:
            file = parsed.partial if known is None else _completed(parsed.partial, known.tree)
        self._parsed[path] = Parsed(source, file, parsed.file is None, reporter.sorted())
        return self._parsed[path]

    def forget(self, path: str) -> None:
        self._parsed.pop(path, None)


def _parsed_again(known: Parsed, source: Source) -> Parsed | None:
    """Parse only the declaration that an edit lies in; None if the edit touches others, or the lines of others."""
    old, new = known.source.text, source.text
    if known.broken or known.diagnostics or old.count("\n") != new.count("\n"):
        return None
    start, end = _edited(old, new)
    found = _around(known.tree.items, known.source, start, end)
    if found is None:
        return None
    item, first, last = found
    reporter = Reporter()
    part = Source(source.name, "\n" * (item.span.line - 1) + " " * (item.span.column - 1) + new[first : last + len(new) - len(old)])
    file = parse(part, reporter).file
    if file is None or len(file.items) != 1 or reporter.found or type(file.items[0]) is not type(item):
        return None
    again = replace(file.items[0], doc=item.doc)
    items = tuple(_replaced(each, item, again) for each in known.tree.items)
    return Parsed(source, replace(known.tree, items=items), False, ())


def _edited(old: str, new: str) -> tuple[int, int]:
    """Return the part of the old text that an edit replaced."""
    shorter = min(len(old), len(new))
    start = next((at for at in range(0, shorter, 4096) if old[at : at + 4096] != new[at : at + 4096]), shorter)
    while start < shorter and old[start] == new[start]:
        start += 1
    end, other = len(old), len(new)
    while end - 4096 > start and other - 4096 > start and old[end - 4096 : end] == new[other - 4096 : other]:
        end, other = end - 4096, other - 4096
    while end > start and other > start and old[end - 1] == new[other - 1]:
        end, other = end - 1, other - 1
    return start, end


def _around(
    items: tuple[tree.Namespace | tree.Item, ...], source: Source, start: int, end: int
) -> tuple[tree.Facet | tree.Schema, int, int] | None:
    """Return the declaration that an edit lies in, alone on its lines, with its offsets."""
    for number, item in enumerate(items):
        span = item.span
        first, last = source.offset(span.line, span.column), source.offset(span.end_line, span.end_column)
        if first < start and end < last:
            alone = number + 1 == len(items) or items[number + 1].span.line > span.end_line
            if isinstance(item, tree.Namespace):
                alone = alone and (not item.items or item.items[-1].span.end_line < span.end_line)
                return _around(item.items, source, start, end) if alone else None
            return (item, first, last) if alone and isinstance(item, tree.Facet | tree.Schema) else None
    return None


def _replaced(item: tree.Namespace | tree.Item, old: tree.Item, new: tree.Item) -> tree.Namespace | tree.Item:
    if isinstance(item, tree.Namespace) and any(each is old for each in item.items):
        return replace(item, items=tuple(new if each is old else each for each in item.items))
    return new if item is old else item


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
