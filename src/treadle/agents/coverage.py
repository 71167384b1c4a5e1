"""Start-up checks of a runner: topics that match nothing, and event facets without a handler."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from treadle.agents.connection import Connection
from treadle.kernel.runs.flows import missing_handlers
from treadle.workers.handlers import Registry


def matches_topics(name: str, topics: Sequence[str]) -> bool:
    """Whether a facet's name matches one of the glob patterns; without patterns, all do."""
    return not topics or any(fnmatchcase(name, pattern) for pattern in topics)


def idle_topics(topics: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the patterns that match none of the names."""
    known = list(names)
    return [pattern for pattern in topics if not any(fnmatchcase(name, pattern) for name in known)]


def start_warnings(
    connection: Connection, registry: Registry, names: Iterable[str], topics: Sequence[str], task_list: str
) -> list[str]:
    """Return warnings for the start of a runner: topics without a handler, event facets that nothing handles."""
    unserved = connection.run(_unserved_facets(connection, registry, task_list))
    return [f"the topic pattern {pattern!r} matches no registered handler" for pattern in idle_topics(topics, names)] + [
        f"no handler for the event facet {name}" for name in unserved if matches_topics(name, topics)
    ]


async def _unserved_facets(connection: Connection, registry: Registry, task_list: str) -> list[str]:
    """Return event facets of published flows that neither this process nor a live server handles; prompts need no handler."""
    engine = connection.engine
    needed: dict[str, None] = {}
    for published in await engine.kernel.flows.list_versions():
        program = await engine.kernel.flows.program(published.flow_id)
        needed |= {facet.qualified_name: None for facet in program.event_facets if facet.prompt is None}
    here = [name for name in needed if registry.find(name) is not None]
    return missing_handlers(
        needed,
        here,
        await engine.kernel.store.servers.list_all(engine.kernel.settings.namespace),
        task_list,
        await engine.kernel.store.now(),
    )
