"""Flows: AFL sources that are compiled together, and published under names, version by version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json


@dataclass(frozen=True, slots=True)
class SourceText(ApiRecord):
    """One AFL source."""

    name: str
    """What diagnostics call it; usually a file's name."""
    text: str


FlowName = Annotated[str, Doc("The flow's name, or its digest", "shop")]
Sources = Annotated[
    Sequence[SourceText],
    Doc("AFL, compiled together; up to 512 Ki characters in all", [{"name": "shop.afl", "text": "namespace shop {}"}]),
]


@dataclass(frozen=True, slots=True)
class FlowDiagnostic(ApiRecord):
    """Something about AFL sources; lines and columns count from 1, the end is exclusive."""

    rule: str
    """Stable."""
    severity: str
    """`error` or `warning`."""
    source: str
    line: int
    column: int
    end_line: int
    end_column: int
    message: str
    valid: list[str]
    """What would be valid there."""
    suggestion: str | None
    help: str | None
    rendered: str
    """All of it in a few lines of text, with the line itself."""


@dataclass(frozen=True, slots=True)
class FlowChecked(ApiRecord):
    """Whether sources are a program."""

    valid: bool
    digest: str | None
    """Equal for sources that mean the same; null if they are not valid."""
    diagnostics: list[FlowDiagnostic]
    """Errors and warnings, in the order of the sources."""
    workflows: list[str]
    event_facets: list[str]
    """The handlers that it needs."""


@dataclass(frozen=True, slots=True)
class FlowCompiled(FlowChecked):
    """What sources compile to."""

    program: Json
    """Null if they are not valid."""


@dataclass(frozen=True, slots=True)
class FormattedSource(ApiRecord):
    """A source in the one layout."""

    name: str
    text: str
    changed: bool


@dataclass(frozen=True, slots=True)
class FlowFormatted(ApiRecord):
    """Sources in the one layout; those with syntax errors are not among them."""

    valid: bool
    sources: list[FormattedSource]
    diagnostics: list[FlowDiagnostic]


@dataclass(frozen=True, slots=True)
class FlowVersion(ApiRecord):
    """A flow that is published under a name; versions count from 1."""

    name: str
    version: int
    flow_id: str
    """The digest of what it means."""
    actor: str | None
    published_at: Instant


@dataclass(frozen=True, slots=True)
class FlowList(ApiRecord):
    """Published flows by name, newest version first."""

    flows: list[FlowVersion]


@dataclass(frozen=True, slots=True)
class FlowParam(ApiRecord):
    """A parameter of a workflow or a field of a schema."""

    name: str
    type: str
    """As it is written in AFL: `String`, `Long`, `Int`, `Double`, `Boolean`, `Json`, a schema, or a list of these: `[Order]`."""
    required: bool
    default: Json
    """Null where there is none, or where it is worked out when the run starts."""
    computed: bool
    """Whether the default is worked out when the run starts."""
    doc: str | None


@dataclass(frozen=True, slots=True)
class FlowReturn(ApiRecord):
    """What a workflow comes to."""

    name: str
    type: str
    doc: str | None


@dataclass(frozen=True, slots=True)
class FlowSchema(ApiRecord):
    """What a value of that type is made of."""

    name: str
    fields: list[FlowParam]
    doc: str | None


@dataclass(frozen=True, slots=True)
class WorkflowSignature(ApiRecord):
    """What a workflow takes and returns: enough for a form to start it."""

    name: str
    """Qualified."""
    params: list[FlowParam]
    returns: list[FlowReturn]
    schemas: list[FlowSchema]
    """Those that its parameters are made of."""
    open: bool
    """Whether it takes inputs that are no parameters too: its script reads them."""
    doc: str | None


@dataclass(frozen=True, slots=True)
class FlowDetail(ApiRecord):
    """A flow: what it was compiled from, and what it offers."""

    id: str
    """The digest of what it means."""
    created_at: Instant
    versions: list[FlowVersion]
    """Of the name that it was asked for by, newest first; none if that was its digest."""
    workflows: list[WorkflowSignature]
    event_facets: list[str]
    """The handlers that it needs."""
    sources: list[SourceText]


@dataclass(frozen=True, slots=True)
class FlowNode(ApiRecord):
    """A statement, or a workflow itself."""

    id: str
    label: str
    kind: str
    """`workflow`, `facet`, `event`, `schema`, `external`, `yield`, `script` or `sys`."""
    group: str | None
    """The block that holds it."""
    mermaid_id: str
    """What the Mermaid text calls it."""
    states: dict[str, int]
    """Of a run: how many of its steps are in which state."""
    source: str | None
    """The source that it stands in, and from which line to which."""
    line: int | None
    end_line: int | None


@dataclass(frozen=True, slots=True)
class FlowEdge(ApiRecord):
    """`needs` between statements of a block, or `body`, `case`, `catch` from an owner into a block."""

    source: str
    target: str
    kind: str


@dataclass(frozen=True, slots=True)
class FlowBlock(ApiRecord):
    """A block, and the one around it."""

    id: str
    label: str
    parent: str | None
    mermaid_id: str
    states: dict[str, int]
    """Of a run: how many of its blocks are in which state."""


@dataclass(frozen=True, slots=True)
class FlowGraph(ApiRecord):
    """Steps of workflows and what they wait for."""

    nodes: list[FlowNode]
    edges: list[FlowEdge]
    groups: list[FlowBlock]
    mermaid: str
    """The same as a Mermaid flowchart."""
    dot: str
    """The same for Graphviz."""


class FlowsApi(Protocol):
    """AFL sources, compiled together and published by name."""

    @contract.get("/flows")
    async def list(
        self, *, name: Annotated[str | None, Doc("All versions of this flow; null: the newest of each", "shop")] = None
    ) -> FlowList:
        """What is published."""

    @contract.post("/flows/validate", Scope.READ)
    async def validate(self, sources: Sources) -> FlowChecked:
        """Whether sources are a program; what is wrong with them is the answer, and no error."""

    @contract.post("/flows/compile", Scope.READ)
    async def compile(self, sources: Sources) -> FlowCompiled:
        """What sources compile to; what is wrong with them is the answer, and no error."""

    @contract.post("/flows/format", Scope.READ)
    async def format(self, sources: Sources) -> FlowFormatted:
        """Sources in the one layout; comments stay, meaning too."""

    @contract.post("/flows/graph", Scope.READ)
    async def draw(
        self,
        sources: Sources,
        *,
        workflow: Annotated[str | None, Doc("Only this one; null: all workflows", "shop.Checkout")] = None,
    ) -> FlowGraph:
        """The graph of sources that are not published."""

    @contract.get("/flows/{name}")
    async def get(
        self, name: FlowName, *, version: Annotated[int | None, Doc("This version; null: the newest", 1)] = None
    ) -> FlowDetail:
        """What a flow offers: its workflows, what they take and return, the handlers it needs, and its sources."""

    @contract.get("/flows/{name}/graph")
    async def graph(
        self,
        name: FlowName,
        *,
        version: Annotated[int | None, Doc("This version; null: the newest", 1)] = None,
        workflow: Annotated[str | None, Doc("Only this one; null: all workflows", "shop.Checkout")] = None,
    ) -> FlowGraph:
        """The graph of a flow."""

    @contract.post("/flows/{name}/versions", Scope.OPERATE, status=201, creates=True)
    async def publish(self, name: Annotated[str, Doc("The name to publish under", "shop")], sources: Sources) -> FlowVersion:
        """Store a flow as the next version of a name; runs in flight keep theirs, and the same flow twice is one version."""

    @contract.get("/runs/{run_id}/graph", lists=True)
    async def run_graph(self, run_id: Annotated[str, Doc("The run's id", "01935b8e-7c3a-7000-8000-000000000000")]) -> FlowGraph:
        """The graph of a run's workflow, with the states of its steps."""
