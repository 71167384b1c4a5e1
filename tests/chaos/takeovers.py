"""How long work lay idle after its worker was lost: from the blow until somebody else began it anew.

The log says which leases were taken from whom; workers' diaries say when each task was begun. Work that nobody held, or whose
settlement was committed before the blow, is in neither.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.evidence import Evidence, Expiry
from tests.chaos.stage import read_events
from tests.chaos.storms import Blow


@dataclass(frozen=True, slots=True)
class Takeover:
    """A task was lost at `lost_at`, ready again at `ready_at`, and begun by somebody at `begun_at` (milliseconds)."""

    way: str
    task_id: str
    name: str
    lost_at: int
    ready_at: int
    begun_at: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds."""

    p50: float
    p99: float
    longest: float

    @staticmethod
    def of(milliseconds: Iterable[int]) -> Spread:
        """Of those, of which there is at least one."""
        ordered = sorted(milliseconds)
        return Spread(ordered[len(ordered) // 2] / 1000, ordered[int(len(ordered) * 0.99)] / 1000, ordered[-1] / 1000)


@dataclass(frozen=True, slots=True)
class Times:
    """How long it took, of so many takeovers."""

    count: int
    ready: Spread
    """Until others could have it: the lease had run out, or a start-up had seen to it."""
    begun: Spread
    """Until a worker has started it, after the tasks due before it."""
    longest_id: str
    """The task that lay idle for the longest time."""


def blows_by_owner(folder: Path, blows: Sequence[Blow]) -> dict[str, list[Blow]]:
    """The faults that hit each lease owner, in order."""
    found: dict[str, list[Blow]] = {}
    for diary in folder.glob("*.diary"):
        for told in read_events(diary.with_suffix(".log")):
            if told["event"] == "WorkerStarted":
                found[told["owner_id"]] = sorted((blow for blow in blows if blow.diary == diary), key=lambda blow: blow.at)
    return found


def note_dead(folder: Path, blows: Sequence[Blow], expiries: Sequence[Expiry]) -> list[Expiry]:
    """The same, with the known facts about their owners: a worker killed before does nothing later."""
    of_owner = blows_by_owner(folder, blows)
    killed = {owner: blow.at for owner, mine in of_owner.items() for blow in mine if blow.until_at is None}
    return [expiry._replace(alive=expiry.at < killed.get(expiry.owner_id, expiry.at + 1)) for expiry in expiries]


def measure(folder: Path, blows: Sequence[Blow], found: Evidence) -> list[Takeover]:
    """All that were there."""
    of_owner = blows_by_owner(folder, blows)
    began: dict[str, list[int]] = {}
    for diary in folder.glob("*.diary"):
        for line in diary.read_text().splitlines():
            sign, at, task_id = line.split()
            if sign == "+":
                began.setdefault(task_id, []).append(int(at))
    takeovers = []
    for expiry in found.expiries:
        before = [blow for blow in of_owner.get(expiry.owner_id, ()) if blow.at <= expiry.at <= (blow.until_at or expiry.at)]
        again = sorted(began.get(expiry.task_id, ()))
        place = bisect_left(again, expiry.at)
        if before and place < len(again):
            name = found.tasks[expiry.task_id].name
            takeovers.append(Takeover(before[-1].way, expiry.task_id, name, before[-1].at, expiry.at, again[place]))
    return takeovers


def times(takeovers: Sequence[Takeover]) -> dict[str, Times]:
    """The times for each way in which workers were lost."""
    found = {}
    for way in sorted({each.way for each in takeovers}):
        mine = [each for each in takeovers if each.way == way]
        ready = Spread.of(each.ready_at - each.lost_at for each in mine)
        begun = Spread.of(each.begun_at - each.lost_at for each in mine)
        found[way] = Times(len(mine), ready, begun, max(mine, key=lambda each: each.begun_at - each.lost_at).task_id)
    return found
