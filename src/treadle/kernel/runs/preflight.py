"""Handlers that a run will need and that no live server has. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from treadle.kernel.queue.why import shown_server_state
from treadle.lang.program import Block, Facet, Program
from treadle.model.names import short_name
from treadle.model.tasks import Server


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
    return [name for name in seen if program.facets[name].is_event]


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
