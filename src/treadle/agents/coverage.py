"""What a runner says when it starts: topics that match nothing, and event facets that nobody handles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase

from treadle.agents.connection import Connection
from treadle.kernel.runs.preflight import missing_handlers


def matches_topics(name: str, topics: Sequence[str]) -> bool:
    """Whether a facet's name fits one of the glob patterns; without patterns, all do."""
    return not topics or any(fnmatchcase(name, pattern) for pattern in topics)


def idle_topics(topics: Iterable[str], names: Iterable[str]) -> list[str]:
    """Those of the patterns that fit none of the names."""
    known = list(names)
    return [pattern for pattern in topics if not any(fnmatchcase(name, pattern) for name in known)]


async def unserved_facets(connection: Connection, served: Callable[[str], bool], task_list: str) -> list[str]:
    """Event facets of published flows that neither this process nor a live server handles; prompts need no handler."""
    engine = connection.engine
    needed: dict[str, None] = {}
    for published in await engine.flows.list_versions():
        program = await engine.flows.program(published.flow_id)
        needed |= {facet.qualified_name: None for facet in program.event_facets if facet.prompt is None}
    here = [name for name in needed if served(name)]
    return missing_handlers(needed, here, await engine.store.list_servers(), task_list, await engine.store.now())
