"""Handlers that held the interpreter lock of their worker: nothing else in that process could run meanwhile.

The worker stores the last one with its row in `servers`, from where status, reasons and the handler's page take it.
"""

from __future__ import annotations

from treadle.model.errors import UnreadableValue
from treadle.model.stored import Stored, read
from treadle.model.tasks import Server

CODE = "interpreter_held"
SHOWN_FOR = 3_600_000
"""Milliseconds for which a hold is shown."""


class InterpreterHold(Stored, frozen=True, kw_only=True):
    """A hold that the lease keeper noticed."""

    code: str = CODE
    handler: str | None
    """None: it is not known."""
    seconds: float
    at: int
    """When it ended."""
    message: str


def hold_text(handler: str | None, seconds: float) -> str:
    """Return the line for people, with the fix."""
    who = "unknown code" if handler is None else f"handler {handler}"
    fix = "" if handler is None else '; run it in a process of its own: `isolation="process"`'
    return f"{who} held the Python interpreter for {seconds:.0f} s, so that nothing else in its worker ran{fix}"


def find_hold(server: Server | None, now: int) -> InterpreterHold | None:
    """Return the last hold in that server, unless it was long ago."""
    if server is None or server.error is None or CODE not in server.error:
        return None
    try:
        found = read(InterpreterHold, server.error)
    except UnreadableValue:
        return None
    return found if found.code == CODE and now - found.at <= SHOWN_FOR else None
