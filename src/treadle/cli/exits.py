"""How a command ends: exit codes, and errors as one line (or one JSON object) on stderr."""

from __future__ import annotations

import json
import logging
import sys

from treadle.model import errors
from treadle.model.errors import (
    Forbidden,
    IllegalMove,
    InvalidFlow,
    InvalidInput,
    NotFound,
    Refused,
    StoreError,
    TooManyAttempts,
    TreadleError,
    Unauthorized,
)

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
    FAILED: "what was asked about failed: a task, a run, a check, the demo",
    BAD_INPUT: "bad usage or input; nothing was changed",
    NOT_FOUND: "no such thing",
    STORE_TROUBLE: "the store or the server cannot be used: unreachable, read-only, locked, full, wrong schema",
    REFUSED: "a rule, the state of the thing or the token forbids it",
    TIME_RAN_OUT: "time ran out while waiting; the work goes on",
    BUG: "a bug in Treadle",
    INTERRUPTED: "interrupted",
}


class WaitTimedOut(TreadleError):
    """`--wait-for` passed before the task or run ended."""

    code = "wait_timed_out"


def exit_code_of(error: TreadleError) -> int:
    """The exit code for an error."""
    match error:
        case InvalidInput():
            return BAD_INPUT
        case NotFound():
            return NOT_FOUND
        case StoreError():
            return STORE_TROUBLE
        case IllegalMove() | Refused() | Unauthorized() | Forbidden() | TooManyAttempts():
            return REFUSED
        case WaitTimedOut():
            return TIME_RAN_OUT
        case _:
            return FAILED


def exit_code_of_code(code: str) -> int:
    """The exit code for an error of which only the code is known."""
    known = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, TreadleError)]
    return next((exit_code_of(kind.__new__(kind)) for kind in known if kind.code == code), FAILED)


def tell_error(code: str, message: str, *, as_json: bool) -> None:
    """Say on stderr what went wrong."""
    if as_json:
        sys.stderr.write(json.dumps({"error": {"code": code, "message": message}}) + "\n")
    elif _lines_are_json():
        logging.getLogger("treadle").error(message, extra={"treadle_event": code})
    else:
        line = " ".join(printable(message).split())
        sys.stderr.write(f"treadle: {code}: {line}\n")
    sys.stderr.flush()


def tell_flow_error(error: InvalidFlow, *, as_json: bool) -> None:
    """Say on stderr what is wrong with AFL sources: each diagnostic with its line, and one line to sum up."""
    from treadle.lang.diagnostics import Diagnostic

    told = getattr(error, "problem", {}).get("diagnostics") or ()  # by a server
    found = [each for each in getattr(error, "diagnostics", ()) if isinstance(each, Diagnostic)]
    found += [Diagnostic(**each) for each in told]
    first = str(error).partition("\n")[0]
    if as_json:
        told = {"code": error.code, "message": first, "diagnostics": [each.as_json() for each in found]}
        sys.stderr.write(json.dumps({"error": told}) + "\n")
        sys.stderr.flush()
        return
    for each in found:
        sys.stderr.write(printable(each.render()) + "\n\n")
    tell_error(error.code, first, as_json=False)


def tell_warning(message: str) -> None:
    """Say on stderr what may turn out wrong, for people only."""
    sys.stderr.write(f"treadle: warning: {' '.join(printable(message).split())}\n")
    sys.stderr.flush()


def tell_note(message: str) -> None:
    """Say on stderr what people should know beside the output."""
    if _lines_are_json():
        logging.getLogger("treadle").warning(message)
        return
    sys.stderr.write(f"{' '.join(printable(message).split())}\n")
    sys.stderr.flush()


def _lines_are_json() -> bool:
    """Whether what is logged is; a command that was not even begun logs nothing."""
    told = sys.modules.get("treadle.kernel.telemetry.log_format")
    return told is not None and bool(told.lines_are_json())


def printable(text: str) -> str:
    """The text without characters that would do something to a terminal; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)
