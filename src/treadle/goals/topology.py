"""A topology: the roles of a worker in the goal pipeline with their handlers, budgets, gates, deadlines and policies.

It is a mapping (from a YAML file). `read_topology` checks all of it and reports every problem: its place in the file, the value,
and the correction.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from treadle.goals.kinds import GOAL_DEADLINE, GOAL_GATE, GOAL_READINESS, GOAL_ROLE, GOAL_RUN, GOAL_SCHEDULE
from treadle.goals.records import LEVELS, STANDING, TICKET, Status
from treadle.goals.schemas import check_schema
from treadle.model.errors import InvalidInput, MissingDependency, TreadleError
from treadle.model.names import check_name
from treadle.model.values import Json, encode, shown

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


ROLES = {
    "readiness": GOAL_READINESS,
    "scheduler": GOAL_SCHEDULE,
    "runner": GOAL_RUN,
    "gate": GOAL_GATE,
    "deadline": GOAL_DEADLINE,
}
"""The built-in roles, and the task kind that each claims."""

ROLE_EVENTS = tuple(
    f"objective.{move}"
    for move in ("add", "approve", "block", "unblock", "resolve", "schedule", "pass", "fail", "give_up", "overdue")
)
"""The events that an additional role can receive: moves of an objective."""

BUDGET_FOR = 600_000
MAX_WORKORDERS = 3
MONITOR_EVERY_FOR = 60_000
SHIPPED_GATES = ("exit_code", "json_schema", "regex")
_DAY_FOR = 86_400_000
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": _DAY_FOR}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)\s*")
_PARTS = ("title", "content", "metadata", "notes")


class InvalidTopology(InvalidInput):
    """A topology file is invalid; `problems` holds the places and reasons."""

    code = "invalid_topology"

    def __init__(self, name: str, problems: tuple[TopologyProblem, ...]) -> None:
        lines = "".join(f"\n  {problem.render()}" for problem in problems)
        many = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"The topology {name} cannot be used, {many}:{lines}")
        self.problems = problems


@dataclass(frozen=True, slots=True)
class TopologyProblem:
    """One problem: the path in the file, and the correction."""

    path: str
    message: str
    line: int | None = None

    def render(self) -> str:
        """Return the problem on one line."""
        where = f"line {self.line}, " if self.line is not None else ""
        return f"{where}{self.path or 'the file'}: {self.message}"


@dataclass(frozen=True, slots=True)
class Role:
    """The polling options of a role (None means the worker's default), and the handler and events of an additional one."""

    interval_for: int | None = None
    lease_for: int | None = None
    handler: str | None = None
    events: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GateSpec:
    """A gate with its options: a registered one, or a built-in one (`use`)."""

    name: str
    use: str
    options: Mapping[str, Json] = field(default_factory=dict)
    timeout_for: int | None = None


@dataclass(frozen=True, slots=True)
class TypeRules:
    """The rules for objectives of a type."""

    handler: str
    gates: tuple[GateSpec, ...]
    budget_for: int = BUDGET_FOR
    on_fail: str = Status.TODO
    max_workorders: int = MAX_WORKORDERS
    prompt: str | None = None
    task_list: str = "default"


@dataclass(frozen=True, slots=True)
class Topology:
    """A checked topology; `digest` identifies its content, and its commands may run in `folder`."""

    name: str
    roles: Mapping[str, Role]
    types: Mapping[str, TypeRules]
    deadlines: Mapping[int, int] = field(default_factory=dict)
    """Milliseconds from approval until an objective of that urgency is overdue."""
    reviewer: str | None = None
    digest: str = ""
    folder: str = "."
    additional: Mapping[str, Role] = field(default_factory=dict)
    """All additional roles that it declares, whether or not this process has them."""

    def kinds(self) -> frozenset[str]:
        """Return the task kinds that its roles claim."""
        return frozenset(ROLES.get(name, GOAL_ROLE) for name in self.roles)

    def lease_for(self) -> int | None:
        """Return the lease of the process: the shortest of its roles."""
        return min((role.lease_for for role in self.roles.values() if role.lease_for is not None), default=None)

    def interval_for(self) -> int | None:
        """Return the poll interval of the process: the shortest of its roles, except the monitor, which has its own."""
        named = [role.interval_for for name, role in self.roles.items() if name != "deadline" and role.interval_for is not None]
        return min(named, default=None)


def read_topology(
    document: Json, *, name: str = "topology", folder: str = ".", line_of: Callable[[str], int | None] = lambda _: None
) -> Topology:
    """Read a topology from a mapping, or raise `InvalidTopology` with all its problems."""
    reader = _Reader(line_of)
    topology = reader.topology(document, name, folder)
    if reader.troubles or topology is None:
        raise InvalidTopology(name, tuple(reader.troubles))
    return topology


def suggestion(word: object, known: Iterable[str]) -> str:
    """Return `; did you mean X?` if a known name is similar."""
    near = difflib.get_close_matches(str(word), list(known), 1, 0.6)
    return f"; did you mean {near[0]}?" if near else ""


Check = Callable[[Any], str | None]
"""Returns the problem of a value, if it has one."""


def _wrong_name(value: Any, what: str) -> str | None:
    try:
        check_name(value, what)
    except TreadleError as error:
        return str(error).rstrip(".")
    return None


def _wrong_arguments(value: Any) -> str | None:
    if isinstance(value, list) and value and all(isinstance(word, str) and word for word in value):
        return None
    wrong = "no shell is used" if isinstance(value, str) else f"not {value!r}"
    return f"must be a list of arguments, such as [python, -m, pytest]; {wrong}"


def _wrong_folder(value: Any) -> str | None:
    inside = isinstance(value, str) and not value.startswith(("/", "~")) and ".." not in value.split("/")
    return None if inside else f"must be a folder inside the topology file's, such as work, not {value!r}"


def _wrong_pattern(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"must be text, not {_kind(value)}"
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        return f"is not a regular expression: {error}"
    return None


def _number(least: int, most: int, message: str) -> Check:
    return lambda value: None if type(value) is int and least <= value <= most else f"{message}, not {value!r}"


def _part(value: Any) -> str | None:
    return None if value in _PARTS else f"must be one of {', '.join(_PARTS)}, not {value!r}{suggestion(value, _PARTS)}"


_GATE_OPTIONS: dict[str, dict[str, Check]] = {
    "exit_code": {
        "argv": _wrong_arguments,
        "cwd": _wrong_folder,
        "expect": _number(0, 255, "must be an exit code from 0 to 255"),
    },
    "json_schema": {
        "schema": lambda value: None if isinstance(value, dict | bool) else f"must be a JSON Schema, not {_kind(value)}",
        "of": _part,
    },
    "regex": {
        "pattern": _wrong_pattern,
        "of": _part,
        "forbid": lambda value: None if isinstance(value, bool) else f"must be true or false, not {value!r}",
    },
}
"""The options of the built-in gates."""
_REQUIRED_OPTIONS = ("argv", "schema", "pattern")

_AFTER_FAIL = ("TODO", "BLOCKED")
_TYPE_RULES: dict[str, Check] = {
    "on_fail": lambda value: (
        None if value in _AFTER_FAIL else f"must be TODO or BLOCKED, not {value!r}{suggestion(value, _AFTER_FAIL)}"
    ),
    "max_workorders": _number(1, 1000, "must be a whole number from 1 to 1000"),
    "prompt": lambda value: (
        None if value is None or (isinstance(value, str) and value.strip()) else f"must be text, not {_kind(value)}"
    ),
    "task_list": lambda value: _wrong_name(value, "task list"),
}


class _Reader:
    """Reads a document part by part, and continues after a problem."""

    def __init__(self, line_of: Callable[[str], int | None]) -> None:
        self._line_of = line_of
        self.troubles: list[TopologyProblem] = []

    def _wrong(self, path: str, message: str) -> None:
        self.troubles.append(TopologyProblem(path, message, self._line_of(path)))

    def _mapping(self, value: Json, path: str, known: Iterable[str], required: Iterable[str] = ()) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._wrong(path, f"must be a mapping with {', '.join(known)}, not {_kind(value)}")
            return {}
        for key in value:
            if key not in known:
                self._wrong(_join(path, key), f"is unknown here; known are {', '.join(known)}{suggestion(key, known)}")
        for key in required:
            if key not in value:
                self._wrong(path, f"needs {key}")
        return value

    def topology(self, document: Json, name: str, folder: str) -> Topology | None:
        known = ("name", "roles", "types", "deadlines", "reviewer")
        top = self._mapping(document, "", known, ("types",))
        roles = self._roles(top.get("roles"))
        types = self._types(top["types"] or {}) if "types" in top else {}
        deadlines = self._deadlines(top.get("deadlines"))
        reviewer = top.get("reviewer")
        if reviewer is not None:
            self._name(reviewer, "reviewer", "handler name")
        given = top.get("name", name)
        if not isinstance(given, str) or not given.strip():
            self._wrong("name", f"must be text, not {_kind(given)}")
        if self.troubles:
            return None
        digest = hashlib.sha256(encode(_plain(document), "topology").encode()).hexdigest()
        additional = {name: role for name, role in roles.items() if role.handler is not None}
        return Topology(given, roles, types, deadlines, reviewer, digest, folder, additional)

    def _roles(self, value: Json) -> dict[str, Role]:
        if value is None:
            return {name: Role() for name in ROLES}
        if isinstance(value, list):
            value = {name: None for name in value if isinstance(name, str)} if all(isinstance(n, str) for n in value) else value
        own = [name for name, given in value.items() if name not in ROLES and _declares(given)] if isinstance(value, dict) else []
        given_roles = self._mapping(value, "roles", (*ROLES, *own))
        roles = {name: Role() for name in ROLES} if own and not set(given_roles) & set(ROLES) else {}
        for name, given in given_roles.items():
            path = _join("roles", name)
            known = ("interval", "lease", "handler", "events") if name in own else ("interval", "lease")
            parts = self._mapping({} if given is None else given, path, known, known[2:])
            interval_for = self._duration(parts.get("interval"), _join(path, "interval"), 10, _DAY_FOR)
            lease_for = self._duration(parts.get("lease"), _join(path, "lease"), 1_000, 3_600_000)
            if name in ROLES:
                roles[name] = Role(interval_for, lease_for)
            elif name in own:
                roles[name] = Role(interval_for, lease_for, str(parts.get("handler")), self._additional(name, parts, path))
        return roles

    def _additional(self, name: str, parts: dict[str, Any], path: str) -> tuple[str, ...]:
        """Check an additional role, and return its events."""
        self._name(name, path, "role")
        if "/" in str(name):
            self._wrong(path, "the name of a role contains no /")
        if "handler" in parts:
            self._name(parts["handler"], _join(path, "handler"), "handler name")
        events = parts.get("events", [])
        if not isinstance(events, list) or ("events" in parts and not events):
            self._wrong(_join(path, "events"), f"must be a list of events, such as [objective.approve], not {_kind(events)}")
            return ()
        for number, event in enumerate(events):
            if event not in ROLE_EVENTS:
                known = f"known are {', '.join(ROLE_EVENTS)}{suggestion(event, ROLE_EVENTS)}"
                self._wrong(f"{_join(path, 'events')}[{number}]", f"is not an event; {known}")
        return tuple(map(str, events))

    def _types(self, value: Json) -> dict[str, TypeRules]:
        known = [TICKET, STANDING]
        types: dict[str, TypeRules] = {}
        if not isinstance(value, dict):
            self._wrong("types", f"must be a mapping from types, such as TICKET, to their rules, not {_kind(value)}")
            return {}
        if not value:
            self._wrong("types", "needs at least one type, such as TICKET")
        for name, rules in value.items():
            self._name(name, _join("types", name), "type")
            if name not in known and (near := difflib.get_close_matches(str(name), known, 1, 0.9)):
                self._wrong(_join("types", name), f"is too similar to a built-in type; did you mean {near[0]}?")
                continue
            if (made := self._type(rules, _join("types", name))) is not None:
                types[str(name)] = made
        return types

    def _type(self, value: Json, path: str) -> TypeRules | None:
        known = ("handler", "gates", "budget", "budget_ms", "on_fail", "max_workorders", "prompt", "task_list")
        rules = self._mapping(value, path, known, ("handler", "gates"))
        if not rules:
            return None
        if "handler" in rules:
            self._name(rules["handler"], _join(path, "handler"), "handler name")
        budget_for = self._budget(rules, path)
        self._check(rules, path, _TYPE_RULES)
        on_fail, prompt = rules.get("on_fail", str(Status.TODO)), rules.get("prompt")
        most = rules.get("max_workorders", MAX_WORKORDERS)
        task_list = rules.get("task_list", "default")
        gates = self._gates(rules.get("gates", []), _join(path, "gates"))
        return TypeRules(str(rules.get("handler")), gates, budget_for, str(on_fail), most, prompt, str(task_list))

    def _budget(self, rules: dict[str, Any], path: str) -> int:
        if "budget" in rules and "budget_ms" in rules:
            self._wrong(_join(path, "budget"), "give either budget or budget_ms, not both")
        if "budget_ms" in rules:
            given = rules["budget_ms"]
            if type(given) is not int or not 1 <= given <= 30 * _DAY_FOR:
                self._wrong(_join(path, "budget_ms"), f"must be a whole number of milliseconds from 1, not {given!r}")
                return BUDGET_FOR
            return given
        return self._duration(rules.get("budget"), _join(path, "budget"), 1, 30 * _DAY_FOR) or BUDGET_FOR

    def _gates(self, value: Json, path: str) -> tuple[GateSpec, ...]:
        if not isinstance(value, list):
            self._wrong(path, f"must be a list of gates ([] passes every result without an error), not {_kind(value)}")
            return ()
        gates = [self._gate(each, f"{path}[{number}]") for number, each in enumerate(value)]
        names = [gate.name for gate in gates if gate is not None]
        for number, gate in enumerate(gates):
            if gate is not None and names.index(gate.name) != number and names.count(gate.name) > 1:
                self._wrong(f"{path}[{number}]", f"an earlier gate is already named {gate.name}; choose another name")
        return tuple(gate for gate in gates if gate is not None)

    def _gate(self, value: Json, path: str) -> GateSpec | None:
        if isinstance(value, str):
            value = {"use": value}
        if not isinstance(value, dict) or not isinstance(value.get("use"), str):
            self._wrong(path, f"must be the name of a gate, or a mapping with use: NAME, not {_kind(value)}")
            return None
        use = value["use"]
        options = {key: each for key, each in value.items() if key not in ("use", "name", "timeout")}
        name = value.get("name", use)
        self._name(name, _join(path, "name") if "name" in value else path, "gate name")
        if (checks := _GATE_OPTIONS.get(use)) is not None:
            self._mapping(options, path, checks, [name for name in checks if name in _REQUIRED_OPTIONS])
            self._check(options, path, checks)
        timeout_for = self._duration(value.get("timeout"), _join(path, "timeout"), 1, _DAY_FOR)
        return GateSpec(str(name), use, options, timeout_for)

    def _check(self, fields: dict[str, Any], path: str, checks: Mapping[str, Check]) -> None:
        """Check the fields that the mapping has."""
        for name, check in checks.items():
            if name in fields and (problem := check(fields[name])) is not None:
                self._wrong(_join(path, name), problem)

    def _deadlines(self, value: Json) -> dict[int, int]:
        deadlines: dict[int, int] = {}
        if value is None:
            return deadlines
        if not isinstance(value, dict):
            self._wrong("deadlines", f"must map urgencies (0 to 4) to durations, such as 4: 1h, not {_kind(value)}")
            return deadlines
        for urgency, given in value.items():
            path = _join("deadlines", urgency)
            if type(urgency) is not int or urgency not in LEVELS:
                self._wrong(path, "an urgency is a whole number from 0 to 4")
            elif (span := self._duration(given, path, 1, 3650 * _DAY_FOR)) is not None:
                deadlines[urgency] = span
            elif given is None:
                self._wrong(path, "needs a duration, such as 1h")
        return deadlines

    def _duration(self, value: Json, path: str, least: int, most: int) -> int | None:
        if value is None:
            return None
        found: float | None = None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found = value * 1000
        elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
            found = float(match[1]) * _UNITS[match[2]]
        if found is None:
            self._wrong(path, f"must be a duration, such as 30 (seconds), 500ms, 10m, 8h or 2d, not {shown(value)}")
            return None
        if not least <= found <= most:
            self._wrong(path, f"must be from {_span(least)} to {_span(most)}, not {shown(value)}")
            return None
        return round(found)

    def _name(self, value: Json, path: str, what: str) -> None:
        if (problem := _wrong_name(value, what)) is not None:
            self._wrong(path, problem)


def _declares(value: Json) -> bool:
    """Whether the value of a role declares an additional role, rather than options of a built-in one."""
    return isinstance(value, dict) and not {"handler", "events"}.isdisjoint(value)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _span(for_ms: int) -> str:
    for unit, size in (("d", _DAY_FOR), ("h", 3_600_000), ("s", 1000)):
        if for_ms % size == 0 and for_ms >= size:
            return f"{for_ms // size}{unit}"
    return f"{for_ms}ms"


def _kind(value: Json) -> str:
    names = {dict: "a mapping", list: "a list", str: f"the text {value!r}", type(None): "nothing", bool: str(value).lower()}
    return names.get(type(value), repr(value))


def _plain(value: Json) -> Json:
    """Return the document with text keys in a fixed order, for its digest."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
