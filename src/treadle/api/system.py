"""The system as a whole: its clock, and why anything is where it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from treadle.api import contract
from treadle.api.contract import Says, Shape
from treadle.api.tasks import Why
from treadle.api.wire import Instant


@dataclass(frozen=True, slots=True)
class Time(Shape):
    """The store's clock, by which all instants are."""

    now: Instant


class SystemApi(Protocol):
    """The system as a whole."""

    @contract.get("/time", lists=True)
    async def time(self) -> Time:
        """What time it is by the store's clock."""

    @contract.get("/why/{any_id}")
    async def why(
        self, any_id: Annotated[str, Says("The id of a task, a run, an objective, an approval or an outside job")]
    ) -> Why:
        """Why a task, a run or an objective is where it is, in one line; of an approval or an outside job: its task."""
