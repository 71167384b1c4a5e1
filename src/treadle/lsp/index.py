"""The meaning of every name in a program: each occurrence with the declaration that it means."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from treadle.lang import program, tree
from treadle.lang.docs import parse_doc
from treadle.lang.names import Declared, Opening
from treadle.lang.program import Doc
from treadle.lang.tree import Name, Span
from treadle.lsp.analysis import Analysis
from treadle.lsp.document import Document


class Kind(StrEnum):
    """The sorts of names."""

    NAMESPACE = "namespace"
    FACET = "facet"
    EVENT = "event facet"
    WORKFLOW = "workflow"
    SCHEMA = "schema"
    IMPLICIT = "implicit"
    PARAMETER = "parameter"
    RETURN = "return"
    FIELD = "field"
    STEP = "step"
    VARIABLE = "loop variable"
    ALIAS = "mixin alias"
    TYPE = "type"
    MIXIN = "built-in mixin"


_FACETS = {tree.FacetKind.FACET: Kind.FACET, tree.FacetKind.EVENT: Kind.EVENT, tree.FacetKind.WORKFLOW: Kind.WORKFLOW}


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A declared name. `path` and `span` are empty for what is built in, and for namespaces, which are opened many times.

    `declared` is the facet or schema itself, that of a step or alias, or the owner of a parameter, return or field.
    """

    kind: Kind
    name: str
    path: str = ""
    span: Span | None = None
    declared: Declared | None = None
    node: tree.Param | tree.Step | tree.Implicit | None = None
    type: program.Type | None = None

    @property
    def key(self) -> tuple[str, str, Span | None]:
        """The identity of the name, equal in all programs that contain its declaration."""
        return (self.path, self.name if self.span is None else "", self.span)

    @property
    def doc(self) -> Doc | None:
        """The doc comment of a facet or schema; of a parameter or return its line there."""
        if self.declared is None:
            return None
        doc = parse_doc(self.declared.node.doc)
        if doc is None or self.kind in (Kind.FACET, Kind.EVENT, Kind.WORKFLOW, Kind.SCHEMA):
            return doc
        lines = doc.returns if self.kind is Kind.RETURN else doc.params
        texts = [text for name, text in lines if name == self.name]
        return Doc("\n".join(texts), (), ()) if texts and self.kind is not Kind.STEP else None


@dataclass(frozen=True, slots=True)
class Occurrence:
    """The place of a name, as offsets."""

    start: int
    end: int
    symbol: Symbol
    is_declaration: bool


class Index:
    """The occurrences of each file, computed on first use."""

    def __init__(self, analysis: Analysis, documents: dict[str, Document]) -> None:
        self.analysis = analysis
        self.documents = {path: documents[path] for path in analysis.files}
        self.symbols = analysis.symbols
        self._members: dict[int, dict[str, Symbol]] = {}
        self._declared: dict[int, Symbol] = {}
        self._occurrences: dict[str, list[Occurrence]] = {}

    # --- occurrences

    def occurrences(self, path: str) -> list[Occurrence]:
        """Return all names of a file whose meaning is known, in source order."""
        if path not in self._occurrences:
            from treadle.lsp.walk import walk  # the walk fills the index

            openings = [each for each in self.symbols.openings if each.source.name == path]
            document = self.documents[path]
            if self.analysis.files[path].broken:  # spans of the last good tree, moved to the text of today where names agree
                found = [each for each in walk(self, openings, document) if self._agrees(each, document)]
            else:
                found = walk(self, openings, document)
            self._occurrences[path] = sorted(found, key=lambda each: (each.start, each.end))
        return self._occurrences[path]

    @staticmethod
    def _agrees(each: Occurrence, document: Document) -> bool:
        return document.text[each.start : each.end] == each.symbol.name

    def at(self, path: str, offset: int) -> Occurrence | None:
        """Return the name at an offset, or that ends there."""
        every = self.occurrences(path)
        place = bisect_right(every, offset, key=lambda each: each.start)
        for each in reversed(every[max(0, place - 3) : place]):
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

    def declaration(self, declared: Declared) -> Symbol:
        """Return the name of a facet or schema."""
        known = self._declared.get(id(declared.node))
        if known is None:
            node = declared.node
            kind = Kind.SCHEMA if isinstance(node, tree.Schema) else _FACETS[node.kind]
            type_ = program.NamedType(declared.qualified_name)
            known = Symbol(kind, node.name.text, declared.opening.source.name, node.name.span, declared, None, type_)
            self._declared[id(node)] = known
        return known

    def namespace(self, name: str) -> Symbol:
        return Symbol(Kind.NAMESPACE, name)

    def param(self, param: tree.Param, kind: Kind, declared: Declared) -> Symbol:
        known = self._declared.get(id(param))
        if known is None:
            opening = declared.opening
            type_ = self.symbols.type_of(param.type, opening)
            known = Symbol(kind, param.name.text, opening.source.name, param.name.span, declared, param, type_)
            self._declared[id(param)] = known
        return known

    def params(self, declared: Declared) -> dict[str, Symbol]:
        """Return the names that a call of a facet or schema may pass."""
        node = declared.node
        if isinstance(node, tree.Schema):
            return {each.name.text: self.param(each, Kind.FIELD, declared) for each in node.fields}
        return {each.name.text: self.param(each, Kind.PARAMETER, declared) for each in node.params}

    def returns(self, declared: Declared) -> dict[str, Symbol]:
        node = declared.node
        if isinstance(node, tree.Schema):
            return {}
        return {each.name.text: self.param(each, Kind.RETURN, declared) for each in node.returns}

    def inputs(self, declared: Declared) -> dict[str, Symbol]:
        """Return the names that `$.` reads in the blocks of a facet."""
        found: dict[str, Symbol] = {}
        node, opening = declared.node, declared.opening
        for mixin in node.mixins if isinstance(node, tree.Facet) else ():
            target = self.symbols.resolve_facet(mixin.target, opening).found
            if mixin.alias is not None:
                found[mixin.alias.text] = Symbol(Kind.ALIAS, mixin.alias.text, opening.source.name, mixin.alias.span, target)
            elif target is not None:
                found |= self.params(target) | self.returns(target)
        return found | self.params(declared)

    def attributes(self, declared: Declared) -> dict[str, Symbol]:
        """Return the names that `step.` reads of a step that calls the facet or schema; a return hides a parameter."""
        key = id(declared.node)
        if key not in self._members:
            self._members[key] = self.inputs(declared) | self.returns(declared)
        return self._members[key]

    # --- values

    def members(self, symbol: Symbol) -> dict[str, Symbol]:
        """Return the names that may follow a name and a dot."""
        if symbol.kind in (Kind.STEP, Kind.ALIAS):
            return {} if symbol.declared is None else self.attributes(symbol.declared)
        found = self.of_type(symbol.type)
        return {} if found is None else self.attributes(found)

    def of_type(self, type_: program.Type | None) -> Declared | None:
        """Return the schema or facet of a type."""
        if not isinstance(type_, program.NamedType):
            return None
        return self.symbols.schemas.exact.get(type_.name) or self.symbols.facets.exact.get(type_.name)

    def resolve_callee(self, name: str, opening: Opening) -> Declared | None:
        return self.symbols.resolve_callee(Name(name, Span(1, 1, 1, 1)), opening).found

    def opening(self, path: str, namespace: str | None) -> Opening:
        """Return the section of a file in a namespace, to resolve names in."""
        for each in self.symbols.openings:
            if each.source.name == path and each.namespace == namespace:
                return each
        return Opening(namespace, (), self.analysis.files[path].source)
