"""Checks before a run starts: whether the inputs fit the workflow's parameters (D59), and which handlers are missing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from itertools import islice

from treadle.kernel.queue.why import shown_server_state
from treadle.lang.program import Block, Facet, ListType, OptionalType, Program, Type
from treadle.lang.signatures import type_words
from treadle.model.errors import InvalidInput, InvalidInputs
from treadle.model.names import short_name
from treadle.model.tasks import Server
from treadle.model.user_values import shown
from treadle.model.values import Json

_SHOWN = 5
"""Limit on the mismatches reported for one list."""


def check_inputs(program: Program, workflow: Facet, inputs: dict[str, Json], *, lenient: bool = False) -> None:
    """Raise `InvalidInputs` with every missing, unknown or mistyped input; `lenient` checks nothing."""
    if lenient:
        return
    params = {param.name: param for param in workflow.params}
    problems = [
        f"{param.name} ({type_words(param.type)}) is missing"
        for param in workflow.params
        if param.default is None and param.name not in inputs
    ]
    for name, value in inputs.items():
        if name in params:
            problems += _misfits(program, name, params[name].type, value)
        elif workflow.pre_script is None:
            near = get_close_matches(name, params, 1)
            problems.append(f"{name} is not a parameter" + (f"; did you mean {near[0]}?" if near else ""))
    if problems:
        takes = ", ".join(f"{param.name}: {type_words(param.type)}" for param in workflow.params) or "nothing"
        raise InvalidInputs(f"{workflow.qualified_name} cannot start: {'; '.join(problems)}. It takes {takes}.")


def check_result(facet: Facet, result: Mapping[str, Json]) -> None:
    """Raise `InvalidInput` for names that the facet does not return; a facet without declared returns accepts any."""
    names = [each.name for each in facet.returns]
    unknown = [name for name in result if name not in names] if names else []
    if unknown:
        near = get_close_matches(str(unknown[0]), names, 1)
        hint = f"; did you mean {near[0]}?" if near else "."
        returns = ", ".join(f"{each.name}: {type_words(each.type)}" for each in facet.returns)
        wrong = f"{facet.qualified_name} does not return {shown(unknown[0])}{hint}"
        raise InvalidInput(f"{wrong} It returns {returns}. Nothing was changed.")


def _misfits(program: Program, place: str, wanted: Type, value: Json) -> list[str]:
    """The mismatches, each with its place in the value."""
    if isinstance(wanted, OptionalType):
        return [] if value is None else _misfits(program, place, wanted.element, value)
    if isinstance(wanted, ListType):
        if not isinstance(value, list):
            return [f"{place} must be a list, not {_kind(value)}"]
        found = (each for index, item in enumerate(value) for each in _misfits(program, f"{place}[{index}]", wanted.element, item))
        return list(islice(found, _SHOWN))
    schema = program.find_schema(wanted.name)
    if schema is not None:
        if not isinstance(value, dict):
            return [f"{place} must be a {schema.name} (an object), not {_kind(value)}"]
        problems = [
            f"{place}.{field.name} is missing" for field in schema.fields if field.default is None and field.name not in value
        ]
        for field in schema.fields:
            if field.name in value:
                problems += _misfits(program, f"{place}.{field.name}", field.type, value[field.name])
        return problems
    fits = _BUILT_IN.get(wanted.name)
    if fits is None or fits(value):
        return []
    return [f"{place} must be a {wanted.name}, not {_kind(value)}"]


def _number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_BUILT_IN: dict[str, Callable[[Json], bool]] = {
    "String": lambda value: isinstance(value, str),
    "Long": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "Int": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "Double": _number,
    "Boolean": lambda value: isinstance(value, bool),
}


def _kind(value: Json) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


# --- handlers ---


def needed_handlers(program: Program, workflow: Facet) -> list[str]:
    """The event facets that the workflow can reach, in order."""
    seen: dict[str, None] = {}
    left = [workflow]
    while left:
        facet = left.pop()
        if facet.qualified_name in seen:
            continue
        seen[facet.qualified_name] = None
        called = [program.find_facet(name) for name in _called(facet)]
        left += [each for each in reversed(called) if each is not None]
    return [name for name in seen if name in program.facets and program.facets[name].is_event]


def missing_handlers(needed: Iterable[str], here: Iterable[str], servers: Sequence[Server], task_list: str, now: int) -> list[str]:
    """The needed handlers that neither this process nor a live server of the task list has."""
    served = set(here)
    for server in servers:
        if task_list in server.task_lists and shown_server_state(server, now) == "running":
            served |= set(server.handlers)
    return [name for name in needed if name not in served and short_name(name) not in served]


def _called(facet: Facet) -> Iterator[str]:
    """Names of all facets that a facet calls: signature aliases, steps of its blocks, of their bodies and catches."""
    yield from (mixin.name for mixin in facet.mixins if mixin.alias is not None)
    left: list[Block] = [*facet.blocks, *([facet.catch] if facet.catch else [])]
    while left:
        block = left.pop(0)
        left += [case.block for case in block.when]
        for step in block.steps:
            yield step.call.name
            left += [each for each in (step.body, step.catch) if each is not None]
