"""The meaning of every name in a program: each occurrence with the declaration that it means.

The compiler knows the names of the language itself; those in prompts and scripts are added here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from msgspec.structs import replace

from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.scan import scan
from treadle.lang import nodes
from treadle.lang.analysis import NameUse, list_uses
from treadle.lang.attributes import AttributeTables
from treadle.lang.builtins import BUILTIN_MIXINS, FUNCTIONS
from treadle.lang.check import check
from treadle.lang.declare import declare
from treadle.lang.diagnostics import Diagnostic, Reporter, Source
from treadle.lang.names import Declared, Definition, Kind, Opening
from treadle.lang.nodes import Name, Span
from treadle.lang.parse import parse
from treadle.lang.scope import CheckContext
from treadle.lang.types import BUILTIN, UNKNOWN, Type


@dataclass(frozen=True, slots=True)
class ParsedText:
    """A parsed text; if it is `broken`, declarations that cannot be read are those of an earlier text."""

    source: Source
    tree: nodes.File
    broken: bool
    diagnostics: tuple[Diagnostic, ...]


def parse_text(path: str, text: str, known: ParsedText | None = None) -> ParsedText:
    """Parse a file, unless `known` has this text; declarations that cannot be read are those of `known`."""
    if known is not None and known.source.text == text:
        return known
    reporter, source = Reporter(), Source(path, text)
    parsed = parse(source, reporter)
    tree = parsed.file
    if tree is None:
        tree = parsed.partial if known is None else _completed(parsed.partial, known.tree)
    return ParsedText(source, tree, parsed.file is None, reporter.sorted())


def _completed(partial: nodes.File, last: nodes.File) -> nodes.File:
    """Add the declarations of an earlier tree that a broken text does not have."""
    names = {name for name, _ in _declarations(partial.items)}
    more: list[nodes.Namespace | nodes.Item] = []
    for item in last.items:
        if isinstance(item, nodes.Namespace) and not item.file_scoped:
            missing = tuple(declaration for name, declaration in _declarations((item,)) if name not in names)
            more += [replace(item, items=missing)] if missing else []
        else:
            more += [declaration for name, declaration in _declarations((item,)) if name not in names]
    return replace(partial, items=(*partial.items, *more))


def _declarations(items: tuple[nodes.Namespace | nodes.Item, ...], prefix: str = "") -> Iterator[tuple[str, nodes.Item]]:
    for item in items:
        if isinstance(item, nodes.Namespace):
            yield from _declarations(item.items, f"{item.name.text}.")
        elif isinstance(item, nodes.Facet | nodes.Schema):
            yield prefix + item.name.text, item


_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PARAMS = re.compile(r"""\bparams(?:\[|\.get\()\s*["'](\w+)["']""")
_RESULT = re.compile(r"""\bresult\[\s*["'](\w+)["']\s*\]""")


_NO_SOURCE = Source("", "")
DECLARATIONS = frozenset([Kind.FACET, Kind.EVENT, Kind.WORKFLOW, Kind.SCHEMA])


def built_in(kind: Kind, name: str, type_: Type = UNKNOWN, declared: Declared | None = None) -> Definition:
    """Return the definition of a name without a place: what is built in, and namespaces, which are opened many times."""
    return Definition(kind, Name(name), type_, _NO_SOURCE, None, declared)


def key_of(symbol: Definition) -> tuple[str, str, Span]:
    """Return the identity of a name, equal in all programs that contain its declaration."""
    return (symbol.source.name, symbol.name.text, symbol.name.span)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The place of a name, as offsets."""

    start: int
    end: int
    symbol: Definition
    is_declaration: bool


class ProgramIndex:
    """One program: its files by path, the diagnostics of each, and the meanings of its names, computed on first use.

    `checked` is the index of a program whose values are those of this one.
    """

    def __init__(
        self, files: dict[str, ParsedText], context: CheckContext, documents: dict[str, Document],
        diagnostics: dict[str, list[Diagnostic]] | None = None, namespaces: Iterable[str] = (), checked: ProgramIndex | None = None,
    ) -> None:  # fmt: skip
        self.files, self.context, self.symbols, self._tables = files, context, context.symbols, context.tables
        self.documents = {path: documents[path] for path in files}
        self.diagnostics = diagnostics or {}
        self.namespaces = {*self.symbols.namespaces, *namespaces}
        self._checked = checked or self
        self._occurrences: dict[str, list[Occurrence]] = {}

    @cached_property
    def _uses(self) -> dict[str, list[NameUse]]:
        return list_uses(self.context)

    # --- occurrences

    def occurrences(self, path: str) -> list[Occurrence]:
        """Return all resolved names of a file, in source order."""
        if path not in self._occurrences:
            document = self.documents[path]
            by_range = {(occurrence.start, occurrence.end): occurrence for occurrence in self._find(path, document)}
            # A broken file has the names of its last good text; those count that still stand at the same place.
            current = [
                occurrence
                for occurrence in by_range.values()
                if document.text[occurrence.start : occurrence.end] == occurrence.symbol.name.text
            ]
            self._occurrences[path] = sorted(current, key=lambda occurrence: (occurrence.start, occurrence.end))
        return self._occurrences[path]

    def _find(self, path: str, document: Document) -> Iterator[Occurrence]:
        for use in self._uses.get(path, ()):
            symbol = use.definition
            if symbol.kind is Kind.NAMESPACE:
                symbol = built_in(Kind.NAMESPACE, symbol.name.text)
            start, end = document.offsets(use.span)
            short = end - len(symbol.name)
            if symbol.kind in DECLARATIONS and start < short:
                yield Occurrence(start, short - 1, built_in(Kind.NAMESPACE, document.text[start : short - 1]), False)
                start = short
            yield Occurrence(start, end, symbol, use.span == symbol.name.span and path == symbol.source.name)
        for opening in self.symbols.openings:
            if opening.source.name == path:
                if opening.node is not None:
                    start, end = document.offsets(opening.node.name.span)
                    yield Occurrence(start, end, built_in(Kind.NAMESPACE, opening.node.name.text), True)
                yield from self._mentions(opening, document)
        for name, source, span in self.context.extensions:
            if name == "function" and source.name == path:
                start, end = document.offsets(span)
                word = document.text[start:end]
                if word in FUNCTIONS:  # not in a broken file, which has the places of its last good text
                    yield Occurrence(start, end, built_in(Kind.FUNCTION, word), False)
        before = ""
        for token in scan(document.text):
            if token.kind == "word" and before in (":", "[") and token.text in BUILTIN:
                yield Occurrence(token.start, token.end, built_in(Kind.TYPE, token.text, BUILTIN[token.text]), False)
            elif token.kind == "word" and before == "with" and token.text in BUILTIN_MIXINS:
                yield Occurrence(token.start, token.end, built_in(Kind.MIXIN, token.text), False)
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
        place = bisect_right(every, offset, key=lambda occurrence: occurrence.start)
        for occurrence in reversed(every[max(0, place - 2) : place]):
            if occurrence.start <= offset <= occurrence.end:
                return occurrence
        return None

    def references(self, symbol: Definition) -> Iterator[tuple[str, Occurrence]]:
        """Yield all occurrences of a name in the program."""
        key = key_of(symbol)
        for path in self.documents:
            for occurrence in self.occurrences(path):
                if key_of(occurrence.symbol) == key:
                    yield path, occurrence

    # --- declarations

    def value(self, path: str, name: str) -> Definition | None:
        """Return a value of a file by its name."""
        for _, scope in self._checked.context.bindings.scopes:
            info = scope.steps.get(name)
            if info is not None and info.definition.kind is Kind.VALUE and scope.opening.source.name == path:
                return info.definition
        return None

    def params(self, declared: Declared) -> dict[str, Definition]:
        """Return the parameters of a facet, or the fields of a schema."""
        return self._tables.params(declared)

    def returns(self, declared: Declared) -> dict[str, Definition]:
        return self._tables.returns(declared)

    def inputs(self, declared: Declared) -> dict[str, Definition]:
        """Return the names that `$.` reads in the blocks of a facet; of a schema, its fields."""
        if isinstance(declared.node, nodes.Schema):
            return self._tables.params(declared)
        return self._tables.inputs(declared).flat()

    def members(self, symbol: Definition) -> dict[str, Definition]:
        """Return the names that may follow a name and a dot."""
        if symbol.kind in (Kind.STEP, Kind.ALIAS) and symbol.declared is not None:
            return self._tables.attributes(symbol.declared).flat()
        members = self._tables.members(symbol.type)
        return {} if members is None else members.flat()

    def resolve_callee(self, name: str, opening: Opening) -> Declared | None:
        return self.symbols.resolve_callee(Name(name), opening).found

    def opening(self, path: str, namespace: str | None) -> Opening:
        """Return the section of a file in a namespace, to resolve names in."""
        for opening in self.symbols.openings:
            if opening.source.name == path and opening.namespace == namespace:
                return opening
        return Opening(namespace, (), self.files[path].source)


def analyse(files: dict[str, ParsedText], documents: dict[str, Document]) -> ProgramIndex:
    """Check files as one program."""
    reporter = Reporter()
    context = check(declare([(parsed.source, parsed.tree) for parsed in files.values()], reporter), reporter)
    diagnostics = {path: list(parsed.diagnostics) for path, parsed in files.items()}
    for diagnostic in reporter.sorted():
        if diagnostic.source in files and not files[diagnostic.source].broken:
            diagnostics[diagnostic.source].append(diagnostic)
    return ProgramIndex(files, context, documents, diagnostics)


def collect(
    files: dict[str, ParsedText], documents: dict[str, Document], namespaces: Iterable[str], checked: ProgramIndex
) -> ProgramIndex:
    """Collect the declarations of files without checking them; of several with one name the first counts."""
    reporter = Reporter()
    symbols = declare([(parsed.source, parsed.tree) for parsed in files.values()], reporter)
    return ProgramIndex(files, CheckContext(symbols, reporter, AttributeTables(symbols)), documents, {}, namespaces, checked)


def _matches(pattern: re.Pattern[str], span: Span, known: dict[str, Definition], document: Document) -> Iterator[Occurrence]:
    for match in pattern.finditer(document.text, *document.offsets(span)):
        symbol = known.get(match[1])
        if symbol is not None and symbol.kind is not Kind.SCRIPT:
            yield Occurrence(match.start(1), match.end(1), symbol, False)
