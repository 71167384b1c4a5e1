"""The small history that a pair of features asks for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from treadle.engine.operations import Operations

RUNS = ("function", "parent", "workflow")
"""Kinds of work that are runs."""
TRIGGERS = ("schedule", "watcher")
"""Kinds of work that a trigger starts."""


class Fault(StrEnum):
    """The one fault of a history; it happens while the first piece of work is in progress."""

    KILLED = "worker killed"
    FROZEN = "worker frozen"
    LEASE_LOST = "lease lost"
    COMMIT_LOST = "commit lost"
    CUT = "connection cut"
    RESTART = "restart"


REPEATING = (Fault.KILLED, Fault.FROZEN, Fault.LEASE_LOST, Fault.RESTART)
"""Faults after which an execution is repeated."""


@dataclass(slots=True)
class Item:
    """One piece of work that a client submits, and how it must end."""

    key: str
    namespace: str = "default"
    id: str | None = None
    """The id of the task or run, once its submission was acknowledged."""
    further: list[str] = field(default_factory=list)
    """Runs that an operator started from it."""


@dataclass(frozen=True, slots=True)
class Act:
    """A change by an operator, `at` seconds after the start, and again until it succeeds."""

    at: float
    do: Callable[[Operations, list[Item]], Awaitable[int]]
    """Returns the number of changes, each of which the log must have, with the operator."""


@dataclass(slots=True)
class Case:
    """Everything that features decide."""

    kind: str = "task"
    options: dict[str, Any] = field(default_factory=dict)
    """Options of `enqueue`."""
    run_options: dict[str, Any] = field(default_factory=dict)
    """Options of starts of runs."""
    payload: dict[str, Any] = field(default_factory=dict)
    pad: str = ""
    """More text in payloads and results."""
    takes: float = 1.0
    """Seconds of one execution."""
    raises: int = 0
    """Executions of each piece of work that raise an error, after which a retry follows."""
    dies: int = 0
    """Executions that fail permanently, after which an operator repairs it."""
    reopens: int = 0
    """Cancellations that an operator takes back."""
    hangs: int = 0
    """Executions that never return, which a limit of the task ends."""
    collects: bool = False
    """Whether functions and workflows collect the failures of their calls."""
    forgets: bool = False
    """Whether a function forgets to await a call."""
    blocks: bool = False
    """Whether the function is sync."""
    handler: str = "async"
    """The kind of handler: `async`, `sync` or `batch`."""
    records: bool = False
    """Whether a transactional step of functions records each execution in a database of their own."""
    upgrades: bool = False
    """Whether the servers are replaced by those of a new version of the code, with which later work starts."""
    polled: bool = False
    """Whether agents poll for the work, instead of the servers."""
    interface: str = "Python"
    """The interface through which clients and operators call: `Python`, `HTTP` or `MCP`."""
    conflict: str | None = None
    """Treatment of a second submission with the unique key of each item."""
    at_once: int | None = None
    """The limit of concurrent executions."""
    returns: dict[str, Any] = field(default_factory=dict)
    """More fields of the result."""
    scopes: tuple[str | None, ...] = (None,)
    """The scopes of the external jobs; each server serves one of them."""
    namespaces: tuple[str, ...] = ("default",)
    old_server: bool = False
    """Whether a server of an older release, without the handlers, works beside the others."""
    same_pid: bool = False
    """Whether each process is pid 1 of a container of its own, and all share a host name."""
    acts: list[Act] = field(default_factory=list)
    end: str = "completed"
    error: str | None = None
    """The code of the error in which it ends."""
    denies: bool = False
    """Whether people deny what they are asked."""
    reasons: set[str] = field(default_factory=set)
    """Codes of which `why` must have named one while work was waiting."""
    ends_within: float = 45.0
    """Seconds after the start, also for what is repaired after 20."""
    fault: Fault = Fault.KILLED

    @property
    def fences(self) -> bool:
        """Whether an execution may go on for a moment after its claim was lost."""
        return self.fault in REPEATING or self.end == "canceled" or self.reopens > 0 or self.conflict == "replace"
