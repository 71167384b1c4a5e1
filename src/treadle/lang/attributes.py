"""The readable attributes of a facet, a schema or a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from treadle.lang import nodes
from treadle.lang.diagnostics import Source
from treadle.lang.names import Declared, Definition, Kind, Opening, Symbols, remembered
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
        definition = self.own.get(name)
        return definition if definition is not None or self.base is None else self.base.find(name)

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
        self.params = remembered(self._params)
        self.returns = remembered(self._returns)
        self.fields = remembered(self._fields)
        self.required = remembered(self._required)
        self.inputs = remembered(self._inputs)
        self.attributes = remembered(self._attributes)

    def _params(self, declared: Declared) -> dict[str, Definition]:
        """Return the parameters of a facet, or the fields of a schema, by name."""
        kind = Kind.PARAMETER if isinstance(declared.node, nodes.Facet) else Kind.FIELD
        return self._define(declared.node.params, kind, declared)

    def _returns(self, declared: Declared) -> dict[str, Definition]:
        """Return the returns of a facet, or the fields of a schema, by name."""
        if isinstance(declared.node, nodes.Schema):
            return self.params(declared)
        return self._define(declared.node.returns, Kind.RETURN, declared)

    def _fields(self, name: str) -> Mapping[str, Type] | None:
        """Return the types of the fields of the schema with this qualified name."""
        declared = self._symbols.schemas.exact.get(name)
        return None if declared is None else {field: definition.type for field, definition in self.params(declared).items()}

    def members(self, type_: Type) -> Attributes | None:
        """Return the names that can follow a dot after a value of this type; None if any name can."""
        type_ = required(type_)
        if not isinstance(type_, NamedType):
            return None
        declared = self._symbols.schemas.exact.get(type_.name) or self._symbols.facets.exact.get(type_.name)
        return None if declared is None else self.attributes(declared)

    def _required(self, declared: Declared) -> list[str]:
        """Return the parameters of a facet that have neither a default nor a value from a signature mixin."""
        mixed = {arg.name.text for mixin in declared.mixins for arg in mixin.args}
        names = (param.name.text for param in declared.node.params if param.is_needed)
        return [name for name in names if name not in mixed]

    def _inputs(self, declared: Declared) -> Attributes:
        """Return the attributes that `$.` reads in a declaration's blocks: parameters, signature mixins, pre-script results."""
        inputs = Attributes()
        self._add_mixins(inputs, declared)
        if isinstance(declared.node, nodes.Facet):
            self._add_script(inputs, declared.node.pre_script, declared.opening)
        inputs.own.update(self.params(declared))
        return inputs

    def _attributes(self, declared: Declared) -> Attributes:
        """Return the attributes that `step.` reads of a step that calls the declaration; a return shadows a parameter."""
        node = declared.node
        if isinstance(node, nodes.Schema):
            return Attributes(dict(self.params(declared)))
        yields = not node.returns and (bool(node.blocks) or node.catch is not None)
        attributes = Attributes(open=yields, lenient=not node.returns)
        self._add_mixins(attributes, declared)
        for script in (node.pre_script, *(block.script for block in node.blocks)):
            self._add_script(attributes, script, declared.opening)
        attributes.own.update(self.params(declared))
        attributes.own.update(self.returns(declared))
        return attributes

    def _define(self, params: tuple[nodes.Param, ...], kind: Kind, owner: Declared) -> dict[str, Definition]:
        definitions: dict[str, Definition] = {}
        symbols, opening = self._symbols, owner.opening
        for param in params:
            type_ = symbols.type_of(param.type, opening)
            declared = None if type(type_) is NamedType and type_.name in BUILTIN else symbols.declared_type(param.type, opening)
            definitions.setdefault(param.name.text, Definition(kind, param.name, type_, opening.source, param, declared, owner))
        return definitions

    def _add_script(self, attributes: Attributes, script: nodes.Script | None, opening: Opening) -> None:
        """Add the keys that the script writes; if they cannot be determined, any name is possible."""
        if script is None:
            return
        code = read_script(script)
        attributes.open = attributes.open or code.open
        for name in code.writes:
            attributes.own[name] = Definition(Kind.SCRIPT, nodes.Name(name, script.span), UNKNOWN, opening.source, script)

    def _add_mixins(self, attributes: Attributes, declared: Declared) -> None:
        opening = declared.opening
        for mixin in declared.mixins:
            target = self._symbols.resolve_facet(mixin.target, opening).found
            if mixin.alias is not None:
                type_: Type = UNKNOWN if target is None else NamedType(target.qualified_name)
                attributes.own[mixin.alias.text] = Definition(Kind.ALIAS, mixin.alias, type_, opening.source, mixin, target)
                continue
            if target is not None:
                attributes.own.update(self.params(target))
                attributes.own.update(self.returns(target))
                continue
            for arg in mixin.args:
                attributes.own[arg.name.text] = Definition(Kind.ARGUMENT, arg.name, UNKNOWN, opening.source, arg)

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
