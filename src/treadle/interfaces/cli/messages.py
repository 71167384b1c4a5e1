"""Messages on stderr (errors, warnings and notes as one line or one JSON object, progress), and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from treadle.model import errors
from treadle.model.errors import (
    Forbidden,
    IllegalTransition,
    InvalidFlow,
    InvalidInput,
    NotFound,
    Refused,
    StoreError,
    TooManyAttempts,
    TreadleError,
    Unauthorized,
)
from treadle.model.text import printable, safe_logger

if TYPE_CHECKING:
    from treadle.interfaces.cli.session import CommandSession
    from treadle.lang.diagnostics import Diagnostic


OK = 0
FAILED = 1
BAD_INPUT = 2
NOT_FOUND = 3
STORE_TROUBLE = 4
REFUSED = 5
TIME_RAN_OUT = 6
BUG = 70
INTERRUPTED = 130

EXIT_CODES = {
    OK: "done",
    FAILED: "the task, run, check or demo failed",
    BAD_INPUT: "bad usage or input; nothing was changed",
    NOT_FOUND: "not found",
    STORE_TROUBLE: "the store or the server cannot be used: unreachable, read-only, locked, full, damaged, wrong schema",
    REFUSED: "refused: a rule, the state of the entity or the token forbids it",
    TIME_RAN_OUT: "the wait timed out; the work continues",
    BUG: "a bug in Treadle",
    INTERRUPTED: "interrupted",
}


class WaitTimedOut(TreadleError, code="wait_timed_out"):
    """`--wait-for` passed before the task or run ended."""


_EXITS_OF_CLASSES: dict[tuple[type[TreadleError], ...], int] = {
    (InvalidInput,): BAD_INPUT,
    (NotFound,): NOT_FOUND,
    (StoreError,): STORE_TROUBLE,
    (IllegalTransition, Refused, Unauthorized, Forbidden, TooManyAttempts): REFUSED,
    (WaitTimedOut,): TIME_RAN_OUT,
}


def exit_code_of(error: TreadleError) -> int:
    """Return the exit code for an error."""
    return next((code for kinds, code in _EXITS_OF_CLASSES.items() if isinstance(error, kinds)), FAILED)


def exit_code_of_code(code: str) -> int:
    """Return the exit code for an error code."""
    kind = errors.classes_by_code(errors).get(code)
    return FAILED if kind is None else exit_code_of(kind.__new__(kind))


def print_error(code: str, message: str, *, as_json: bool) -> None:
    """Report an error on stderr."""
    if as_json:
        sys.stderr.write(json.dumps({"error": {"code": code, "message": message}}) + "\n")
    elif _lines_are_json():
        safe_logger("treadle").error(message, extra={"treadle_event": code})
    else:
        line = _one_line(message)
        sys.stderr.write(f"treadle: {code}: {line}\n")
    sys.stderr.flush()


def print_flow_error(error: InvalidFlow, *, as_json: bool) -> None:
    """Report AFL errors on stderr: each diagnostic with its line, then a summary line."""
    from treadle.lang.diagnostics import Diagnostic

    reported = getattr(error, "problem", {}).get("diagnostics") or ()  # reported by a server
    diagnostics = [diagnostic for diagnostic in getattr(error, "diagnostics", ()) if isinstance(diagnostic, Diagnostic)]
    diagnostics += [Diagnostic.from_json(row) for row in reported]
    first = str(error).partition("\n")[0]
    if as_json:
        body = {"code": error.code, "message": first, "diagnostics": [diagnostic.as_json() for diagnostic in diagnostics]}
        sys.stderr.write(json.dumps({"error": body}) + "\n")
        sys.stderr.flush()
        return
    print_diagnostics(None, diagnostics)
    print_error(error.code, first, as_json=False)


def print_diagnostics(session: CommandSession | None, diagnostics: Iterable[Diagnostic]) -> None:
    """Print diagnostics about AFL for people on stderr, with their lines."""
    if session is None or not session.json:
        for diagnostic in diagnostics:
            sys.stderr.write(printable(diagnostic.render(), keep="\n\t") + "\n\n")
        sys.stderr.flush()


def print_warning(message: str) -> None:
    """Print a warning for people on stderr."""
    sys.stderr.write(f"treadle: warning: {_one_line(message)}\n")
    sys.stderr.flush()


def print_note(message: str) -> None:
    """Print a note for people on stderr, beside the output."""
    if _lines_are_json():
        safe_logger("treadle").warning(message)
        return
    sys.stderr.write(f"{_one_line(message)}\n")
    sys.stderr.flush()


def _one_line(message: str) -> str:
    return printable(" ".join(message.split()))


def _lines_are_json() -> bool:
    """Whether log lines are JSON; a command that failed before setting up logging has none."""
    log_format = sys.modules.get("treadle.kernel.telemetry.log_format")
    return log_format is not None and bool(log_format.lines_are_json())


def print_progress(session: CommandSession, text: str) -> None:
    """Show progress."""
    if _watched(session):
        sys.stderr.write(f"\r{text}")
        sys.stderr.flush()


def end_progress(session: CommandSession) -> None:
    """Remove the progress line; the result is printed elsewhere."""
    if _watched(session):
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def _watched(session: CommandSession) -> bool:
    return sys.stderr.isatty() and not session.json
