"""A branch of a function: where it is, and what it has decided that is not committed yet."""

from __future__ import annotations

from treadle.kernel.store.units import Row
from treadle.model.runs import Step
from treadle.model.tasks import NewTask


class Pending:
    """Rows that go with the next commit: steps by id (the last word counts), tasks, others, and mail that was taken in."""

    __slots__ = ("doubt", "guarded", "rows", "starts", "steps", "taken", "tasks")

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        self.tasks: list[NewTask] = []
        self.rows: list[Row] = []
        self.taken: list[str] = []
        self.starts: list[tuple[NewTask, tuple[Row, ...], Step]] = []
        """Child runs, with the steps that say so: they start only while this run is where it was seen, so that whoever pauses or
        cancels it reaches them."""
        self.doubt: str | None = None
        """What the log is to say of an effect that is made although nobody knows whether it was made before."""
        self.guarded = False
        """The run's version must rise with this."""

    def __bool__(self) -> bool:
        return bool(self.steps or self.tasks or self.rows or self.taken or self.starts)

    def take(self, other: Pending) -> None:
        """Add what another has."""
        self.steps.update(other.steps)
        self.tasks += other.tasks
        self.rows += other.rows
        self.taken += other.taken
        self.starts += other.starts
        self.guarded = self.guarded or other.guarded
        self.doubt = self.doubt or other.doubt


class Branch:
    """A line of execution: the function itself, or an argument of a gather. `scope` is where its places begin."""

    __slots__ = ("busy", "names", "parent", "pending", "position", "randoms", "scope")

    def __init__(self, scope: str = "", parent: Branch | None = None) -> None:
        self.scope = scope
        self.parent = parent
        self.position = 0
        self.randoms = 0
        self.names: dict[str, int] = {}
        self.pending: Pending | None = None
        self.busy: str | None = None
        """The step whose code it executes, in which `ctx` cannot be used."""

    def later(self) -> Pending:
        """What goes with its next commit."""
        if self.pending is None:
            self.pending = Pending()
        return self.pending

    def number(self, name: str) -> str:
        """The name, numbered where this branch has used it before."""
        count = self.names.get(name, 0) + 1
        self.names[name] = count
        return name if count == 1 else f"{name}#{count}"
