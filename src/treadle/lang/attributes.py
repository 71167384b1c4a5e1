"""The readable attributes of a facet, a schema or a step, and their types."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from treadle.lang import program, tree
from treadle.lang.names import Declared, Opening, Symbols

KnownType = program.Type | None
STRING = program.NamedType("String")


@dataclass(slots=True)
class Attributes:
    """Names with their types (None: unknown). `open`: other names may exist as well. Layers are searched in order."""

    own: dict[str, KnownType] = field(default_factory=dict)
    open: bool = False
    base: Attributes | None = None

    def __contains__(self, name: str) -> bool:
        return name in self.own or (self.base is not None and name in self.base)

    def type_of(self, name: str) -> KnownType:
        if name in self.own:
            return self.own[name]
        return None if self.open or self.base is None else self.base.type_of(name)

    @property
    def any_name(self) -> bool:
        return self.open or (self.base is not None and self.base.any_name)

    def __iter__(self) -> Iterator[str]:
        yield from self.own
        if self.base is not None:
            yield from self.base


class AttributeTables:
    """Attributes of declarations, computed once each."""

    def __init__(self, symbols: Symbols) -> None:
        self._symbols = symbols
        self._inside: dict[int, Attributes] = {}
        self._outside: dict[int, Attributes] = {}
        self._params: dict[int, dict[str, tree.Param]] = {}
        self._required: dict[int, list[str]] = {}

    def params(self, declared: Declared) -> dict[str, tree.Param]:
        """Return the parameters of a facet by name."""
        key = id(declared.node)
        if key not in self._params:
            facet = declared.node
            assert isinstance(facet, tree.Facet)
            self._params[key] = {param.name.text: param for param in facet.params}
        return self._params[key]

    def required(self, declared: Declared) -> list[str]:
        """Return the parameters of a facet that have neither a default nor a value from a signature mixin."""
        key = id(declared.node)
        if key not in self._required:
            facet = declared.node
            assert isinstance(facet, tree.Facet)
            mixed = {arg.name.text for mixin in facet.mixins for arg in mixin.args}
            names = (param.name.text for param in facet.params if param.default is None)
            self._required[key] = [name for name in names if name not in mixed]
        return self._required[key]

    def inputs(self, declared: Declared) -> Attributes:
        """Return the attributes that `$.` reads in a declaration's blocks: parameters, signature mixins, pre-script results."""
        key = id(declared.node)
        if key not in self._inside:
            facet = declared.node
            assert isinstance(facet, tree.Facet)
            found = Attributes(open=facet.pre_script is not None)
            self._add_mixins(found, facet, declared.opening)
            found.own.update(self._types(facet.params, declared.opening))
            self._inside[key] = found
        return self._inside[key]

    def attributes(self, declared: Declared) -> Attributes:
        """Return the attributes that `step.` reads of a step that calls the declaration; a return shadows a parameter."""
        key = id(declared.node)
        if key not in self._outside:
            node, opening = declared.node, declared.opening
            if isinstance(node, tree.Schema):
                self._outside[key] = Attributes(self._types(node.fields, opening))
            else:
                found = Attributes(open=not node.returns or node.pre_script is not None)
                self._outside[key] = found
                self._add_mixins(found, node, opening)
                found.own.update(self._types(node.params, opening))
                found.own.update(self._types(node.returns, opening))
        return self._outside[key]

    def _types(self, params: tuple[tree.Param, ...], opening: Opening) -> dict[str, KnownType]:
        return {param.name.text: self._symbols.type_of(param.type, opening) for param in params}

    def _add_mixins(self, found: Attributes, facet: tree.Facet, opening: Opening) -> None:
        for mixin in facet.mixins:
            if mixin.alias is not None:
                found.own[mixin.alias.text] = None
                continue
            found.own.update((arg.name.text, None) for arg in mixin.args)
            target = self._symbols.resolve_facet(mixin.target, opening).found
            if target is not None and isinstance(target.node, tree.Facet):
                found.own.update(self._types(target.node.params, target.opening))
                found.own.update(self._types(target.node.returns, target.opening))

    def of_call(self, call: tree.Call, declared: Declared | None, *, caught: bool) -> Attributes:
        """Return the attributes of a step: its callee's, additional arguments of the call, and the error if it is caught."""
        own: dict[str, KnownType] = {}
        base = None if declared is None else self.attributes(declared)
        for arg in call.args:
            if base is None or arg.name.text not in base:
                own[arg.name.text] = None
        for mixin in call.mixins:
            if mixin.alias is not None:
                own[mixin.alias.text] = None
            else:
                own.update((arg.name.text, None) for arg in mixin.args if base is None or arg.name.text not in base)
        if caught:
            own.update(error=STRING, error_type=STRING)
        return Attributes(own, declared is None, base)
