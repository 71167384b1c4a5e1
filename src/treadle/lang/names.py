"""Definitions, which are everything that a name in a program can mean, and name resolution.

A name means a declaration of the current namespace, then of imports and the top level, then the only declaration of that name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from treadle.lang import nodes
from treadle.lang.diagnostics import Source
from treadle.lang.nodes import Name
from treadle.lang.types import BUILTIN, UNKNOWN, Type


class Kind(StrEnum):
    NAMESPACE = "namespace"
    FACET = "facet"
    EVENT = "event facet"
    WORKFLOW = "workflow"
    SCHEMA = "schema"
    PARAMETER = "parameter"
    RETURN = "return"
    FIELD = "field"
    STEP = "step"
    VALUE = "value"
    LOOP = "loop variable"
    ALIAS = "alias"
    ARGUMENT = "argument"  # an attribute that only an argument of a call defines
    SCRIPT = "script value"  # a key that a script writes
    ERROR = "error"  # `error` and `error_type` of a catch
    TYPE = "type"  # built in
    MIXIN = "built-in mixin"
    FUNCTION = "function"


Node = (
    nodes.Namespace | nodes.Facet | nodes.Schema | nodes.Param | nodes.Step | nodes.Foreach
    | nodes.Mixin | nodes.Arg | nodes.Script | nodes.Block
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Definition:
    """One meaning of a name. `name` has the place in `source`.

    `declared` is the facet or schema that it is, calls or refers to; `owner` that of a parameter, return or field. `node` is None
    for a name that is built in.
    """

    kind: Kind
    name: nodes.Name
    type: Type
    source: Source
    node: Node | None
    declared: Declared | None = None
    owner: Declared | None = None


_KINDS = {nodes.FacetKind.FACET: Kind.FACET, nodes.FacetKind.EVENT: Kind.EVENT, nodes.FacetKind.WORKFLOW: Kind.WORKFLOW}


@dataclass(frozen=True, slots=True, eq=False)
class Opening:
    """A section of one source in one namespace (None: the top level), with the imports that apply in it."""

    namespace: str | None
    items: tuple[nodes.Item, ...]
    source: Source
    node: nodes.Namespace | None = None
    uses: tuple[str, ...] = ()

    def qualify(self, name: str) -> str:
        return f"{self.namespace}.{name}" if self.namespace else name


@dataclass(slots=True, eq=False)
class Declared:
    """A facet or schema with the place of its declaration."""

    node: nodes.Facet | nodes.Schema
    opening: Opening
    qualified_name: str = field(init=False)

    def __post_init__(self) -> None:
        self.qualified_name = self.opening.qualify(self.node.name.text)

    @property
    def mixins(self) -> tuple[nodes.Mixin, ...]:
        """The mixins of its signature."""
        return self.node.mixins if isinstance(self.node, nodes.Facet) else ()

    @property
    def place(self) -> str:
        return f"{self.opening.source.name}:{self.node.name.span.line}"


@dataclass(slots=True, unsafe_hash=True)
class Resolution:
    """The meaning of a name. Neither `found` nor `candidates`: no such declaration. Several candidates: ambiguous."""

    found: Declared | None = None
    candidates: tuple[str, ...] = ()


_NOTHING = Resolution()


@dataclass(slots=True, eq=False)
class Table:
    """All declarations of one sort (facets, or schemas) by qualified and by short name."""

    strict: bool  # a single import is ambiguous if the short name is declared elsewhere too
    exact: dict[str, Declared] = field(default_factory=dict)
    short: dict[str, list[Declared]] = field(default_factory=dict)
    _cache: dict[tuple[int, str], Resolution] = field(default_factory=dict)
    _everywhere: dict[str, Resolution] = field(default_factory=dict)  # all candidates, for names declared several times

    def add(self, declared: Declared) -> None:
        self.exact[declared.qualified_name] = declared
        self.short.setdefault(declared.node.name.text, []).append(declared)

    def resolve(self, name: str, opening: Opening) -> Resolution:
        """Return the declaration that `name` means in this opening."""
        if "." in name:
            return Resolution(self.exact.get(name))
        key = (id(opening), name)
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = self._resolve_short(name, opening)
        return found

    def _resolve_short(self, name: str, opening: Opening) -> Resolution:
        same = self.short.get(name)
        if same is None:
            return _NOTHING
        if opening.namespace is not None and (own := self.exact.get(opening.qualify(name))) is not None:
            return Resolution(own)
        visible = [self.exact[full] for full in self._visible(name, opening) if full in self.exact]
        if len(visible) == 1 and not (self.strict and len(same) > 1):
            return Resolution(visible[0])
        if not visible and len(same) == 1:
            return Resolution(same[0])
        if len(visible) > 1:
            return Resolution(None, tuple(sorted(each.qualified_name for each in visible)))
        if name not in self._everywhere:
            self._everywhere[name] = Resolution(None, tuple(sorted(each.qualified_name for each in same)))
        return self._everywhere[name]

    def _visible(self, name: str, opening: Opening) -> Iterable[str]:
        yield name
        for namespace in opening.uses:
            yield f"{namespace}.{name}"


@dataclass(slots=True, eq=False)
class Symbols:
    """All declarations of the sources."""

    openings: list[Opening] = field(default_factory=list)
    facets: Table = field(default_factory=lambda: Table(strict=True))
    schemas: Table = field(default_factory=lambda: Table(strict=False))
    declarations: dict[int, Declared] = field(default_factory=dict)  # by the identity of the node
    namespaces: dict[str, Opening] = field(default_factory=dict)  # the first opening of each
    taken: dict[str, Declared] = field(default_factory=dict)
    _definitions: dict[int, Definition] = field(default_factory=dict)

    def declare(self, declared: Declared) -> Declared | None:
        """Enter a declaration; return the one that already has its name, if any."""
        earlier = self.taken.setdefault(declared.qualified_name, declared)
        if earlier is not declared:
            return earlier
        table = self.facets if isinstance(declared.node, nodes.Facet) else self.schemas
        table.add(declared)
        return None

    def resolve_callee(self, name: Name, opening: Opening) -> Resolution:
        """Resolve a callee: a facet, even if a schema of that name is nearer, else a schema."""
        facet = self.facets.resolve(name.text, opening)
        if facet.found is not None or facet.candidates:
            return facet
        return self.schemas.resolve(name.text, opening)

    def resolve_facet(self, name: Name, opening: Opening) -> Resolution:
        """Resolve a mixin or an implicit."""
        return self.facets.resolve(name.text, opening)

    def resolve_type(self, name: str, opening: Opening) -> Resolution:
        """Resolve a type that is not built in: a schema, or a facet (a step reference)."""
        schema = self.schemas.resolve(name, opening)
        if schema.found is not None or schema.candidates:
            return schema
        return self.facets.resolve(name, opening)

    def declared_type(self, type_: nodes.Type, opening: Opening) -> Declared | None:
        """Return the schema or facet that a type, or the element of a list type, names."""
        name = nodes.named_type(type_)
        if name.too_deep or name.name in BUILTIN:
            return None
        return self.resolve_type(name.name, opening).found

    def type_of(self, type_: nodes.Type, opening: Opening) -> nodes.Type:
        """Return the type with its name resolved, or with `UNKNOWN` in its place."""
        if isinstance(type_, nodes.NamedType):
            built_in = BUILTIN.get(type_.name)
            if built_in is not None:
                return built_in
            found = self.resolve_type(type_.name, opening).found
            return UNKNOWN if found is None else nodes.NamedType(found.qualified_name)
        if isinstance(type_, nodes.ListType):
            return nodes.ListType(self.type_of(type_.element, opening))
        return nodes.OptionalType(self.type_of(type_.element, opening))

    def definition(self, declared: Declared) -> Definition:
        """Return the definition of a facet or schema."""
        node = declared.node
        found = self._definitions.get(id(node))
        if found is None:
            kind = Kind.SCHEMA if isinstance(node, nodes.Schema) else _KINDS[node.kind]
            type_ = nodes.NamedType(declared.qualified_name)
            found = Definition(kind, node.name, type_, declared.opening.source, node, declared)
            self._definitions[id(node)] = found
        return found
