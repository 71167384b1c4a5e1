"""Definitions, which are everything that a name in a program can mean, and name resolution.

A name means a declaration of the current namespace, then of imports and the top level, then the only declaration of that name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from treadle.lang import nodes
from treadle.lang.diagnostics import Source
from treadle.lang.nodes import Name
from treadle.lang.types import BUILTIN, UNKNOWN, Type

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class _Memo(dict[Any, Any]):
    """Values by key, each computed on first use."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute = compute

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self._compute(key)
        return value


def remembered(compute: Callable[[_Key], _Value]) -> Callable[[_Key], _Value]:
    """Return a function that computes each value once. It is made for each compilation, which `functools.cache` takes 5 % of."""
    return _Memo(compute).__getitem__


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


def _ambiguous(declarations: list[Declared]) -> Resolution:
    return Resolution(None, tuple(sorted(declared.qualified_name for declared in declarations)))


class DeclarationTable:
    """All declarations of one sort (facets, or schemas) by qualified and by short name.

    In a strict table a single import is ambiguous if the short name is declared elsewhere too.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict
        self.exact: dict[str, Declared] = {}
        self.short: dict[str, list[Declared]] = {}
        self._resolve_short = remembered(self._find_short)
        self._ambiguous: Callable[[str], Resolution] = remembered(lambda name: _ambiguous(self.short[name]))

    def add(self, declared: Declared) -> None:
        self.exact[declared.qualified_name] = declared
        self.short.setdefault(declared.node.name.text, []).append(declared)

    def resolve(self, name: str, opening: Opening) -> Resolution:
        """Return the declaration that `name` means in this opening."""
        return Resolution(self.exact.get(name)) if "." in name else self._resolve_short((name, opening))

    def _find_short(self, place: tuple[str, Opening]) -> Resolution:
        name, opening = place
        same = self.short.get(name)
        if same is None:
            return _NOTHING
        if opening.namespace is not None and (own := self.exact.get(opening.qualify(name))) is not None:
            return Resolution(own)
        candidates = (name, *(f"{namespace}.{name}" for namespace in opening.uses))
        visible = [self.exact[full] for full in candidates if full in self.exact]
        if len(visible) == 1 and not (self._strict and len(same) > 1):
            return Resolution(visible[0])
        if not visible and len(same) == 1:
            return Resolution(same[0])
        return _ambiguous(visible) if len(visible) > 1 else self._ambiguous(name)


class Symbols:
    """All declarations of the sources."""

    def __init__(self) -> None:
        self.openings: list[Opening] = []
        self.facets, self.schemas = DeclarationTable(strict=True), DeclarationTable(strict=False)
        self.declarations: dict[int, Declared] = {}  # by the identity of the node
        self.namespaces: dict[str, Opening] = {}  # the first opening of each
        self.taken: dict[str, Declared] = {}
        self.definition = remembered(self._definition)

    def declare(self, declared: Declared) -> Declared | None:
        """Enter a declaration; return the one that already has its name, if any."""
        earlier = self.taken.setdefault(declared.qualified_name, declared)
        if earlier is not declared:
            return earlier
        (self.facets if isinstance(declared.node, nodes.Facet) else self.schemas).add(declared)
        return None

    def resolve_callee(self, name: Name, opening: Opening) -> Resolution:
        """Resolve a callee: a facet, even if a schema of that name is nearer, else a schema."""
        facet = self.facets.resolve(name.text, opening)
        return facet if facet != _NOTHING else self.schemas.resolve(name.text, opening)

    def resolve_facet(self, name: Name, opening: Opening) -> Resolution:
        """Resolve a mixin or an implicit."""
        return self.facets.resolve(name.text, opening)

    def resolve_type(self, name: str, opening: Opening) -> Resolution:
        """Resolve a type that is not built in: a schema, or a facet (a step reference)."""
        schema = self.schemas.resolve(name, opening)
        return schema if schema != _NOTHING else self.facets.resolve(name, opening)

    def declared_type(self, type_: nodes.Type, opening: Opening) -> Declared | None:
        """Return the schema or facet that a type, or the element of a list type, names."""
        name = nodes.named_type(type_)
        if name.too_deep or name.name in BUILTIN:
            return None
        return self.resolve_type(name.name, opening).found

    def type_of(self, type_: nodes.Type, opening: Opening) -> nodes.Type:
        """Return the type with its name resolved, or with `UNKNOWN` in its place."""
        if isinstance(type_, nodes.NamedType):
            if type_.name in BUILTIN:
                return BUILTIN[type_.name]
            declared = self.resolve_type(type_.name, opening).found
            return UNKNOWN if declared is None else nodes.NamedType(declared.qualified_name)
        return type(type_)(self.type_of(type_.element, opening))

    def _definition(self, declared: Declared) -> Definition:
        """Return the definition of a facet or schema."""
        node = declared.node
        kind = Kind.SCHEMA if isinstance(node, nodes.Schema) else Kind(node.kind)
        return Definition(kind, node.name, nodes.NamedType(declared.qualified_name), declared.opening.source, node, declared)
