"""`treadle flows ...`: published AFL sources, by name and version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from treadle.engine import Engine
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.format import facts, plain, when
from treadle.interfaces.cli.session import Session
from treadle.interfaces.cli.sources import StrictOption, compile_here, read_sources
from treadle.model.names import check_name

if TYPE_CHECKING:
    from datetime import datetime

    from rich.console import RenderableType

    from treadle.api.flows import FlowDetail, SourceText, WorkflowSignature

Name = Annotated[str, argument(metavar="NAME", help="The flow's name, or its digest")]


async def publish(
    session: Session,
    name: Annotated[str, argument(metavar="NAME", help="The name to publish under, e.g. shop")],
    files: Annotated[list[str], argument(metavar="FILE...", help="AFL files or folders, compiled together")],
    strict: StrictOption = False,
) -> None:
    """Publish a flow as the next version of a name. Running runs keep their version; publishing the same flow again adds none."""
    from treadle.api.flows import SourceText

    sources = read_sources(files)
    check_name(name, "flow name")

    def check(engine: Engine) -> None:
        compile_here(session, engine, sources, strict=strict)

    async with session.api(migrate=True, first=check) as api:
        published = await api.flows.publish(name, [SourceText(each, text) for each, text in sources])
    session.show(published, lambda: plain(f"{name} is at version {published.version} now ({published.flow_id[:12]})"))


async def show(
    session: Session,
    name: Name,
    version: Annotated[int | None, option("--version", metavar="N", help="This version; default: the newest")] = None,
    source: Annotated[bool, option("--source", help="Only the AFL text")] = False,
) -> None:
    """Show a flow: its workflows with their parameters and results, and the handlers it needs."""
    async with session.api() as api:
        flow = await api.flows.get(name, version=version)
        now = (await api.system.time()).now
    session.show(flow, lambda: _sources(flow.sources) if source else _flow(name, flow, now))


def _sources(sources: list[SourceText]) -> RenderableType:
    if len(sources) == 1:
        return plain(sources[0].text.rstrip("\n"))
    return plain("\n".join(f"// {each.name}\n{each.text.rstrip()}\n" for each in sources))


def _flow(name: str, flow: FlowDetail, now: datetime) -> RenderableType:
    from rich.console import Group

    newest = next((each.version for each in flow.versions if each.flow_id == flow.id), None)
    rows: list[tuple[str, object]] = [
        ("version", f"{newest} of {len(flow.versions)}" if newest is not None else "not published"),
        ("digest", flow.id),
        ("stored", when(flow.created_at, now)),
        ("sources", ", ".join(each.name for each in flow.sources)),
        ("handlers", ", ".join(flow.event_facets) or "none needed"),
    ]
    parts: list[RenderableType] = [plain(name, "bold"), facts(rows), plain("\nWorkflows", "bold")]
    for workflow in flow.workflows:
        parts.append(plain(f"  {signature(workflow)}"))
        if workflow.doc:
            parts.append(plain(f"    {workflow.doc.strip()}", "dim"))
    return Group(*parts)


def signature(workflow: WorkflowSignature) -> str:
    """The declaration of a workflow: `shop.Checkout(order: Order, vip: Boolean = ...) => (receipt: String)`."""
    params = ", ".join(f"{param.name}: {param.type}{'' if param.required else ' = ...'}" for param in workflow.params)
    returns = ", ".join(f"{each.name}: {each.type}" for each in workflow.returns)
    return f"{workflow.name}({params})" + (f" => ({returns})" if returns else "")
