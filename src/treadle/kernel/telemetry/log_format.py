"""Log output on stderr: text for people, or one JSON object per line for machines."""

from __future__ import annotations

import logging
import re
import sys
import threading
from types import TracebackType
from typing import Any

import msgspec

from treadle.kernel.telemetry.events import TaskSettled, current_attempt
from treadle.model.clock import as_text
from treadle.model.text import json_text, printable, safe_logger, traceback_text
from treadle.model.values import decode

_log = safe_logger("treadle")
_BETWEEN_WORDS = re.compile(r"(?<!^)(?=[A-Z])")
_OF_ERRORS = ("code", "message", "type")
_LIFTED = ("task_id", "trace_id")


class JsonLines(logging.Formatter):
    """One JSON object per record: at, level, logger, event, message, and further fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line."""
        event = getattr(record, "treadle_event", None)
        line: dict[str, Any] = {
            "at": as_text(round(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": "log" if event is None else event_name(event),
            "message": record.getMessage(),
        }
        values = {} if event is None else event_fields(event)
        here = dict(zip(_LIFTED, current_attempt.get() or (), strict=False))
        for name in _LIFTED:
            if (value := values.pop(name, None) or here.get(name)) is not None:
                line[name] = value
        if values:
            line["fields"] = values
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["error"] = f"{type(error).__name__}: {error}"
            line["traceback"] = self.formatException(record.exc_info)
        return json_text(line, default=str)


def event_name(event: object) -> str:
    """The stable name of an event: `task_settled`."""
    return event if isinstance(event, str) else _BETWEEN_WORDS.sub("_", type(event).__name__).lower()


def event_fields(event: object) -> dict[str, Any]:
    """The fields of an event; a JSON error is reduced to its code and message."""
    values = msgspec.structs.asdict(event) if isinstance(event, msgspec.Struct) else {}
    if isinstance(event, TaskSettled) and values.get("error"):
        problem = decode(values["error"])
        values["error"] = {name: problem[name] for name in _OF_ERRORS if name in problem}
    return {name: value for name, value in values.items() if value is not None}


class TextLines(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info treadle: message`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as one line, with its traceback below."""
        message = printable(record.getMessage())
        text = f"{as_text(round(record.created * 1000))} {record.levelname.lower()} {record.name}: {message}"
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}\n{traceback_text(record.exc_info)}"
        return text


def set_up_logging(level: str, form: str) -> None:
    """Log to stderr; replaces the previous setup.

    In JSON, this includes Python's own warnings and uncaught errors.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("treadle").setLevel(level)
    logging.captureWarnings(form == "json")
    if form == "json":
        sys.excepthook = _uncaught
        threading.excepthook = _uncaught_in_thread
        sys.unraisablehook = _unraisable


def lines_are_json() -> bool:
    """Whether this process logs JSON."""
    return any(isinstance(handler.formatter, JsonLines) for handler in logging.getLogger().handlers)


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        return
    _log.critical("uncaught: %s", error, exc_info=(kind, error, trace))


def _uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    if args.exc_value is not None:
        name = args.thread.name if args.thread is not None else "a thread"
        _log.critical("uncaught in %s: %s", name, args.exc_value, exc_info=(args.exc_type, args.exc_value, args.exc_traceback))


def _unraisable(args: sys.UnraisableHookArgs) -> None:
    values = args.err_msg or "Exception ignored in"
    error = args.exc_value
    _log.error("%s: %r", values, args.object, exc_info=None if error is None else (args.exc_type, error, args.exc_traceback))
