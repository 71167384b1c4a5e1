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
from treadle.model.text import suggestion
from treadle.model.values import Json, encode, shown

_MAX_NODES = 10_000
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
        places = list(islice(_places(yaml, tree, ""), _MAX_NODES + 1))
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
    if len(places) > _MAX_NODES:
        raise InvalidTopology(place.name, (TopologyProblem("", f"has more than {_MAX_NODES} nodes; check its aliases"),))
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
            role_names = ", ".join(topology.roles)
            raise InvalidInput(
                f"The topology {topology.name} has no role {name}; it has {role_names}{suggestion(name, topology.roles)}."
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
    f"objective.{transition}"
    for transition in ("add", "approve", "block", "unblock", "resolve", "schedule", "pass", "fail", "give_up", "overdue")
)
"""The events that an additional role can receive: transitions of an objective."""

BUDGET_FOR = 600_000
MAX_WORKORDERS = 3
MONITOR_EVERY_FOR = 60_000
SHIPPED_GATES = ("exit_code", "json_schema", "regex")


class InvalidTopology(InvalidInput, code="invalid_topology"):
    """A topology file is invalid; `problems` holds the places and reasons."""

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
    """The polling options of a role (None means the worker's default), and the handler and events of an additional one.

    `types` are those of objectives whose events it receives. With `holds`, an approved objective waits for it.
    """

    interval_for: int | None = None
    lease_for: int | None = None
    handler: str | None = None
    events: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    holds: bool = False


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
    problems: list[TopologyProblem] = []

    def report(path: str, message: str) -> None:
        problems.append(TopologyProblem(path, message, line_of(path)))

    parts = _TOPOLOGY(document, "", report)
    if problems:
        raise InvalidTopology(name, tuple(problems))
    digest = hashlib.sha256(encode(_plain(document), "topology").encode()).hexdigest()
    roles = parts["roles"] if "roles" in parts else _roles(None, "roles", report)
    types = tuple(parts["types"])
    additional = {name: replace(role, types=types) for name, role in roles.items() if role.handler is not None}
    deadlines, reviewer = parts.get("deadlines", {}), parts.get("reviewer")
    return Topology(parts.get("name", name), roles, parts["types"], deadlines, reviewer, digest, folder, additional)


Check = Callable[[Any], str | None]
"""Returns the problem of a value, if it has one."""
Report = Callable[[str, str], None]
"""Adds a problem: its path and its message."""
Read = Callable[[Any, str, Report], Any]
"""Reads the value at a path, and reports its problems."""


def _fields(readers: Mapping[str, Read], required: Iterable[str] = ()) -> Read:
    """Read a mapping with these keys."""

    def read(value: Any, path: str, report: Report) -> dict[str, Any]:
        if not isinstance(value, dict):
            report(path, f"must be a mapping with {', '.join(readers)}, not {_kind(value)}")
            return {}
        for key in value:
            if key not in readers:
                report(_join(path, key), f"is unknown here; known are {', '.join(readers)}{suggestion(key, readers)}")
        for key in required:
            if key not in value:
                report(path, f"needs {key}")
        return {name: read_field(value[name], _join(path, name), report) for name, read_field in readers.items() if name in value}

    return read


def _checked(check: Check) -> Read:
    def read(value: Any, path: str, report: Report) -> Any:
        if (problem := check(value)) is not None:
            report(path, problem)
        return value

    return read


def _duration(least: int, most: int) -> Read:
    """Read a duration in milliseconds; null is None."""

    def read(value: Any, path: str, report: Report) -> int | None:
        if value is None:
            return None
        duration_for: float | None = None
        if isinstance(value, int | float) and not isinstance(value, bool):
            duration_for = value * 1000
        elif isinstance(value, str) and (match := _DURATION.fullmatch(value)):
            duration_for = float(match[1]) * _UNITS[match[2]]
        if duration_for is None:
            report(path, f"must be a duration, such as 30 (seconds), 500ms, 10m, 8h or 2d, not {shown(value)}")
        elif least <= duration_for <= most:
            return round(duration_for)
        else:
            report(path, f"must be from {_span(least)} to {_span(most)}, not {shown(value)}")
        return None

    return read


def _number(least: int, most: int, message: str) -> Read:
    return _checked(lambda value: None if type(value) is int and least <= value <= most else f"{message}, not {value!r}")


def _name(what: str) -> Read:
    """Read a name, as `check_name` checks it."""

    def check(value: Any) -> str | None:
        try:
            check_name(value, what)
        except TreadleError as error:
            return str(error).rstrip(".")
        return None

    return _checked(check)


def _word(*words: str) -> Read:
    return _checked(
        lambda value: None if value in words else f"must be one of {', '.join(words)}, not {value!r}{suggestion(value, words)}"
    )


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


def _wrong_text(value: Any) -> str | None:
    return None if isinstance(value, str) and value.strip() else f"must be text, not {_kind(value)}"


def _gate(value: Any, path: str, report: Report) -> GateSpec | None:
    if isinstance(value, str):
        value = {"use": value}
    if not isinstance(value, dict) or not isinstance(value.get("use"), str):
        report(path, f"must be the name of a gate, or a mapping with use: NAME, not {_kind(value)}")
        return None
    use, name = value["use"], value.get("name", value["use"])
    options = {key: option for key, option in value.items() if key not in ("use", "name", "timeout")}
    _name("gate name")(name, _join(path, "name") if "name" in value else path, report)
    if use in _GATE_OPTIONS:
        _GATE_OPTIONS[use](options, path, report)
    timeout_for = _duration(1, _DAY_FOR)(value.get("timeout"), _join(path, "timeout"), report)
    return GateSpec(str(name), use, options, timeout_for)


def _gates(value: Any, path: str, report: Report) -> tuple[GateSpec, ...]:
    if not isinstance(value, list):
        report(path, f"must be a list of gates ([] passes every result without an error), not {_kind(value)}")
        return ()
    gates: dict[str, GateSpec] = {}
    for number, entry in enumerate(value):
        gate = _gate(entry, f"{path}[{number}]", report)
        if gate is not None and gates.setdefault(gate.name, gate) is not gate:
            report(f"{path}[{number}]", f"an earlier gate is already named {gate.name}; choose another name")
    return tuple(gates.values())


def _type(value: Any, path: str, report: Report) -> TypeRules:
    rules = _TYPE(value, path, report)
    if {"budget", "budget_ms"} <= rules.keys():
        report(_join(path, "budget"), "give either budget or budget_ms, not both")
    budgets = rules.pop("budget", None), rules.pop("budget_ms", None)
    return TypeRules(**{"handler": "", "gates": (), **rules}, budget_for=budgets[0] or budgets[1] or BUDGET_FOR)


def _types(value: Any, path: str, report: Report) -> dict[str, TypeRules]:
    if not isinstance(value or {}, dict):
        report(path, f"must be a mapping from types, such as TICKET, to their rules, not {_kind(value)}")
        return {}
    if not value:
        report(path, "needs at least one type, such as TICKET")
    built_in = [TICKET, STANDING]
    types: dict[str, TypeRules] = {}
    for name, rules in (value or {}).items():
        where = _join(path, name)
        _name("type")(name, where, report)
        if name not in built_in and (near := difflib.get_close_matches(str(name), built_in, 1, 0.9)):
            report(where, f"is too similar to a built-in type; did you mean {near[0]}?")
            continue
        types[str(name)] = _type(rules, where, report)
    return types


def _deadlines(value: Any, path: str, report: Report) -> dict[int, int]:
    if not isinstance({} if value is None else value, dict):
        report(path, f"must map urgencies (0 to 4) to durations, such as 4: 1h, not {_kind(value)}")
        return {}
    deadlines: dict[int, int] = {}
    for urgency, duration in (value or {}).items():
        where = _join(path, urgency)
        if type(urgency) is not int or urgency not in LEVELS:
            report(where, "an urgency is a whole number from 0 to 4")
        elif duration is None:
            report(where, "needs a duration, such as 1h")
        else:
            deadlines[urgency] = _duration(1, 3650 * _DAY_FOR)(duration, where, report)
    return deadlines


def _events(value: Any, path: str, report: Report) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        report(path, f"must be a list of events, such as [objective.approve], not {_kind(value)}")
        return ()
    for number, event in enumerate(value):
        if event not in ROLE_EVENTS:
            hint = f"known are {', '.join(ROLE_EVENTS)}{suggestion(event, ROLE_EVENTS)}"
            report(f"{path}[{number}]", f"is not an event; {hint}")
    return tuple(map(str, value))


def _roles(value: Any, path: str, report: Report) -> dict[str, Role]:
    if value is None:
        return {name: Role() for name in ROLES}
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        value = dict.fromkeys(value)
    own = [name for name, options in value.items() if name not in ROLES and _declares(options)] if isinstance(value, dict) else []
    read = _fields(dict.fromkeys(ROLES, _role) | dict.fromkeys(own, _additional_role))(value, path, report)
    for name in own:
        _name("role")(name, _join(path, name), report)
        if "/" in str(name):
            report(_join(path, name), "the name of a role contains no /")
    roles = {name: Role() for name in ROLES} if own and not set(read) & set(ROLES) else {}
    return roles | {name: read[name] for name in (value if isinstance(value, dict) else ()) if name in read}


def _role(value: Any, path: str, report: Report) -> Role:
    options = _fields(_POLLING)({} if value is None else value, path, report)
    return Role(options.get("interval"), options.get("lease"))


def _additional_role(value: Any, path: str, report: Report) -> Role:
    readers = _POLLING | {"handler": _name("handler name"), "events": _events, "hold": _FLAG}
    options = _fields(readers, ("handler", "events"))(value, path, report)
    events, holds = options.get("events", ()), bool(options.get("hold"))
    if holds and "objective.approve" not in events:
        report(_join(path, "hold"), "needs the event objective.approve: the role holds approved objectives until it has run")
    return Role(options.get("interval"), options.get("lease"), str(options.get("handler")), events, holds=holds)


_DAY_FOR = 86_400_000
_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": _DAY_FOR}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)\s*")
_FLAG = _checked(lambda value: None if isinstance(value, bool) else f"must be true or false, not {value!r}")
_PART = _word("title", "content", "metadata", "notes")
_GATE_OPTIONS = {
    "exit_code": _fields(
        {
            "argv": _checked(_wrong_arguments),
            "cwd": _checked(_wrong_folder),
            "expect": _number(0, 255, "must be an exit code from 0 to 255"),
        },
        ("argv",),
    ),
    "json_schema": _fields(
        {
            "schema": _checked(
                lambda value: None if isinstance(value, dict | bool) else f"must be a JSON Schema, not {_kind(value)}"
            ),
            "of": _PART,
        },
        ("schema",),
    ),
    "regex": _fields(
        {
            "pattern": _checked(_wrong_pattern),
            "of": _PART,
            "forbid": _FLAG,
        },
        ("pattern",),
    ),
}
"""The options of the built-in gates."""
_POLLING: dict[str, Read] = {"interval": _duration(10, _DAY_FOR), "lease": _duration(1_000, 3_600_000)}
_TYPE = _fields(
    {
        "handler": _name("handler name"),
        "budget": _duration(1, 30 * _DAY_FOR),
        "budget_ms": _number(1, 30 * _DAY_FOR, "must be a whole number of milliseconds from 1"),
        "on_fail": _word("TODO", "BLOCKED"),
        "max_workorders": _number(1, 1000, "must be a whole number from 1 to 1000"),
        "prompt": _checked(lambda value: None if value is None else _wrong_text(value)),
        "task_list": _name("task list"),
        "gates": _gates,
    },
    ("handler", "gates"),
)
_TOPOLOGY = _fields(
    {
        "name": _checked(_wrong_text),
        "roles": _roles,
        "types": _types,
        "deadlines": _deadlines,
        "reviewer": lambda value, path, report: None if value is None else _name("handler name")(value, path, report),
    },
    ("types",),
)


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
        return {str(key): _plain(member) for key, member in sorted(value.items(), key=lambda pair: str(pair[0]))}
    if isinstance(value, list):
        return [_plain(member) for member in value]
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)
