"""Checks before a run starts: whether the inputs fit the workflow's parameters (D59), and which handlers are missing. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches

from treadle.kernel.queue.why import shown_server_state
from treadle.lang.program import Block, Facet, OptionalType, Program
from treadle.lang.signatures import misfits, type_words
from treadle.model.errors import InvalidInput, InvalidInputs
from treadle.model.names import short_name
from treadle.model.tasks import Server
from treadle.model.user_values import shown
from treadle.model.values import Json


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
            problems += misfits(program, name, params[name].type, value)
        elif workflow.pre_script is None:
            near = get_close_matches(name, params, 1)
            problems.append(f"{name} is not a parameter" + (f"; did you mean {near[0]}?" if near else ""))
    if problems:
        takes = ", ".join(f"{param.name}: {type_words(param.type)}" for param in workflow.params) or "nothing"
        raise InvalidInputs(f"{workflow.qualified_name} cannot start: {'; '.join(problems)}. It takes {takes}.")


def check_result(
    program: Program,
    facet: Facet,
    result: Mapping[str, Json],
    *,
    place: str = "",
    known: Collection[str] = (),
    partial: bool = False,
) -> None:
    """Raise `InvalidInput` with every value of another type, unknown name and missing name, and the declared returns.

    Names in `known` are not missing, and with `partial` none is: blocks may still yield them. A facet without declared returns
    accepts any. `place` is the place of the result, for the message.
    """
    dot = f"{place}." if place else ""
    names = [each.name for each in facet.returns]
    problems = [
        problem
        for each in facet.returns
        if each.name in result and not each.reference
        for problem in misfits(program, f"{dot}{each.name}", each.type, result[each.name])
    ]
    unknown = [str(each) for each in result if each not in names] if names else []
    meant = {
        each: near[0] for each in unknown if (near := get_close_matches(each, [name for name in names if name not in result], 1))
    }
    if not partial and not facet.blocks:
        needed = [each.name for each in facet.returns if each.default is None and not isinstance(each.type, OptionalType)]
        there = {*result, *known, *meant.values()}
        problems += [f"{dot}{name} is missing" for name in needed if name not in there]
    problems += [
        f"{dot}{each if each.isidentifier() else shown(each, 100)} is not one of its returns"
        + (f"; did you mean {meant[each]}?" if each in meant else "")
        for each in unknown
    ]
    if problems:
        wrong = f"This is not a result of {facet.qualified_name}: {'; '.join(problems)}".removesuffix("?")
        stop = "?" if problems[-1].endswith("?") else "."
        raise InvalidInput(f"{wrong}{stop} It returns {returns_words(facet)}. Nothing was changed.")


def returns_words(facet: Facet) -> str:
    """The declared returns in one line."""
    return ", ".join(f"{name}: {kind}" for name, kind in declared_returns(facet).items()) or "nothing"


def declared_returns(facet: Facet) -> dict[str, str]:
    """The types of the declared returns, by name."""
    return {each.name: type_words(each.type) for each in facet.returns}


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
