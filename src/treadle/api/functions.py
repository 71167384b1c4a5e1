"""Durable functions: list, start, and continue runs with another version."""

from __future__ import annotations

from typing import Annotated, Protocol, Unpack

from treadle.api import contract
from treadle.api.contract import ApiRecord, Doc
from treadle.api.options import FunctionOptions
from treadle.api.runs import Run, RunId, RunStarted
from treadle.api.view import Column, View
from treadle.model.access import Scope
from treadle.model.values import Json


class Function(ApiRecord, frozen=True):
    """A version of a durable function."""

    name: str
    version: int
    servers: int
    """Live workers that have this version."""
    runs: int
    """Live runs of this version."""
    task_lists: list[str]
    """Task lists in which its runs were started."""


class FunctionList(ApiRecord, frozen=True):
    """Functions by name and version."""

    functions: list[Function]


class RunAdopted(Run, frozen=True, kw_only=True):
    """A run that continues with another version of its function."""

    servers: int
    """Live workers that have that version; with none, the run waits."""


View(
    Function,
    columns=(
        Column("name", link="/runs?kind=function&workflow={name}"),
        "version",
        "servers",
        "runs",
        Column("lists", "task_lists"),
    ),
    brief=("name", "version", "servers", "runs"),
    empty="No functions. A worker registers its functions: `treadle worker --handlers MODULE`.",
)


class FunctionsApi(Protocol):
    """Durable functions."""

    @contract.get("/functions")
    async def list(self) -> FunctionList:
        """Known functions by version, with the number of live workers and live runs of each."""

    @contract.post("/functions/runs", Scope.ENQUEUE, status=201, lists=True, creates=True)
    async def start(
        self,
        name: Annotated[str, Doc("The function's name", "order")],
        payload: Annotated[dict[str, Json] | None, Doc("Input of the function", {"id": 12})] = None,
        **options: Unpack[FunctionOptions],
    ) -> RunStarted:
        """Start a durable function; when this returns, its run is durable."""

    @contract.post("/runs/{run_id}/adopt", Scope.OPERATE)
    async def adopt(self, run_id: RunId, version: Annotated[int, Doc("The version that continues the run", 2)]) -> RunAdopted:
        """Continue a run with another version of its function. The caller asserts that its code fits the recorded history."""
