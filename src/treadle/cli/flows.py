"""`treadle flows ...`: AFL sources that are stored under names, version by version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.session import Session
from treadle.cli.shapes import flow_version_json
from treadle.cli.sources import read_sources
from treadle.cli.words import ago, facts, grid, plain, when
from treadle.model.clock import as_text
from treadle.model.names import check_name
from treadle.model.runs import Flow, FlowVersion
from treadle.model.values import Json
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.kernel.flows import Source
    from treadle.lang.program import Facet, Program, Type

Name = Annotated[str, typer.Argument(metavar="NAME", help="The flow's name, or its digest")]


async def list_flows(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="All versions of this flow; default: the newest of each")
    ] = None,
) -> None:
    """List what is published."""
    async with session.engine() as engine:
        if name is not None:
            await engine.flows.get_flow(name)
        found = await engine.flows.list_versions(name)
        now = await engine.store.now()
    session.show({"flows": [flow_version_json(each) for each in found]}, lambda: _table(found, now))


def _table(found: list[FlowVersion], now: int) -> RenderableType:
    if not found:
        return plain("No flows. Publish one with `treadle flows publish NAME FILE...`.")
    table = grid("name", ">version", "digest", "published", "by")
    for each in found:
        table.add_row(plain(each.name), str(each.version), each.flow_id[:12], ago(each.published_at, now), plain(each.actor or "-"))
    return table


async def publish(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name to publish under, e.g. shop")],
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="AFL files or folders, compiled together")],
) -> None:
    """Store a flow as the next version of a name. Runs in flight keep their version; the same flow twice is one version."""
    sources = read_sources(files)
    check_name(name, "flow name")

    def check(engine: Engine) -> None:
        engine.flows.compile(sources)

    async with session.engine(migrate=True, first=check) as engine:
        published = await engine.flows.publish(name, sources, actor=session.actor)
    session.show(
        flow_version_json(published),
        lambda: plain(f"{name} is at version {published.version} now ({published.flow_id[:12]})"),
    )


async def show(
    session: Session,
    name: Name,
    version: Annotated[int | None, typer.Option("--version", metavar="N", help="This version; default: the newest")] = None,
    source: Annotated[bool, typer.Option("--source", help="Only the AFL text")] = False,
) -> None:
    """What a flow offers: its workflows, what they take and return, and the handlers it needs."""
    async with session.engine() as engine:
        flow = await engine.flows.get_flow(name, version)
        program = await engine.flows.program(flow.id)
        sources = engine.flows.sources(flow)
        versions = [] if name == flow.id else await engine.flows.list_versions(name)
        now = await engine.store.now()
    shown: dict[str, Json] = {
        "id": flow.id,
        "created_at": as_text(flow.created_at),
        "versions": [flow_version_json(each) for each in versions],
        "workflows": [
            {
                "name": facet.qualified_name,
                "params": [
                    {"name": param.name, "type": type_words(param.type), "required": param.default is None}
                    for param in facet.params
                ],
                "returns": [{"name": param.name, "type": type_words(param.type)} for param in facet.returns],
                "doc": facet.doc.description if facet.doc else None,
            }
            for facet in program.workflows
        ],
        "event_facets": [facet.qualified_name for facet in program.event_facets],
        "sources": [{"name": each, "text": text} for each, text in sources],
    }
    session.show(shown, lambda: _sources(sources) if source else _flow(name, flow, program, sources, versions, now))


def _sources(sources: list[Source]) -> RenderableType:
    if len(sources) == 1:
        return plain(sources[0][1].rstrip("\n"))
    return plain("\n".join(f"// {name}\n{text.rstrip()}\n" for name, text in sources))


def _flow(name: str, flow: Flow, program: Program, sources: list[Source], versions: list[FlowVersion], now: int) -> RenderableType:
    from rich.console import Group

    newest = next((each.version for each in versions if each.flow_id == flow.id), None)
    rows: list[tuple[str, object]] = [
        ("version", f"{newest} of {len(versions)}" if newest is not None else "not published"),
        ("digest", flow.id),
        ("stored", when(flow.created_at, now)),
        ("sources", ", ".join(each for each, _ in sources)),
        ("handlers", ", ".join(facet.qualified_name for facet in program.event_facets) or "none needed"),
    ]
    parts: list[RenderableType] = [plain(name, "bold"), facts(rows), plain("\nWorkflows", "bold")]
    for facet in program.workflows:
        parts.append(plain(f"  {signature(facet)}"))
        if facet.doc and facet.doc.description:
            parts.append(plain(f"    {facet.doc.description.strip()}", "dim"))
    return Group(*parts)


def signature(facet: Facet) -> str:
    """The facet as it is declared: `shop.Checkout(order: Order, vip: Boolean = ...) => (receipt: String)`."""
    params = ", ".join(
        f"{param.name}: {type_words(param.type)}{' = ...' if param.default is not None else ''}" for param in facet.params
    )
    returns = ", ".join(f"{param.name}: {type_words(param.type)}" for param in facet.returns)
    return f"{facet.qualified_name}({params})" + (f" => ({returns})" if returns else "")


def type_words(wanted: Type) -> str:
    """A type as it is written in AFL."""
    from treadle.lang.program import ListType, NamedType

    match wanted:
        case ListType(element):
            return f"[{type_words(element)}]"
        case NamedType(name):
            return name
