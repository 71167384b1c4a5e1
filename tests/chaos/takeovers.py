"""How long work lay idle after its worker was lost: from the blow until somebody else began it anew.

The log says which leases were taken from whom; workers' diaries say when each task was begun. Work that nobody held, or whose
settlement was committed before the blow, is in neither.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.evidence import Expiry
from tests.chaos.stage import read_events
from tests.chaos.storms import Blow


@dataclass(frozen=True, slots=True)
class Takeover:
    """A task was lost at `lost_at`, ready again at `ready_at`, and begun by somebody at `begun_at` (milliseconds)."""

    way: str
    task_id: str
    lost_at: int
    ready_at: int
    begun_at: int

    @property
    def seconds(self) -> float:
        """How long it lay idle."""
        return (self.begun_at - self.lost_at) / 1000


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, of so many takeovers."""

    count: int
    p50: float
    p99: float
    longest: float
    longest_id: str
    """The task that lay idle for the longest time."""

    @staticmethod
    def of(takeovers: Sequence[Takeover]) -> Times:
        """Of those, of which there is at least one."""
        ordered = sorted(takeovers, key=lambda each: each.seconds)
        middle, most, last = ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]
        return Times(len(ordered), middle.seconds, most.seconds, last.seconds, last.task_id)


def measure(folder: Path, blows: Sequence[Blow], expiries: Sequence[Expiry]) -> list[Takeover]:
    """All that were there."""
    of_owner: dict[str, list[Blow]] = {}
    began: dict[str, list[int]] = {}
    for diary in sorted(folder.glob("*.diary")):
        owners = [each["owner_id"] for each in read_events(diary.with_suffix(".log")) if each["event"] == "WorkerStarted"]
        for owner in owners:
            of_owner[owner] = sorted((blow for blow in blows if blow.diary == diary), key=lambda blow: blow.at)
        for line in diary.read_text().splitlines():
            sign, at, task_id = line.split()
            if sign == "+":
                began.setdefault(task_id, []).append(int(at))
    found = []
    for expiry in expiries:
        before = [blow for blow in of_owner.get(expiry.owner_id, ()) if blow.at <= expiry.at <= (blow.until_at or expiry.at)]
        again = sorted(began.get(expiry.task_id, ()))
        place = bisect_left(again, expiry.at)
        if before and place < len(again):
            found.append(Takeover(before[-1].way, expiry.task_id, before[-1].at, expiry.at, again[place]))
    return found


def times(takeovers: Sequence[Takeover]) -> dict[str, Times]:
    """The times for each way in which workers were lost."""
    ways = sorted({each.way for each in takeovers})
    return {way: Times.of([each for each in takeovers if each.way == way]) for way in ways}
