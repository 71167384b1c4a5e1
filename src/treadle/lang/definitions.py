"""Definitions: everything that a name in a program can mean, with its place and its type."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from treadle.lang import tree
from treadle.lang.diagnostics import Source
from treadle.lang.nodes import node
from treadle.lang.types import Type

if TYPE_CHECKING:
    from treadle.lang.names import Declared


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
    tree.Namespace | tree.Facet | tree.Schema | tree.Param | tree.Step | tree.Foreach
    | tree.Mixin | tree.Arg | tree.Script | tree.Block
)  # fmt: skip


@dataclass(slots=True, eq=False)
class Definition:
    """One meaning of a name. `name` has the place in `source`; `declared` is the facet or schema that it is, calls or refers to."""

    kind: Kind
    name: tree.Name
    type: Type
    source: Source
    node: Node
    declared: Declared | None = None


@node
class Use:
    """A place that names a definition; the definition's own place is one of its uses."""

    source: Source
    span: tree.Span
    definition: Definition
