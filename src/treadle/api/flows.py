"""Flows: AFL sources that are compiled together and published under a name, in versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

import msgspec

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json


class SourceText(ApiRecord, frozen=True, forbid_unknown_fields=True):
    """One AFL source."""

    name: str
    """Its name in diagnostics; usually a file name."""
    text: str


FlowName = Annotated[str, Doc("The flow's name, or its digest", "shop")]
Strict = Annotated[bool, Doc("Treat warnings as errors, and fail steps whose handlers return other types than declared")]
Sources = Annotated[
    Sequence[SourceText],
    Doc("AFL sources, compiled together; up to 512 Ki characters in total", [{"name": "shop.afl", "text": "namespace shop {}"}]),
]
ANSWERS = (
    'Results by event facet: one for every call, a list to use in order, or `{"@error": "message", "@code": "code"}`; '
    "`sys.approval: {}` approves"
)


class FlowDiagnostic(ApiRecord, frozen=True):
    """A diagnostic about AFL sources; lines and columns count from 1, the end is exclusive."""

    rule: str
    """A stable code."""
    severity: str
    """`error` or `warning`."""
    source: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    valid: list[str]
    """Valid alternatives at that place."""
    suggestion: str | None
    help: str | None
    rendered: str
    """The diagnostic as text, with the source line."""


class FlowChecked(ApiRecord, frozen=True):
    """The result of a check of sources."""

    valid: bool
    digest: str | None
    """Equal for sources with the same meaning; null if they are invalid."""
    diagnostics: list[FlowDiagnostic]
    """Errors and warnings, in source order."""
    workflows: list[str]
    event_facets: list[str]
    """Handlers that the flow needs."""


class FlowCompiled(FlowChecked, frozen=True):
    """The result of compiling sources."""

    program: Json
    """Null if the sources are invalid."""


class FormattedSource(SourceText, frozen=True, forbid_unknown_fields=False):
    """A formatted source."""

    changed: bool


class FlowFormatted(ApiRecord, frozen=True):
    """Formatted sources, without those that have syntax errors."""

    valid: bool
    sources: list[FormattedSource]
    diagnostics: list[FlowDiagnostic]


class FlowVersion(ApiRecord, frozen=True):
    """A published version of a flow; versions count from 1."""

    name: str
    version: int
    flow_id: str
    """Digest of the flow's meaning."""
    actor: str | None
    published_at: Instant


class FlowList(ApiRecord, frozen=True):
    """Published flows by name, newest version first."""

    flows: list[FlowVersion]


class FlowReturn(ApiRecord, frozen=True):
    """An output of a workflow."""

    name: str
    type: str
    """The type as written in AFL: `String`, `Long`, `Int`, `Double`, `Boolean`, `Json`, a schema, or a list such as `[Order]`."""
    doc: str | None


class FlowParam(FlowReturn, frozen=True):
    """A parameter of a workflow or a field of a schema."""

    required: bool
    default: Json
    """Null if there is none, or if it is computed when the run starts."""
    computed: bool
    """Whether the default is computed when the run starts."""


class FlowSchema(ApiRecord, frozen=True):
    """A schema and its fields."""

    name: str
    fields: list[FlowParam]
    doc: str | None


class WorkflowSignature(ApiRecord, frozen=True):
    """Parameters and outputs of a workflow, sufficient for a start form."""

    name: str
    """Qualified name."""
    params: list[FlowParam]
    returns: list[FlowReturn]
    schemas: list[FlowSchema]
    """Schemas used by its parameters."""
    open: bool
    """Whether its script accepts inputs that are not parameters."""
    doc: str | None


class FlowDetail(ApiRecord, frozen=True):
    """A flow: its sources and workflows."""

    id: str
    """Digest of the flow's meaning."""
    created_at: Instant
    versions: list[FlowVersion]
    """Versions of the requested name, newest first; empty if it was requested by digest."""
    workflows: list[WorkflowSignature]
    event_facets: list[str]
    """Handlers that the flow needs."""
    sources: list[SourceText]
    strict: bool = False
    """Whether it was compiled strictly: a result of a handler that does not fit the declared returns fails its step."""


class FlowNode(ApiRecord, frozen=True):
    """A statement or a workflow."""

    id: str
    label: str
    kind: str
    """`workflow`, `facet`, `event`, `schema`, `external`, `yield`, `script` or `sys`."""
    group: str | None
    """The block that contains it."""
    mermaid_id: str
    """Its id in the Mermaid text."""
    states: dict[str, int]
    """For a run: number of its steps by state."""
    source: str | None
    """The source that contains it, with first and last line."""
    line: int | None
    end_line: int | None
    about: str = ""
    """For a run: the arguments of its step in one line, if it has exactly one."""
    step_id: str | None = None
    """For a run: the id of that step."""


class FlowEdge(ApiRecord, frozen=True):
    """`needs` between statements of a block, or `body`, `case`, `catch` from an owner into a block."""

    source: str
    target: str
    kind: str


class FlowBlock(ApiRecord, frozen=True):
    """A block and its enclosing block."""

    id: str
    label: str
    parent: str | None
    mermaid_id: str
    states: dict[str, int]
    """For a run: number of its blocks by state, without the items of a foreach."""
    items: dict[str, int] = msgspec.field(default_factory=dict)
    """For a run and a foreach: number of its items by state."""
    total: int = 0
    """For a run and a foreach: number of its items, including those that are not created yet."""
    step_id: str | None = None
    """For a run: the id of the block, if there is exactly one."""


class FlowGraph(ApiRecord, frozen=True):
    """Steps of workflows and their dependencies."""

    nodes: list[FlowNode]
    edges: list[FlowEdge]
    groups: list[FlowBlock]
    mermaid: str
    """The graph as a Mermaid flowchart."""
    dot: str
    """The graph for Graphviz."""


class DryRunCall(ApiRecord, frozen=True):
    """A call of a facet in a dry run."""

    path: str
    """The step's path."""
    facet: str
    params: Json
    """The parameters that its handler would receive."""
    expects: dict[str, str]
    """Types of the declared results, by name."""
    result: Json
    error: str | None


class FlowDryRun(ApiRecord, frozen=True):
    """The end of a dry run, of which nothing is stored."""

    state: str
    """`completed`, `failed`, or `waiting` for answers that were not given."""
    outputs: Json
    """Null unless it completed."""
    error: str | None
    calls: list[DryRunCall]
    """Answered calls, in order."""
    waiting: list[DryRunCall]
    """Calls without an answer."""
    unused: list[str]
    """Facets whose answers were not all used."""


View(
    FlowVersion,
    columns=(
        Column("name", link="/flows/{name}"),
        "version",
        Column("digest", lambda flow: flow.flow_id[:12]),
        "published_at",
        Column("by", "actor"),
    ),
    brief=("name", "version", "flow_id", "published_at"),
    empty="No flows. Publish one with `treadle flows publish NAME FILE...`.",
)


class FlowsApi(Protocol):
    """AFL sources, compiled together and published by name."""

    @contract.get("/flows")
    async def list(
        self,
        *,
        name: Annotated[str | None, Doc("All versions of this flow; null: the newest version of every flow", "shop")] = None,
    ) -> FlowList:
        """Published flows."""

    @contract.post("/flows/validate", Scope.READ)
    async def validate(self, sources: Sources, *, strict: Strict = False) -> FlowChecked:
        """Check sources; diagnostics are part of the response, not an error."""

    @contract.post("/flows/compile", Scope.READ)
    async def compile(self, sources: Sources, *, strict: Strict = False) -> FlowCompiled:
        """Compile sources; diagnostics are part of the response, not an error."""

    @contract.post("/flows/format", Scope.READ)
    async def format(self, sources: Sources) -> FlowFormatted:
        """Format sources; comments and meaning are preserved."""

    @contract.post("/flows/graph", Scope.READ)
    async def draw(
        self,
        sources: Sources,
        *,
        workflow: Annotated[str | None, Doc("Only this workflow; null: all", "shop.Checkout")] = None,
    ) -> FlowGraph:
        """The graph of unpublished sources."""

    @contract.post("/flows/dry-run", Scope.PUBLISH)
    async def dry_run(
        self,
        sources: Sources,
        workflow: Annotated[str | None, Doc("The workflow; optional if there is only one", "shop.Checkout")] = None,
        inputs: Annotated[dict[str, Json] | None, Doc("Inputs of the workflow", {"order": 12})] = None,
        *,
        answers: Annotated[dict[str, Json] | None, Doc(ANSWERS, {"shop.Pay": {"receipt": "r-1"}})] = None,
        lenient: Annotated[bool, Doc("Skip the check of the inputs against the workflow's parameters")] = False,
    ) -> FlowDryRun:
        """Run a workflow of unpublished AFL with given answers in place of handlers; nothing is stored, no handler is called."""

    @contract.get("/flows/{name}")
    async def get(
        self, name: FlowName, *, version: Annotated[int | None, Doc("The version; null: the newest", 1)] = None
    ) -> FlowDetail:
        """A flow: its workflows with parameters and outputs, the handlers it needs, and its sources."""

    @contract.get("/flows/{name}/graph")
    async def graph(
        self,
        name: FlowName,
        *,
        version: Annotated[int | None, Doc("The version; null: the newest", 1)] = None,
        workflow: Annotated[str | None, Doc("Only this workflow; null: all", "shop.Checkout")] = None,
    ) -> FlowGraph:
        """The graph of a flow."""

    @contract.post("/flows/{name}/versions", Scope.PUBLISH, status=201, creates=True)
    async def publish(
        self, name: Annotated[str, Doc("The name of the flow", "shop")], sources: Sources, *, strict: Strict = False
    ) -> FlowVersion:
        """Publish a flow as the next version of a name; publishing it again adds no version. Live runs keep their version."""

    @contract.get("/runs/{run_id}/graph", lists=True)
    async def run_graph(self, run_id: Annotated[str, Doc("The run's id", "01935b8e-7c3a-7000-8000-000000000000")]) -> FlowGraph:
        """The graph of a run's workflow, with the states of its steps."""
