"""Decides which servers are dead; pure.

Two kinds of evidence count. The process: a server of the same kernel can see that it has ended, which is certain. The session: the
database has closed the server's connection, and no new one came for `CONFIRM_AFTER`. A server of the same kernel is judged by its
process alone, because a session can also end while its process lives. A wrong judgement is harmless: every write of a server is
fenced by its claims, so the server finds that they are gone, stops their handlers, and registers itself again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from treadle.kernel.store.queries import Sighting
from treadle.model.tasks import LOST_AFTER, PROCESS, SESSION

CONFIRM_AFTER = 0.5
"""Seconds for which a session must be gone: a process that lost only its connection opens another one within that time."""

LOOK_EVERY = 1.0
LOOK_EVERY_EACH = 0.25
"""Seconds between the looks of all servers of a store together: each looks less often if there are many."""

HasEnded = Callable[[str], bool | None]
"""Whether the process with this identity has ended; None if that cannot be seen from here."""


class Judgement(msgspec.Struct, frozen=True):
    """The conclusion of one look."""

    dead: Mapping[str, tuple[Sighting, str]]
    """Dead servers and the kind of evidence, by their id."""
    suspects: Mapping[str, float]
    """Servers without their session, and the time at which that was first seen."""
    local: frozenset[str]
    """The processes of live servers of this kernel."""
    pause: float | None
    """Seconds until the next look; None: there is nobody to look at."""


def judge(sightings: Iterable[Sighting], own_id: str, has_ended: HasEnded, suspects: Mapping[str, float], now: float) -> Judgement:
    """Judge all servers except this one. `suspects` are those of the previous look; `now` is monotonic, in seconds."""
    dead: dict[str, tuple[Sighting, str]] = {}
    doubted: dict[str, float] = {}
    local, others = set(), 0
    for each in sightings:
        if each.server_id == own_id:
            continue
        ended = None if each.process is None else has_ended(each.process)
        is_gone = ended is None and each.has_session is False
        since = suspects.get(each.server_id, now)
        if ended or (is_gone and now - since >= CONFIRM_AFTER):
            dead[each.server_id] = each, PROCESS if ended else SESSION
        else:
            if is_gone:
                doubted[each.server_id] = since
            elif ended is False and each.process is not None:
                local.add(each.process)
            others += (each.process is not None or each.has_session is not None) and not is_silent(each)
    return Judgement(dead, doubted, frozenset(local), _pause(doubted, others, now))


def is_silent(sighting: Sighting) -> bool:
    """Whether the server has missed so many heartbeats that its leases will end its work, if anything does."""
    return sighting.silent_for > LOST_AFTER * sighting.beat_every_for


def _pause(suspects: Mapping[str, float], others: int, now: float) -> float | None:
    if suspects:
        return max(min(suspects.values()) + CONFIRM_AFTER - now, 0.0)
    return max(LOOK_EVERY, LOOK_EVERY_EACH * (others + 1)) if others else None
