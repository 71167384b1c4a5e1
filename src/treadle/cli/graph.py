"""`treadle graph`: a workflow as a picture."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from treadle.cli.command import option
from treadle.cli.session import Session
from treadle.cli.sources import Places, flow_name, read_sources
from treadle.model.values import Json

if TYPE_CHECKING:
    from treadle.api.flows import FlowGraph


class GraphFormat(StrEnum):
    """What `treadle graph` can write."""

    JSON = "json"
    DOT = "dot"
    MERMAID = "mermaid"


async def graph(
    session: Session,
    places: Places,
    workflow: Annotated[str | None, option(help="Only this one; default: all workflows of the flow")] = None,
    form: Annotated[GraphFormat, option("--format", help="dot is for Graphviz")] = GraphFormat.MERMAID,
) -> None:
    """Print the steps of workflows and what they wait for, as a graph."""
    from treadle.api.flows import SourceText

    name = flow_name(places)
    if name is None:
        sources = [SourceText(each, text) for each, text in read_sources(places)]
        async with session.api(scratch=True) as api:
            made = await api.flows.draw(sources, workflow=workflow)
    else:
        async with session.api() as api:
            made = await api.flows.graph(name, workflow=workflow)
    match GraphFormat.JSON if session.json else form:
        case GraphFormat.JSON:
            text = json.dumps(_as_json(made), ensure_ascii=False, indent=2) + "\n"
        case GraphFormat.DOT:
            text = made.dot
        case GraphFormat.MERMAID:
            text = made.mermaid
    sys.stdout.write(text)
    sys.stdout.flush()


def _as_json(made: FlowGraph) -> dict[str, Json]:
    return {
        "nodes": [{"id": each.id, "label": each.label, "kind": each.kind, "group": each.group} for each in made.nodes],
        "edges": [{"source": each.source, "target": each.target, "kind": each.kind} for each in made.edges],
        "groups": [{"id": each.id, "label": each.label, "parent": each.parent} for each in made.groups],
    }
