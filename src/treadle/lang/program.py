"""A compiled program with the indexes that an evaluator needs: lookups by qualified name and by statement id cost O(1).

`Program.load(json)` and `Program.dump()` are lossless inverses of each other. All names are resolved: `Call.name` is the qualified
name of the callee, `Step.depends` the steps of the same block that must be complete first (found in every expression of the
step, its body and its catch), `LoopRef` a loop variable that was written without `$.`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from treadle.lang.nodes import (
    Block,
    Call,
    Declaration,
    Facet,
    Implicit,
    Location,
    Mixin,
    Namespace,
    Prompt,
    Schema,
    Script,
    Step,
    Sys,
    Yield,
    node,
)

Node = Namespace | Facet | Implicit | Schema | Block | Step | Sys | Yield | Call | Mixin | Script | Prompt


@node
class Program:
    """A whole compiled program."""

    id: str
    declarations: tuple[Declaration, ...] = ()
    location: Location | None = None
    facets: Mapping[str, Facet] = field(default_factory=dict, compare=False, repr=False)
    schemas: Mapping[str, Schema] = field(default_factory=dict, compare=False, repr=False)
    nodes: Mapping[str, Node] = field(default_factory=dict, compare=False, repr=False)
    _implicits: Mapping[str, tuple[Implicit, ...]] = field(default_factory=dict, compare=False, repr=False)
    _short: Mapping[str, tuple[Facet, ...]] = field(default_factory=dict, compare=False, repr=False)
    _namespaces: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def load(cls, program: Mapping[str, Any]) -> Program:
        """Decode the output of `compile_sources`; raise `InvalidProgram` for anything else."""
        from treadle.lang.codec import decode_program

        return decode_program(program)

    def dump(self) -> dict[str, Any]:
        """Return the JSON that `load` was given."""
        from treadle.lang.codec import encode_program

        return encode_program(self)

    @property
    def workflows(self) -> tuple[Facet, ...]:
        """All workflows, in program order."""
        return tuple(facet for facet in self.facets.values() if facet.is_workflow)

    @property
    def event_facets(self) -> tuple[Facet, ...]:
        """All event facets, in program order."""
        return tuple(facet for facet in self.facets.values() if facet.is_event)

    def find_facet(self, name: str) -> Facet | None:
        """Return the facet of any kind with this qualified name, declared or built in."""
        return self.facets.get(name) or (_built_in(name) if name.startswith("sys.") else None)

    def find_schema(self, name: str) -> Schema | None:
        """Return the schema with this qualified name."""
        return self.schemas.get(name)

    def find_workflow(self, name: str) -> Facet | None:
        """Return the workflow with this qualified name, or with this short name if only one workflow has it."""
        exact = self.facets.get(name)
        if exact is not None and exact.is_workflow:
            return exact
        same = [facet for facet in self._short.get(name, ()) if facet.is_workflow]
        return same[0] if len(same) == 1 else None

    def find_node(self, node_id: str) -> Node | None:
        """Return the declaration, block, statement, call, mixin or script with this id."""
        return self.nodes.get(node_id)

    def namespace_of(self, node_id: str) -> str | None:
        """Return the namespace of the node with this id."""
        return self._namespaces.get(node_id)

    def list_implicits(self, facet: str, namespace: str | None) -> tuple[Implicit, ...]:
        """Return the implicits of the facet with this qualified name; those of the namespace first, then source order."""
        every = self._implicits.get(facet, ())
        if len(every) < 2:
            return every
        return tuple(sorted(every, key=lambda implicit: implicit.namespace != namespace))


def _built_in(name: str) -> Facet | None:
    from treadle.lang.declare import built_in_facets

    return built_in_facets().get(name)
