"""AFL sources as arguments (files, folders, stdin, or a published flow), and the run that they and the typed inputs describe."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from treadle.engine import Engine
from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.messages import print_diagnostics, print_warning
from treadle.interfaces.cli.session import CommandSession
from treadle.interfaces.cli.values import workflow_inputs
from treadle.model.errors import InvalidInput
from treadle.model.names import check_name, short_name
from treadle.model.values import Json

if TYPE_CHECKING:
    from treadle.api.facade import Api
    from treadle.api.flows import FlowDetail, SourceText, WorkflowSignature
    from treadle.api.runs import RunStarted
    from treadle.kernel.runs.flows import Source
    from treadle.lang.program import Program


_SUFFIX = ".afl"

Files = Annotated[list[str], argument(metavar="FILE...", help="AFL files or folders, compiled together; - is stdin")]
Places = Annotated[
    list[str],
    argument(metavar="FILE...|FLOW", help="AFL files, compiled together, or the name or digest of a flow in the store"),
]
StrictOption = Annotated[
    bool,
    option(
        "--strict",
        help="Treat warnings about AFL as errors, and fail steps whose handlers return other types than declared; "
        "default: TREADLE_STRICT, or `strict` of the project",
    ),
]


class SourceNotFound(InvalidInput, code="source_not_found"):
    """A source that cannot be read."""


def read_sources(places: Sequence[str]) -> list[Source]:
    """Read the (name, text) pairs of files, of all `.afl` files in folders, or of stdin."""
    if not places:
        raise InvalidInput("Name at least one AFL file.")
    return [(name, _read(name)) for place in dict.fromkeys(places) for name in _files(place)]


def compile_here(session: CommandSession, engine: Engine, sources: Sequence[Source], *, strict: bool) -> Program:
    """Compile sources before a command uses them; print warnings for people, and raise `InvalidFlow` for errors."""
    _, program, compiled = engine.kernel.flows.compile(sources, strict=strict or session.strict)
    print_diagnostics(session, compiled.warnings)
    return program


def is_file(place: str) -> bool:
    """Whether the argument is a file or folder rather than a published flow."""
    return place == "-" or place.endswith(_SUFFIX) or Path(place).exists()


def flow_name(places: Sequence[str]) -> str | None:
    """The published flow that the arguments name; None if they are files."""
    if len(places) == 1 and not is_file(places[0]):
        return check_name(places[0], "flow name") if not _is_digest(places[0]) else places[0]
    return None


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _files(place: str) -> list[str]:
    folder = Path(place)
    if place == "-" or not folder.is_dir():
        return [place]
    paths = sorted(str(path) for path in folder.rglob(f"*{_SUFFIX}"))
    if not paths:
        raise SourceNotFound(f"There is no {_SUFFIX} file in the folder {place}.")
    return paths


def _read(name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        raise SourceNotFound(f"{name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise SourceNotFound(f"{name} is not UTF-8 text (byte {error.start}).") from None


WorkflowOption = Annotated[
    str | None, option("--workflow", "-w", metavar="NAME", help="The workflow; optional if there is only one")
]
LenientOption = Annotated[bool, option("--lenient", help="Do not check the inputs against the workflow's parameters")]

_TEXTS = {"String": False, "String?": True}
"""Types whose inputs are taken as they are written, and whether `null` is null."""


FileFlow = tuple["list[SourceText]", dict[str, Json], bool]
"""Sources that compile, the checked inputs of their workflow, and whether the flow is strict."""


@dataclass(frozen=True)
class Wanted:
    """The typed arguments."""

    places: Sequence[str]
    workflow: str | None
    pairs: Sequence[str]
    whole: str | None
    lenient: bool = False
    version: int | None = None
    strict: bool = False

    def check_files(self, session: CommandSession) -> FileFlow | None:
        """Compile the files and check the inputs, before anything is stored; None if a flow in the store is named."""
        if flow_name(self.places) is not None:
            return None
        from treadle.api.flows import SourceText
        from treadle.kernel.runs.flows import check_inputs, find_workflow
        from treadle.lang.types import words

        sources = read_sources(self.places)
        program = compile_here(session, Engine("memory://", settings=session.settings), sources, strict=self.strict)
        workflow = find_workflow(program, self.workflow)
        kinds = {param.name: words(param.type) for param in workflow.params}
        inputs = workflow_inputs({name: _TEXTS[kind] for name, kind in kinds.items() if kind in _TEXTS}, self.whole, self.pairs)
        check_inputs(program, workflow, inputs, lenient=self.lenient)
        return [SourceText(name, text) for name, text in sources], inputs, program.strict

    async def find(self, api: Api) -> tuple[FlowDetail, dict[str, Json]]:
        """Return the named flow in the store, and the inputs."""
        flow = await api.flows.get(flow_name(self.places) or "", version=self.version)
        return flow, workflow_inputs(texts_of(flow, self.workflow), self.whole, self.pairs)

    async def start(self, api: Api, files: FileFlow | None, **options: Any) -> RunStarted:
        """Start the workflow of the checked files, or of the named flow in the store."""
        if files is not None:
            sources, inputs, strict = files
            options |= {"strict": strict, "lenient": self.lenient}
            return await api.runs.start_from_source(sources, self.workflow, inputs, **options)
        flow, inputs = await self.find(api)
        return await api.runs.start(flow.id, self.workflow, inputs, lenient=self.lenient, **options)


def texts_of(flow: FlowDetail, workflow: str | None) -> dict[str, bool]:
    """The workflow's parameters of type String or String? (true); none if there is no such workflow, which starting it reports."""
    signature = _find(flow.workflows, workflow)
    return {} if signature is None else {param.name: _TEXTS[param.type] for param in signature.params if param.type in _TEXTS}


def _find(workflows: Sequence[WorkflowSignature], name: str | None) -> WorkflowSignature | None:
    same = [workflow for workflow in workflows if name in (None, workflow.name)]
    same = same or [workflow for workflow in workflows if short_name(workflow.name) == name]
    return same[0] if len(same) == 1 else None


def print_missing_handlers(started: RunStarted) -> None:
    """Warn people about handlers or workers that the run would wait for."""
    if started.missing_handlers:
        print_missing(f"in a live worker of list {started.task_list}", started.missing_handlers)
    elif not started.workers:
        print_warning(
            f"no worker of list {started.task_list} is running; the run waits for one. "
            "`treadle worker --handlers MODULE` starts one."
        )


def print_missing(where: str, missing: Sequence[str]) -> None:
    """Warn people about event facets without a handler."""
    print_warning(
        f"there is no handler {where} for {', '.join(missing)}; the run waits there. "
        "Start one with `treadle worker --handlers MODULE`."
    )
