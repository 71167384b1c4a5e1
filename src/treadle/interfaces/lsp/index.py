"""The meaning of every name in a program: each occurrence with the declaration that it means.

The compiler knows the names of the language itself; those in prompts and scripts are added here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.scan import scan
from treadle.lang import nodes
from treadle.lang.analysis import Analysis as Queries
from treadle.lang.analysis import analyse as check_and_query
from treadle.lang.attributes import AttributeTables
from treadle.lang.builtins import BUILTIN_MIXINS, FUNCTIONS
from treadle.lang.declare import built_in_declarations, declare
from treadle.lang.diagnostics import Diagnostic, Reporter, Source
from treadle.lang.names import Declared, Definition, Kind, Opening, Symbols
from treadle.lang.nodes import NOWHERE, Doc, Name, Span
from treadle.lang.parse import parse
from treadle.lang.scope import Context
from treadle.lang.types import BUILTIN, UNKNOWN, Type


@dataclass(frozen=True, slots=True)
class Parsed:
    """A parsed text; if it is `broken`, declarations that cannot be read are those of an earlier text."""

    source: Source
    tree: nodes.File
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
    items: tuple[nodes.Namespace | nodes.Item, ...], source: Source, start: int, end: int
) -> tuple[nodes.Facet | nodes.Schema, int, int] | None:
    """Return the declaration that an edit lies in, alone on its lines, with its offsets."""
    for number, item in enumerate(items):
        span = item.span
        first, last = source.offset(span.line, span.column), source.offset(span.end_line, span.end_column)
        if first < start and end < last:
            alone = number + 1 == len(items) or items[number + 1].span.line > span.end_line
            if isinstance(item, nodes.Namespace):
                alone = alone and (not item.items or item.items[-1].span.end_line < span.end_line)
                return _around(item.items, source, start, end) if alone else None
            return (item, first, last) if alone and isinstance(item, nodes.Facet | nodes.Schema) else None
    return None


def _replaced(item: nodes.Namespace | nodes.Item, old: nodes.Item, new: nodes.Item) -> nodes.Namespace | nodes.Item:
    if isinstance(item, nodes.Namespace) and any(each is old for each in item.items):
        return replace(item, items=tuple(new if each is old else each for each in item.items))
    return new if item is old else item


def _completed(partial: nodes.File, last: nodes.File) -> nodes.File:
    """Add the declarations of an earlier tree that a broken text does not have."""
    known = {name for name, _ in _declarations(partial.items)}
    more: list[nodes.Namespace | nodes.Item] = []
    for item in last.items:
        if isinstance(item, nodes.Namespace) and not item.file_scoped:
            missing = tuple(each for name, each in _declarations((item,)) if name not in known)
            more += [replace(item, items=missing)] if missing else []
        else:
            more += [each for name, each in _declarations((item,)) if name not in known]
    return replace(partial, items=(*partial.items, *more))


def _declarations(items: tuple[nodes.Namespace | nodes.Item, ...], prefix: str = "") -> Iterator[tuple[str, nodes.Item]]:
    for item in items:
        if isinstance(item, nodes.Namespace):
            yield from _declarations(item.items, f"{item.name.text}.")
        elif isinstance(item, nodes.Facet | nodes.Schema):
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


_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PARAMS = re.compile(r"""\bparams(?:\[|\.get\()\s*["'](\w+)["']""")
_RESULT = re.compile(r"""\bresult\[\s*["'](\w+)["']\s*\]""")


DECLARATIONS = frozenset([Kind.FACET, Kind.EVENT, Kind.WORKFLOW, Kind.SCHEMA])


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A declared name. `path` and `span` are empty for what is built in, and for namespaces, which are opened many times.

    `declared` is the facet or schema itself, or that of a step or alias; `owner` that of a parameter, return or field.
    """

    kind: Kind
    name: str
    path: str = ""
    span: Span | None = None
    declared: Declared | None = None
    owner: Declared | None = None
    node: object = None
    type: Type = UNKNOWN

    @property
    def key(self) -> tuple[str, str, Span | None]:
        """The identity of the name, equal in all programs that contain its declaration."""
        return (self.path, self.name, self.span)

    @property
    def doc(self) -> Doc | None:
        """The doc comment of a facet or schema, also of a step that calls it; of a parameter or return its line there."""
        if self.owner is None:
            return None if self.declared is None else self.declared.node.doc
        doc = self.owner.node.doc
        lines = () if doc is None else doc.returns if self.kind is Kind.RETURN else doc.params
        texts = [text for name, text in lines if name == self.name]
        return Doc("\n".join(texts), (), ()) if texts else None


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The place of a name, as offsets."""

    start: int
    end: int
    symbol: Symbol
    is_declaration: bool


class Index:
    """The occurrences of each file, computed on first use."""

    def __init__(
        self, analysis: Analysis, documents: dict[str, Document], namespaces: Iterable[str] = (), checked: Index | None = None
    ) -> None:
        self.analysis = analysis
        self._checked = analysis if checked is None else checked.analysis
        self.documents = {path: documents[path] for path in analysis.files}
        self.symbols = analysis.symbols
        self.namespaces = {*self.symbols.namespaces, *namespaces}
        self._tables = analysis.queries.context.tables
        self._made: dict[int, Symbol] = {}
        self._occurrences: dict[str, list[Occurrence]] = {}
        self._owners: dict[int, Declared] = {}
        for declared in [*self.symbols.taken.values(), *built_in_declarations().values()]:
            node = declared.node
            params = node.fields if isinstance(node, nodes.Schema) else node.params + node.returns
            self._owners.update((id(param), declared) for param in params)

    # --- occurrences

    def occurrences(self, path: str) -> list[Occurrence]:
        """Return all resolved names of a file, in source order."""
        if path not in self._occurrences:
            document = self.documents[path]
            found = {(each.start, each.end): each for each in self._find(path, document)}
            # A broken file has the names of its last good text; those count that still stand at the same place.
            kept = [each for each in found.values() if document.text[each.start : each.end] == each.symbol.name]
            self._occurrences[path] = sorted(kept, key=lambda each: (each.start, each.end))
        return self._occurrences[path]

    def _find(self, path: str, document: Document) -> Iterator[Occurrence]:
        for use in self.analysis.queries.uses(path):
            symbol = self.symbol(use.definition)
            start, end = document.offsets(use.span)
            short = end - len(symbol.name)
            if symbol.kind in DECLARATIONS and start < short:
                yield Occurrence(start, short - 1, self.namespace(document.text[start : short - 1]), False)
                start = short
            yield Occurrence(start, end, symbol, use.span == symbol.span and path == symbol.path)
        for opening in self.symbols.openings:
            if opening.source.name == path:
                if opening.node is not None:
                    start, end = document.offsets(opening.node.name.span)
                    yield Occurrence(start, end, self.namespace(opening.node.name.text), True)
                yield from self._mentions(opening, document)
        for name, source, span in self.analysis.queries.context.extensions:
            if name == "function" and source.name == path:
                start, end = document.offsets(span)
                word = document.text[start:end]
                if word in FUNCTIONS:  # not in a broken file, which has the places of its last good text
                    yield Occurrence(start, end, Symbol(Kind.FUNCTION, word), False)
        before = ""
        for token in scan(document.text):
            if token.kind == "word" and before in (":", "[") and token.text in BUILTIN:
                yield Occurrence(token.start, token.end, Symbol(Kind.TYPE, token.text, type=BUILTIN[token.text]), False)
            elif token.kind == "word" and before == "with" and token.text in BUILTIN_MIXINS:
                yield Occurrence(token.start, token.end, Symbol(Kind.MIXIN, token.text), False)
            before = before if token.kind in ("comment", "doc") else token.text

    def _mentions(self, opening: Opening, document: Document) -> Iterator[Occurrence]:
        """Yield the parameters and returns that prompts and scripts mention."""
        for item in opening.items:
            declared = self.symbols.taken.get(opening.qualify(item.name.text)) if isinstance(item, nodes.Facet) else None
            if declared is None or not isinstance(item, nodes.Facet) or declared.node is not item:
                continue
            inputs, returns = self.inputs(declared), self.returns(declared)
            if item.prompt is not None:
                yield from _matches(_PLACEHOLDER, item.prompt.span, inputs, document)
            if item.pre_script is not None:
                yield from _matches(_PARAMS, item.pre_script.span, inputs, document)
                yield from _matches(_RESULT, item.pre_script.span, inputs | returns, document)
            for block in item.blocks:
                if block.script is not None:
                    yield from _matches(_PARAMS, block.script.span, inputs, document)
                    yield from _matches(_RESULT, block.script.span, returns, document)

    def at(self, path: str, offset: int) -> Occurrence | None:
        """Return the name at an offset, or that ends there."""
        every = self.occurrences(path)
        place = bisect_right(every, offset, key=lambda each: each.start)
        for each in reversed(every[max(0, place - 2) : place]):
            if each.start <= offset <= each.end:
                return each
        return None

    def references(self, symbol: Symbol) -> Iterator[tuple[str, Occurrence]]:
        """Yield all occurrences of a name in the program."""
        for path in self.documents:
            for each in self.occurrences(path):
                if each.symbol.key == symbol.key:
                    yield path, each

    # --- declarations

    def symbol(self, definition: Definition) -> Symbol:
        known = self._made.get(id(definition.node))
        if known is None or known.name != definition.name.text:
            name = definition.name
            kind, owner = definition.kind, self._owners.get(id(definition.node))
            if kind is Kind.NAMESPACE:
                return self.namespace(name.text)
            path, node = definition.source.name, definition.node
            known = Symbol(kind, name.text, path, name.span, definition.declared, owner, node, definition.type)
            self._made[id(definition.node)] = known
        return known

    def value(self, path: str, name: str) -> Symbol | None:
        """Return a value of a file by its name."""
        for _, scope in self._checked.queries.context.bindings.scopes:
            found = scope.steps.get(name)
            if found is not None and found.definition.kind is Kind.VALUE and scope.opening.source.name == path:
                return self.symbol(found.definition)
        return None

    def declaration(self, declared: Declared) -> Symbol:
        """Return the name of a facet or schema."""
        return self.symbol(self.symbols.definition(declared))

    def namespace(self, name: str) -> Symbol:
        return Symbol(Kind.NAMESPACE, name)

    def params(self, declared: Declared) -> dict[str, Symbol]:
        """Return the parameters of a facet, or the fields of a schema."""
        return self._all(self._tables.params(declared))

    def returns(self, declared: Declared) -> dict[str, Symbol]:
        return self._all(self._tables.returns(declared))

    def inputs(self, declared: Declared) -> dict[str, Symbol]:
        """Return the names that `$.` reads in the blocks of a facet; of a schema, its fields."""
        if isinstance(declared.node, nodes.Schema):
            return self.params(declared)
        return self._all(self._tables.inputs(declared).flat())

    def members(self, symbol: Symbol) -> dict[str, Symbol]:
        """Return the names that may follow a name and a dot."""
        if symbol.kind in (Kind.STEP, Kind.ALIAS) and symbol.declared is not None:
            return self._all(self._tables.attributes(symbol.declared).flat())
        found = self._tables.members(symbol.type)
        return {} if found is None else self._all(found.flat())

    def _all(self, definitions: Mapping[str, Definition]) -> dict[str, Symbol]:
        return {name: self.symbol(each) for name, each in definitions.items()}

    def resolve_callee(self, name: str, opening: Opening) -> Declared | None:
        return self.symbols.resolve_callee(Name(name, NOWHERE), opening).found

    def opening(self, path: str, namespace: str | None) -> Opening:
        """Return the section of a file in a namespace, to resolve names in."""
        for each in self.symbols.openings:
            if each.source.name == path and each.namespace == namespace:
                return each
        return Opening(namespace, (), self.analysis.files[path].source)


def _matches(pattern: re.Pattern[str], span: Span, known: dict[str, Symbol], document: Document) -> Iterator[Occurrence]:
    for match in pattern.finditer(document.text, *document.offsets(span)):
        symbol = known.get(match[1])
        if symbol is not None and symbol.kind is not Kind.SCRIPT:
            yield Occurrence(match.start(1), match.end(1), symbol, False)
