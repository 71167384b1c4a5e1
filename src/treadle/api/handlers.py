"""Handler registrations: the function and module that handle the tasks of a facet, for runners that load handlers themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import WAIT_LIMIT
from treadle.api.view import Column, View
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

FacetName = Annotated[str, Doc("The event facet's qualified name", "billing.ProcessPayment")]

_MODULE = "`package.module`, or `file:///path/to/module.py`, below the folders that the server's machine allows"


class Handler(ApiRecord, frozen=True):
    """A registration."""

    facet_name: str
    module_uri: str
    """`package.module`, or `file:///path/to/module.py`."""
    entrypoint: str
    """The function in the module."""
    version: str
    checksum: str
    """A change makes runners reload the module."""
    timeout_ms: int
    requirements: list[str]
    metadata: dict[str, Json]
    """Data passed to the function in addition to the payload."""
    missing_requirements: list[str]
    """Requirements that are not met on the responding server."""
    missing_module: str | None
    """Why the responding server cannot find the module; null: it can."""
    problem: str | None
    """A problem with it in a live worker: it held the Python interpreter, so that nothing else ran; null: none is known."""
    created_at: Instant
    updated_at: Instant
    unreadable: str | None = None
    """Why the stored registration cannot be read; runners do not load it. Null: it can be read."""


class HandlerList(ApiRecord, frozen=True):
    """Registrations by name."""

    handlers: list[Handler]


class HandlerRate(ApiRecord, frozen=True):
    """Tasks of one handler or function in the last hour; durations are milliseconds."""

    name: str
    kind: str
    """`handler`, `function`, `afl.script` or `goal.run`."""
    started: int
    """Attempts that began, including those that run."""
    finished: int
    failed: int
    """Of those finished, the failed ones."""
    running: int
    """Tasks that run now; of a function, also runs that wait."""
    median_for: int | None
    """Median duration of the attempts that ended a task, or of whole runs of a function; null if there is none."""
    p95_for: int | None
    """Their 95th percentile."""


class HandlerRates(ApiRecord, frozen=True):
    """Rates by handler, busiest first."""

    since_at: Instant
    """Start of the counted time, an hour ago."""
    counted_at: Instant
    """Work that ended later is not counted yet: a busy store is counted with a delay."""
    rates: list[HandlerRate]


class HandlerRemoved(ApiRecord, frozen=True):
    """A removed registration."""

    removed: str


class HandlerTest(ApiRecord, frozen=True):
    """The result of a test, or the error that a task would fail with."""

    result: dict[str, Json] | None
    error_code: str | None
    """`import_failed`, `entrypoint_missing`, `handler_error`, `timeout`, or the handler's own code; null: it succeeded."""
    error: str | None
    output: str
    """The end of its output."""
    missing_requirements: list[str]


def _missing(handler: Handler) -> str:
    if handler.unreadable:
        return "(unreadable)"
    return ", ".join([*([handler.module_uri] if handler.missing_module else []), *handler.missing_requirements]) or "-"


HANDLER = View(
    Handler,
    columns=(
        Column("facet", "facet_name"),
        Column("module", "module_uri"),
        Column("entry point", "entrypoint"),
        "version",
        Column("timeout", lambda handler: f"{handler.timeout_ms / 1000:g} s"),
        "updated_at",
        Column("missing", _missing),
    ),
    brief=("facet_name", "module_uri", "version", Column("missing", _missing)),
    empty="No handlers. `treadle handlers register FACET MODULE` adds one.",
)
RATE = View(
    HandlerRate,
    columns=(
        Column("name", link="/tasks?every=1&name={name}"),
        "?kind",
        "started",
        "finished",
        "failed",
        "?running",
        Column("median", "median_for"),
        Column("p95", "p95_for"),
    ),
    empty="No task has run in this time.",
)
View(HandlerRemoved, changed="Removed the handler of {removed}")


class HandlersApi(Protocol):
    """Handler registrations. Calls that load code need the scope `register`."""

    @contract.get("/handlers")
    async def list(self) -> HandlerList:
        """Registrations, with the requirements that are missing on the responding server."""

    @contract.get("/handler-rates")
    async def rates(self) -> HandlerRates:
        """Tasks started, finished and failed in the last hour, and durations of attempts, by handler and function.

        Read from metrics, so durations are off by up to an eighth. The response is cached for two seconds.
        """

    @contract.get("/handlers/{facet_name}")
    async def get(self, facet_name: FacetName) -> Handler:
        """One registration."""

    @contract.put("/handlers/{facet_name}", Scope.REGISTER)
    async def register(
        self,
        facet_name: FacetName,
        module_uri: Annotated[str, Doc(_MODULE, "handlers.billing")],
        *,
        entrypoint: Annotated[str, Doc("The function in the module")] = "handle",
        version: Annotated[str, Doc("For people")] = "1.0.0",
        checksum: Annotated[str, Doc("A change makes runners reload the module")] = "",
        timeout: Annotated[float, Doc("Longest time for one attempt in seconds, up to one day", 30)] = 30.0,
        requirements: Annotated[Sequence[str], Doc("Requirements in pip syntax", ["requests>=2.31"])] = (),
        metadata: Annotated[dict[str, Json] | None, Doc("Data passed to the function in addition to the payload")] = None,
    ) -> Handler:
        """Register a handler, or replace the facet's handler; runners see it with their next refresh.

        A missing module is looked up again when a task arrives; a module outside the allowed folders is refused.
        """

    @contract.post("/handlers/{facet_name}", Scope.REGISTER)
    async def edit(
        self,
        facet_name: FacetName,
        *,
        module_uri: Annotated[str | None, Doc(f"{_MODULE}; null: unchanged")] = None,
        entrypoint: Annotated[str | None, Doc("The function in the module; null: unchanged")] = None,
        version: Annotated[str | None, Doc("For people; null: unchanged")] = None,
        checksum: Annotated[str | None, Doc("A change makes runners reload the module; null: unchanged")] = None,
        timeout: Annotated[float | None, Doc("Longest time for one attempt in seconds; null: unchanged")] = None,
        requirements: Annotated[Sequence[str] | None, Doc("Requirements in pip syntax; null: unchanged")] = None,
        metadata: Annotated[dict[str, Json] | None, Doc("Replaces the metadata; null: unchanged")] = None,
    ) -> Handler:
        """Edit a registration."""

    @contract.delete("/handlers/{facet_name}", Scope.REGISTER)
    async def remove(self, facet_name: FacetName) -> HandlerRemoved:
        """Remove a registration; tasks of the facet wait until another is registered."""

    @contract.post("/handlers/{facet_name}/test", Scope.REGISTER)
    async def test(
        self,
        facet_name: FacetName,
        payload: Annotated[dict[str, Json] | None, Doc("Input of the handler", {"amount": 12})] = None,
        *,
        wait_for: Annotated[float, Doc("Stop it after this many seconds, up to 60", 30)] = WAIT_LIMIT,
    ) -> HandlerTest:
        """Load a registered handler on the responding server and call it with a payload; nothing is stored.

        It runs in a separate process and from the allowed folders only. It is not a simulation: the handler's side effects happen.
        """
