"""`treadle objectives board` and `treadle objectives topology check`: the goal pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from click.exceptions import Exit

from treadle.api.objectives import STATUSES, BoardColumn, describe_state
from treadle.api.view import short
from treadle.engine import Engine
from treadle.goals.topology import InvalidTopology, Topology, TopologyProblem
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.engines import load_engines
from treadle.interfaces.cli.format import STYLES, facts, plain
from treadle.interfaces.cli.messages import BAD_INPUT
from treadle.interfaces.cli.session import CommandSession
from treadle.model.text import suggestion
from treadle.model.values import Json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from treadle.api.facade import Api
    from treadle.api.objectives import Objective, ObjectiveBoard


async def show_board(session: CommandSession, _: Api, board: ObjectiveBoard) -> None:
    """Show all objectives side by side, by status."""
    session.show(board, lambda: _columns(board))


def _columns(board: ObjectiveBoard) -> RenderableType:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", expand=True)
    cells = []
    for status in STATUSES:
        column: BoardColumn = getattr(board, status)
        table.add_column(f"{status} {column.count}", ratio=1, overflow="fold", header_style=STYLES[status])
        hidden = column.count - len(column.objectives)
        more = [plain(f"and {hidden} more", "dim")] if hidden > 0 else []
        cells.append([*(_card(objective) for objective in column.objectives), *more])
    for row in range(max((len(cell) for cell in cells), default=0)):
        table.add_row(*(cell[row] if row < len(cell) else "" for cell in cells))
    return table


def _card(objective: Objective) -> RenderableType:
    note = short(describe_state(objective), 80)
    return plain(f"{short(objective.title, 80)}\n{objective.objective_id}" + (f"\n{note}" if note else ""))


_SHORT_LEASE_FOR, _LONG_LEASE_FOR = 30_000, 120_000


def check(
    session: CommandSession,
    path: Annotated[str, argument(metavar="FILE", help="The topology file")],
    handlers: Annotated[
        list[str] | None,
        option("--handlers", metavar="MODULE", help="Also check that these modules define its handlers and gates"),
    ] = None,
) -> None:
    """Check a topology file; print the location, the problem and a correction for each error."""
    from treadle.goals.topology import load_topology

    try:
        topology = load_topology(path)
        if handlers:
            _check_names(topology, load_engines(session, handlers)[0])
    except InvalidTopology as error:
        problems = error.problems
        problems_json = [{"path": problem.path, "line": problem.line, "message": problem.message} for problem in problems]
        session.show({"file": path, "ok": False, "problems": problems_json}, lambda: _problems(path, problems))
        raise Exit(BAD_INPUT) from None
    warnings = list(_warnings(topology))
    session.show(_json(path, topology, warnings), lambda: _topology(path, topology, warnings))


def _check_names(topology: Topology, engine: Engine) -> None:
    """Raise if the modules do not define a gate, a handler or the reviewer."""
    engine.goals.gates.check(topology)
    names = engine.kernel.registry.names()
    wanted = {f"types.{name}.handler": rules.handler for name, rules in topology.types.items()}
    wanted |= {f"roles.{name}.handler": str(role.handler) for name, role in topology.additional.items()}
    wanted |= {} if topology.reviewer is None else {"reviewer": topology.reviewer}
    missing = [
        TopologyProblem(
            path, f"there is no handler {name} in the modules; there are {', '.join(names) or 'none'}{suggestion(name, names)}"
        )
        for path, name in wanted.items()
        if engine.kernel.registry.find(name) is None
    ]
    if missing:
        raise InvalidTopology(topology.name, tuple(missing))


def _warnings(topology: Topology) -> Iterator[str]:
    for name, role in topology.roles.items():
        if role.lease_for is not None and not _SHORT_LEASE_FOR <= role.lease_for <= _LONG_LEASE_FOR:
            yield f"roles.{name}.lease: {role.lease_for / 1000:g} s is outside the recommended 30 to 120 s"
    for name, rules in topology.types.items():
        if not rules.gates:
            yield f"types.{name}.gates: empty, so every output without an error passes"
    if topology.deadlines and "deadline" not in topology.roles:
        yield "deadlines: not enforced, because the role deadline is not among the roles"


def _json(path: str, topology: Topology, warnings: list[str]) -> dict[str, Json]:
    return {
        "file": path,
        "ok": True,
        "name": topology.name,
        "digest": topology.digest,
        "roles": list(topology.roles),
        "additional_roles": {
            name: {"handler": role.handler, "events": list(role.events)} for name, role in topology.additional.items()
        },
        "types": {
            name: {
                "handler": rules.handler,
                "budget_ms": rules.budget_for,
                "gates": [gate.name for gate in rules.gates],
                "on_fail": rules.on_fail,
                "max_workorders": rules.max_workorders,
                "task_list": rules.task_list,
            }
            for name, rules in topology.types.items()
        },
        "deadlines_ms": {str(urgency): span for urgency, span in topology.deadlines.items()},
        "reviewer": topology.reviewer,
        "warnings": warnings,
    }


def _topology(path: str, topology: Topology, warnings: list[str]) -> RenderableType:
    from rich.console import Group

    rows: list[tuple[str, object]] = [("digest", topology.digest), ("roles", ", ".join(topology.roles))]
    for name, rules in topology.types.items():
        gates = ", ".join(gate.name for gate in rules.gates) or "no gates"
        policy = f"on failure {rules.on_fail}, at most {rules.max_workorders} workorders"
        rows.append((name, f"{rules.handler}, {rules.budget_for / 1000:g} s; {gates}; {policy}"))
    for name, role in topology.additional.items():
        rows.append((f"role {name}", f"{role.handler}, on {', '.join(role.events)}"))
    rows.append(("approval", f"by the reviewer {topology.reviewer}" if topology.reviewer else "by people"))
    rows += [("warning", plain(warning, "yellow")) for warning in warnings]
    return Group(plain(f"{path}: ok", "green"), facts(rows))


def _problems(path: str, problems: tuple[TopologyProblem, ...]) -> RenderableType:
    from rich.console import Group

    return Group(
        plain(f"{path}: {len(problems)} problem(s)", "bold red"), *(plain(f"  {problem.render()}") for problem in problems)
    )
