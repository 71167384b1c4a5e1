"""Handler registrations: which function of which module handles the tasks of a facet, for runners that load it themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.tasks import WAIT_LIMIT
from treadle.api.wire import Instant
from treadle.model.access import Scope
from treadle.model.values import Json

FacetName = Annotated[str, Doc("The event facet's qualified name", "billing.ProcessPayment")]

_MODULE = "`package.module`, or `file:///path/to/module.py`, below the folders that the server's machine allows"


@dataclass(frozen=True, slots=True)
class Handler(ApiRecord):
    """A registration."""

    facet_name: str
    module_uri: str
    """`package.module`, or `file:///path/to/module.py`."""
    entrypoint: str
    """The function in it."""
    version: str
    checksum: str
    """Changing it makes runners load the module anew."""
    timeout_ms: int
    requirements: list[str]
    metadata: dict[str, Json]
    """What the function is given beside the payload."""
    missing_requirements: list[str]
    """Those that are not met where this was answered."""
    missing_module: str | None
    """Why the module cannot be found where this was answered; null: it is there."""
    created_at: Instant
    updated_at: Instant


@dataclass(frozen=True, slots=True)
class HandlerList(ApiRecord):
    """Registrations by name."""

    handlers: list[Handler]


@dataclass(frozen=True, slots=True)
class HandlerRemoved(ApiRecord):
    """A registration that is gone."""

    removed: str


@dataclass(frozen=True, slots=True)
class HandlerTrial(ApiRecord):
    """What a trial came to: a result, or what a task would fail with."""

    result: dict[str, Json] | None
    error_code: str | None
    """`import_failed`, `entrypoint_missing`, `handler_error`, `timeout`, or the handler's own; null: it succeeded."""
    error: str | None
    output: str
    """What it printed, the end of it."""
    missing_requirements: list[str]


class HandlersApi(Protocol):
    """Handler registrations. What loads code needs the scope `admin`."""

    @contract.get("/handlers")
    async def list(self) -> HandlerList:
        """The registrations, and what of their requirements is missing where this is answered."""

    @contract.get("/handlers/{facet_name}")
    async def get(self, facet_name: FacetName) -> Handler:
        """One registration."""

    @contract.put("/handlers/{facet_name}", Scope.ADMIN)
    async def register(
        self,
        facet_name: FacetName,
        module_uri: Annotated[str, Doc(_MODULE, "handlers.billing")],
        *,
        entrypoint: Annotated[str, Doc("The function in it")] = "handle",
        version: Annotated[str, Doc("For people")] = "1.0.0",
        checksum: Annotated[str, Doc("Changing it makes runners load the module anew")] = "",
        timeout: Annotated[float, Doc("Longest time for one attempt in seconds, up to a day", 30)] = 30.0,
        requirements: Annotated[Sequence[str], Doc("As pip has them", ["requests>=2.31"])] = (),
        metadata: Annotated[dict[str, Json] | None, Doc("What the function is given beside the payload")] = None,
    ) -> Handler:
        """Register a handler, or replace the facet's; running runners see it with their next refresh.

        A module that is not there yet is looked for when a task comes; one outside the allowed folders is refused.
        """

    @contract.post("/handlers/{facet_name}", Scope.ADMIN)
    async def edit(
        self,
        facet_name: FacetName,
        *,
        module_uri: Annotated[str | None, Doc(f"{_MODULE}; null: as it was")] = None,
        entrypoint: Annotated[str | None, Doc("The function in it; null: as it was")] = None,
        version: Annotated[str | None, Doc("For people; null: as it was")] = None,
        checksum: Annotated[str | None, Doc("Changing it makes runners load the module anew; null: as it was")] = None,
        timeout: Annotated[float | None, Doc("Longest time for one attempt in seconds; null: as it was")] = None,
        requirements: Annotated[Sequence[str] | None, Doc("As pip has them; null: as they were")] = None,
        metadata: Annotated[dict[str, Json] | None, Doc("In place of what it was; null: as it was")] = None,
    ) -> Handler:
        """Change what is given of a registration."""

    @contract.delete("/handlers/{facet_name}", Scope.ADMIN)
    async def remove(self, facet_name: FacetName) -> HandlerRemoved:
        """Remove a registration; tasks of the facet wait until there is another."""

    @contract.post("/handlers/{facet_name}/test", Scope.ADMIN)
    async def test(
        self,
        facet_name: FacetName,
        payload: Annotated[dict[str, Json] | None, Doc("What the handler is given", {"amount": 12})] = None,
        *,
        wait_for: Annotated[float, Doc("Stop it after so many seconds, up to 60", 30)] = WAIT_LIMIT,
    ) -> HandlerTrial:
        """Load a registered handler where this is answered and call it with a payload; nothing is stored.

        It runs in a process of its own, from the allowed folders alone, and with what it does to the world: it is no simulation.
        """
