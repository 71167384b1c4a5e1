"""The readable attributes of a facet, a schema or a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from treadle.lang import nodes
from treadle.lang.diagnostics import Source
from treadle.lang.names import Declared, Definition, Kind, Opening, Symbols
from treadle.lang.script_code import read_script
from treadle.lang.types import BUILTIN, STRING, UNKNOWN, NamedType, RecordType, Type, required


@dataclass(slots=True)
class Attributes:
    """Names with their definitions; layers are searched in order.

    `open`: other names may exist as well. `lenient`: reading another name is only a warning.
    """

    own: dict[str, Definition] = field(default_factory=dict)
    open: bool = False
    base: Attributes | None = None
    lenient: bool = False

    def __contains__(self, name: str) -> bool:
        return name in self.own or (self.base is not None and name in self.base)

    def find(self, name: str) -> Definition | None:
        found = self.own.get(name)
        return found if found is not None or self.base is None else self.base.find(name)

    def flat(self) -> dict[str, Definition]:
        """Return the names of all layers."""
        return self.own if self.base is None else self.base.flat() | self.own

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
        self._params: dict[int, dict[str, Definition]] = {}
        self._returns: dict[int, dict[str, Definition]] = {}
        self._required: dict[int, list[str]] = {}
        self._fields: dict[str, Mapping[str, Type] | None] = {}

    def params(self, declared: Declared) -> dict[str, Definition]:
        """Return the parameters of a facet, or the fields of a schema, by name."""
        node = declared.node
        found = self._params.get(id(node))
        if found is None:
            params, kind = (node.params, Kind.PARAMETER) if isinstance(node, nodes.Facet) else (node.fields, Kind.FIELD)
            found = self._params[id(node)] = self._define(params, kind, declared.opening)
        return found

    def returns(self, declared: Declared) -> dict[str, Definition]:
        """Return the returns of a facet, or the fields of a schema, by name."""
        node = declared.node
        if isinstance(node, nodes.Schema):
            return self.params(declared)
        found = self._returns.get(id(node))
        if found is None:
            found = self._returns[id(node)] = self._define(node.returns, Kind.RETURN, declared.opening)
        return found

    def fields(self, name: str) -> Mapping[str, Type] | None:
        """Return the types of the fields of the schema with this qualified name."""
        if name not in self._fields:
            declared = self._symbols.schemas.exact.get(name)
            found = None if declared is None else {each: one.type for each, one in self.params(declared).items()}
            self._fields[name] = found
        return self._fields[name]

    def members(self, type_: Type) -> Attributes | None:
        """Return the names that can follow a dot after a value of this type; None if any name can."""
        type_ = required(type_)
        if not isinstance(type_, NamedType):
            return None
        declared = self._symbols.schemas.exact.get(type_.name) or self._symbols.facets.exact.get(type_.name)
        return None if declared is None else self.attributes(declared)

    def required(self, declared: Declared) -> list[str]:
        """Return the parameters of a facet that have neither a default nor a value from a signature mixin."""
        key = id(declared.node)
        if key not in self._required:
            facet = declared.node
            assert isinstance(facet, nodes.Facet)
            mixed = {arg.name.text for mixin in facet.mixins for arg in mixin.args}
            names = (param.name.text for param in facet.params if param.is_needed)
            self._required[key] = [name for name in names if name not in mixed]
        return self._required[key]

    def inputs(self, declared: Declared) -> Attributes:
        """Return the attributes that `$.` reads in a declaration's blocks: parameters, signature mixins, pre-script results."""
        key = id(declared.node)
        if key not in self._inside:
            facet = declared.node
            assert isinstance(facet, nodes.Facet)
            self._inside[key] = found = Attributes()
            self._add_mixins(found, facet, declared.opening)
            self._add_script(found, facet.pre_script, declared.opening)
            found.own.update(self.params(declared))
        return self._inside[key]

    def attributes(self, declared: Declared) -> Attributes:
        """Return the attributes that `step.` reads of a step that calls the declaration; a return shadows a parameter."""
        key = id(declared.node)
        if key not in self._outside:
            node, opening = declared.node, declared.opening
            if isinstance(node, nodes.Schema):
                self._outside[key] = Attributes(dict(self.params(declared)))
            else:
                yields = not node.returns and (bool(node.blocks) or node.catch is not None)
                self._outside[key] = found = Attributes(open=yields, lenient=not node.returns)
                self._add_mixins(found, node, opening)
                for script in (node.pre_script, *(block.script for block in node.blocks)):
                    self._add_script(found, script, opening)
                found.own.update(self.params(declared))
                found.own.update(self.returns(declared))
        return self._outside[key]

    def _define(self, params: tuple[nodes.Param, ...], kind: Kind, opening: Opening) -> dict[str, Definition]:
        found: dict[str, Definition] = {}
        symbols, source = self._symbols, opening.source
        for param in params:
            type_ = symbols.type_of(param.type, opening)
            declared = None if type(type_) is NamedType and type_.name in BUILTIN else symbols.declared_type(param.type, opening)
            found.setdefault(param.name.text, Definition(kind, param.name, type_, source, param, declared))
        return found

    def _add_script(self, found: Attributes, script: nodes.Script | None, opening: Opening) -> None:
        """Add the keys that the script writes; if they cannot be determined, any name is possible."""
        if script is None:
            return
        code = read_script(script)
        found.open = found.open or code.open
        for name in code.writes:
            found.own[name] = Definition(Kind.SCRIPT, nodes.Name(name, script.span), UNKNOWN, opening.source, script)

    def _add_mixins(self, found: Attributes, facet: nodes.Facet, opening: Opening) -> None:
        for mixin in facet.mixins:
            target = self._symbols.resolve_facet(mixin.target, opening).found
            if mixin.alias is not None:
                type_: Type = UNKNOWN if target is None else NamedType(target.qualified_name)
                found.own[mixin.alias.text] = Definition(Kind.ALIAS, mixin.alias, type_, opening.source, mixin, target)
                continue
            if target is not None:
                found.own.update(self.params(target))
                found.own.update(self.returns(target))
                continue
            for arg in mixin.args:
                found.own[arg.name.text] = Definition(Kind.ARGUMENT, arg.name, UNKNOWN, opening.source, arg)

    def of_call(self, step: nodes.Step, declared: Declared | None, opening: Opening, types: Mapping[int, Type]) -> Attributes:
        """Return the attributes of a step: its callee's, additional arguments of the call, and the error if it is caught.

        `types` has the types of the arguments, by the identity of their expressions.
        """
        own: dict[str, Definition] = {}
        call, source = step.call, opening.source
        base = None if declared is None else self.attributes(declared)
        for arg in call.args:
            if base is None or arg.name.text not in base:
                own[arg.name.text] = _argument(arg, source, types)
        for mixin in call.mixins:
            if mixin.alias is not None:
                type_ = RecordType(tuple((arg.name.text, types.get(id(arg.value), UNKNOWN)) for arg in mixin.args))
                own[mixin.alias.text] = Definition(Kind.ALIAS, mixin.alias, type_, source, mixin)
                continue
            target = self._symbols.resolve_facet(mixin.target, opening).found
            params = {} if target is None else self.params(target)
            for arg in mixin.args:
                if (base is None or arg.name.text not in base) and arg.name.text not in own:
                    own[arg.name.text] = params.get(arg.name.text) or _argument(arg, source, types)
        if step.catch is not None:
            own.update(errors(source, step.name, step.catch))
        yields = step.body is not None and base is not None and base.lenient
        return Attributes(own, declared is None or yields, base, base is not None and base.lenient)


def _argument(arg: nodes.Arg, source: Source, types: Mapping[int, Type]) -> Definition:
    return Definition(Kind.ARGUMENT, arg.name, types.get(id(arg.value), UNKNOWN), source, arg)


def errors(source: Source, at: nodes.Name, catch: nodes.Block) -> dict[str, Definition]:
    """Return the names that a catch adds."""
    return {name: Definition(Kind.ERROR, nodes.Name(name, at.span), STRING, source, catch) for name in ("error", "error_type")}
