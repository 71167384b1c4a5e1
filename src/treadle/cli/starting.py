"""What `run` and `submit` have in common: find the workflow, read its inputs, check both, and say which handlers are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from treadle.cli.exits import tell_warning
from treadle.cli.inputs import workflow_inputs
from treadle.cli.session import Session
from treadle.cli.sources import flow_name, read_sources
from treadle.kernel.why import shown_server_state
from treadle.model.values import Json
from treadle.wiring.engine import Engine

if TYPE_CHECKING:
    from treadle.kernel.flows import Source
    from treadle.lang.program import Facet, Program

WorkflowOption = Annotated[
    str | None, typer.Option("--workflow", "-w", metavar="NAME", help="Which workflow; may be left out if there is only one")
]
InputOption = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", metavar="KEY=VALUE", help="One input: JSON, else text; may be repeated"),
]
InputsOption = Annotated[
    str | None,
    typer.Option("--inputs", metavar="JSON", help="All inputs: a JSON object, @file or - for stdin; --input wins over it"),
]
LenientOption = Annotated[bool, typer.Option("--lenient", help="Do not check the inputs against the workflow's parameters")]


@dataclass(frozen=True)
class Plan:
    """A workflow that can start: where it is from, and what it is given."""

    flow: str | list[Source]
    program: Program
    workflow: Facet
    inputs: dict[str, Json]


@dataclass(frozen=True)
class Wanted:
    """What was typed."""

    places: Sequence[str]
    workflow: str | None
    pairs: Sequence[str]
    whole: str | None
    lenient: bool = False
    version: int | None = None

    @property
    def is_stored(self) -> bool:
        """Whether it names a flow in the store."""
        return flow_name(self.places) is not None

    def plan_files(self, engine: Engine) -> Plan:
        """The plan from files; needs no open engine."""
        sources = read_sources(self.places)
        return self._plan(sources, engine.flows.compile(sources)[1])

    async def plan(self, engine: Engine) -> Plan:
        """The plan from files or from a flow in the store."""
        name = flow_name(self.places)
        if name is None:
            return self.plan_files(engine)
        flow = await engine.flows.get_flow(name, self.version)
        return self._plan(flow.id, await engine.flows.program(flow.id))

    def _plan(self, flow: str | list[Source], program: Program) -> Plan:
        from treadle.kernel.flows import find_workflow
        from treadle.kernel.inputs import check_inputs

        workflow = find_workflow(program, self.workflow)
        inputs = workflow_inputs(workflow, self.whole, self.pairs)
        check_inputs(program, workflow, inputs, lenient=self.lenient)
        return Plan(flow, program, workflow, inputs)


async def preflight(session: Session, engine: Engine, plan: Plan, task_list: str, *, works_here: bool) -> list[str]:
    """The event facets that nobody has a handler for now; said to people, as the run would wait for them unseen."""
    from treadle.kernel.preflight import missing_handlers, needed_handlers

    servers, now = await engine.store.list_servers(), await engine.store.now()
    here = engine.registry.names() if works_here else []
    missing = missing_handlers(needed_handlers(plan.program, plan.workflow), here, servers, task_list, now)
    if works_here and engine.fallback is not None:
        missing = [name for name in missing if plan.program.facets[name].prompt is None]
    if session.json:
        return missing
    if missing:
        where = "here or in a live worker" if works_here else f"in a live worker of list {task_list}"
        tell_warning(
            f"there is no handler {where} for {', '.join(missing)}; the run waits there. "
            "Start one with `treadle worker --handlers MODULE`."
        )
    elif not works_here and not any(
        shown_server_state(server, now) == "running" and task_list in server.task_lists for server in servers
    ):
        tell_warning(
            f"no worker of list {task_list} is running; the run waits for one. `treadle worker --handlers MODULE` starts one."
        )
    return missing
