"""Durable functions: what is known, started and adopted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.runs import Run, RunId, RunStarted
from treadle.model.access import Scope
from treadle.model.names import DEFAULT_LIST
from treadle.model.values import Json


@dataclass(frozen=True, slots=True)
class Function(ApiRecord):
    """A version of a durable function."""

    name: str
    version: int
    servers: int
    """Live servers that have it."""
    runs: int
    """Runs of it that go on."""
    task_lists: list[str]
    """Where runs of it were started."""


@dataclass(frozen=True, slots=True)
class FunctionList(ApiRecord):
    """Functions by name and version."""

    functions: list[Function]


@dataclass(frozen=True, slots=True)
class RunAdopted(Run):
    """A run that another version of its function goes on with."""

    servers: int
    """Live servers that have that version; with none, the run waits."""


class FunctionsApi(Protocol):
    """Durable functions."""

    @contract.get("/functions")
    async def list(self) -> FunctionList:
        """The functions that are known, by version: how many live servers have them, and how many of their runs go on."""

    @contract.post("/functions/runs", Scope.WORK, status=201, lists=True, creates=True)
    async def start(
        self,
        name: Annotated[str, Doc("The function's name", "order")],
        payload: Annotated[dict[str, Json] | None, Doc("What it is given", {"id": 12})] = None,
        *,
        version: Annotated[int | None, Doc("That version; null: the newest that is known", 1)] = None,
        idempotency_key: Annotated[str | None, Doc("Stands for the run that it is first given with")] = None,
        task_list: Annotated[str, Doc("The task list that workers choose")] = DEFAULT_LIST,
        priority: Annotated[int, Doc("Smaller runs first")] = 0,
        trace_id: Annotated[str | None, Doc("What it belongs to, carried unchanged by everything that follows")] = None,
    ) -> RunStarted:
        """Start a durable function; when this answers, its run is durable."""

    @contract.post("/runs/{run_id}/adopt", Scope.OPERATE)
    async def adopt(self, run_id: RunId, version: Annotated[int, Doc("The version that is to go on with it", 2)]) -> RunAdopted:
        """Let another version of its function go on with a run: you say that its code fits what the run has recorded."""
