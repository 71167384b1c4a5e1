"""Loads a topology from a YAML file; every problem is reported with its line. Needs PyYAML (the extra `goals`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from treadle.goals.schemas import check_schema
from treadle.goals.topology import InvalidTopology, Topology, TopologyProblem, read_topology, suggestion
from treadle.model.errors import InvalidInput, MissingDependency

_MOST_PLACES = 10_000
"""Maximum number of nodes in a file; expanded aliases count each time."""
_ODD_VALUES = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Exceptions of PyYAML, besides its own errors, for values that look like a date or a number and are neither."""


def load_topology(path: str | Path) -> Topology:
    """Load the topology in that file, or raise `InvalidTopology`."""
    yaml = need_yaml()
    place = Path(path)
    try:
        text = place.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidTopology(str(path), (TopologyProblem("", f"cannot be read: {error}"),)) from None
    try:
        tree = yaml.compose(text, yaml.SafeLoader)
        places = list(islice(_places(yaml, tree, ""), _MOST_PLACES + 1))
        document = yaml.safe_load(text)
    except RecursionError:
        raise InvalidTopology(place.name, (TopologyProblem("", "is nested too deeply, or contains itself"),)) from None
    except _ODD_VALUES as error:
        raise InvalidTopology(place.name, (TopologyProblem("", f"has a value that YAML does not allow: {error}"),)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        message = f"is not YAML: {getattr(error, 'problem', None) or error}"
        raise InvalidTopology(place.name, (TopologyProblem("", message, line),)) from None
    if len(places) > _MOST_PLACES:
        raise InvalidTopology(place.name, (TopologyProblem("", f"has more than {_MOST_PLACES} nodes; check its aliases"),))
    lines: dict[str, int] = {}
    twice: list[TopologyProblem] = []
    for where, line in places:
        if where in lines:
            twice.append(TopologyProblem(where, f"is a duplicate of line {lines[where]}", line))
        lines[where] = line
    if twice:
        raise InvalidTopology(place.name, tuple(twice))
    topology = read_topology(document, name=place.name, folder=str(place.resolve().parent), line_of=lines.get)
    if wrong := list(_wrong_schemas(topology, lines)):
        raise InvalidTopology(place.name, tuple(wrong))
    return topology


def with_roles(topology: Topology, roles: Iterable[str] | None) -> Topology:
    """Return the topology for a process that has only some of its roles."""
    if roles is None:
        return topology
    wanted = tuple(roles)
    for name in wanted:
        if name not in topology.roles:
            known = ", ".join(topology.roles)
            raise InvalidInput(
                f"The topology {topology.name} has no role {name}; it has {known}{suggestion(name, topology.roles)}."
            )
    return replace(topology, roles={name: topology.roles[name] for name in wanted})


def need_yaml() -> Any:
    """Return the package, or raise `MissingDependency` with the command that installs it."""
    try:
        import yaml
    except ImportError:
        raise MissingDependency("Topology files need the package PyYAML: pip install 'treadle[goals]'.") from None
    return yaml


def _places(yaml: Any, node: Any, path: str) -> Iterator[tuple[str, int]]:
    """Yield the path and the line of each node of the document."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = f"{path}.{key.value}" if path else str(key.value)
            yield inner, key.start_mark.line + 1
            yield from _places(yaml, value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            yield f"{path}[{number}]", value.start_mark.line + 1
            yield from _places(yaml, value, f"{path}[{number}]")


def _wrong_schemas(topology: Topology, lines: dict[str, int]) -> Iterator[TopologyProblem]:
    for name, rules in topology.types.items():
        for number, gate in enumerate(rules.gates):
            if gate.use == "json_schema" and (wrong := check_schema(gate.options["schema"])) is not None:
                path = f"types.{name}.gates[{number}].schema"
                yield TopologyProblem(path, f"is not a JSON Schema: {wrong}", lines.get(path))
