"""How long work lay idle after its worker was lost: from the blow until somebody else began it anew.

The log says which leases were taken from whom; workers' diaries say when each task was begun. Work that nobody held, or whose
settlement was committed before the blow, is in neither.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.evidence import Expiry
from tests.chaos.stage import read_events
from tests.chaos.storms import Blow


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, of so many takeovers."""

    count: int
    p50: float
    p99: float
    longest: float

    @staticmethod
    def of(seconds: Iterable[float]) -> Times | None:
        """Of those; None for none."""
        ordered = sorted(seconds)
        if not ordered:
            return None
        return Times(len(ordered), ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1])


def measure(folder: Path, blows: Sequence[Blow], expiries: Sequence[Expiry]) -> dict[str, Times]:
    """The times for each way in which workers were lost."""
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
    found: dict[str, list[float]] = {}
    for expiry in expiries:
        before = [blow for blow in of_owner.get(expiry.owner_id, ()) if blow.at <= expiry.at <= (blow.until_at or expiry.at)]
        again = sorted(began.get(expiry.task_id, ()))
        place = bisect_left(again, expiry.at)
        if before and place < len(again):
            found.setdefault(before[-1].way, []).append((again[place] - before[-1].at) / 1000)
    return {way: times for way in sorted(found) if (times := Times.of(found[way])) is not None}
