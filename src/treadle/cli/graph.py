"""`treadle graph`: a workflow as a picture."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.session import Session
from treadle.cli.sources import Places, find_program, flow_name, read_sources
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from treadle.lang import Program


class GraphFormat(StrEnum):
    """What `treadle graph` can write."""

    JSON = "json"
    DOT = "dot"
    MERMAID = "mermaid"


async def graph(
    session: Session,
    places: Places,
    workflow: Annotated[str | None, typer.Option(help="Only this one; default: all workflows of the flow")] = None,
    form: Annotated[GraphFormat, typer.Option("--format", help="dot is for Graphviz")] = GraphFormat.MERMAID,
) -> None:
    """Print the steps of workflows and what they wait for, as a graph."""
    from treadle.kernel.flows import find_workflow
    from treadle.lang import graph as make_graph

    program = await _program(session, places)
    chosen = find_workflow(program, workflow).qualified_name if workflow is not None else None
    made = make_graph(program, chosen)
    match GraphFormat.JSON if session.json else form:
        case GraphFormat.JSON:
            text = json.dumps(made.to_json(), ensure_ascii=False, indent=2) + "\n"
        case GraphFormat.DOT:
            text = made.to_dot()
        case GraphFormat.MERMAID:
            text = made.to_mermaid()
    sys.stdout.write(text)
    sys.stdout.flush()


async def _program(session: Session, places: list[str]) -> Program:
    """Files need no store, not even one that is there."""
    if flow_name(places) is None:
        return Engine("memory://", settings=session.settings).flows.compile(read_sources(places))[1]
    async with session.engine() as engine:
        return await find_program(engine, places)
