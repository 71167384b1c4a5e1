"""Logging of the commands: to stderr, as text for people or as JSON lines for machines."""

from __future__ import annotations

import json
import logging
import sys

from treadle.model.clock import as_text


class JsonLines(logging.Formatter):
    """One JSON object per record: ts, level, logger, message, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        line = {
            "ts": as_text(round(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextLines(logging.Formatter):
    """`2026-01-31T12:00:00.000Z info treadle: message`."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, and its traceback below it."""
        text = f"{as_text(round(record.created * 1000))} {record.levelname.lower()} {record.name}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def set_up_logging(level: str, form: str) -> None:
    """Send what the process logs to stderr; replaces what was set up before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("treadle").setLevel(level)
