"""What a run has recorded, by place: given back as the function passes there again."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.kernel.functions.rows import SIGNAL, VOID, Recorded
from treadle.model.states import StepState


class History:
    """Steps that the function has not reached yet in this replay; empty for a run that has just begun."""

    __slots__ = ("_attempts", "_doubts", "_furthest", "_redone", "_steps", "_widest", "count")

    def __init__(self, recorded: Iterable[Recorded] = ()) -> None:
        self._steps: dict[str, Recorded] = {}
        self._redone: dict[str, int] = {}
        self._attempts: dict[str, int] = {}
        self._doubts: dict[str, bool] = {}
        self._furthest: dict[str, int] = {}
        self._widest: dict[str, int] = {}
        self.count = 0
        """Rows that there are."""
        for each in recorded:
            self.count += 1
            if each.kind == VOID:
                self._redone[each.place] = max(self._redone.get(each.place, 0), each.redo + 1)
                if each.attempt > self._attempts.get(each.place, 0):
                    self._attempts[each.place] = each.attempt
                    self._doubts[each.place] = each.doubtful or each.state == StepState.RUNNING
            elif each.kind != SIGNAL:
                self._steps[each.place] = each
                self._note(each.place)

    def _note(self, place: str) -> None:
        parts = place.split(".")
        for index in range(0, len(parts), 2):
            scope = "".join(f"{part}." for part in parts[:index])
            self._furthest[scope] = max(self._furthest.get(scope, -1), int(parts[index]))
            if index + 1 < len(parts):
                gather = f"{scope}{parts[index]}"
                self._widest[gather] = max(self._widest.get(gather, 0), int(parts[index + 1]) + 1)

    def __bool__(self) -> bool:
        return bool(self._steps) or bool(self._redone)

    def take(self, place: str) -> Recorded | None:
        """What is recorded there; it counts as reached."""
        return self._steps.pop(place, None)

    def look(self, place: str) -> Recorded | None:
        """What is recorded there, left for later."""
        return self._steps.get(place)

    def redo(self, place: str) -> int:
        """How often an operator had the step there done again."""
        return self._redone.get(place, 0)

    def attempts(self, place: str) -> int:
        """How often the effect there was begun before an operator had it done again."""
        return self._attempts.get(place, 0)

    def doubted(self, place: str) -> bool:
        """Whether nobody knows what came of the effect there before an operator had it done again."""
        return self._doubts.get(place, False)

    def went_past(self, scope: str, position: int) -> bool:
        """Whether the branch has recorded something there or later."""
        return self._furthest.get(scope, -1) >= position

    def width(self, place: str) -> int:
        """How many branches of the gather there have recorded something, at least."""
        return self._widest.get(place, 0)

    def unreached(self) -> Recorded | None:
        """The first step that was never reached."""
        return min(self._steps.values(), key=lambda each: each.ordinal, default=None)
