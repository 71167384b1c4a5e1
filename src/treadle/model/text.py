"""Text from outside, made safe for logs, terminals and JSON output: it can neither start a line nor control a terminal."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any

_HARMLESS = "\u00a0\u202f\u200c\u200d"
"""Spaces and joiners of ordinary text, which Python does not count as printable."""
_ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def printable(text: str, keep: str = "") -> str:
    """Escape line breaks, terminal controls, bidirectional overrides and lone surrogates; characters in `keep` stay."""
    if text.isprintable():
        return text
    allowed = _HARMLESS + keep
    return "".join(c if c.isprintable() or c in allowed else c.encode("unicode_escape").decode() for c in text)


def suggestion(word: object, known: Iterable[str]) -> str:
    """Return `; did you mean X?` if a known name is similar."""
    from difflib import get_close_matches  # only for errors, and slow to load

    near = get_close_matches(str(word), list(known), 1, 0.6)
    return f"; did you mean {near[0]}?" if near else ""


def json_text(value: Any, **options: Any) -> str:
    """Encode as JSON; characters that a terminal could interpret are escaped."""
    text = json.dumps(value, ensure_ascii=False, **options)
    if text.replace("\n", "").isprintable():
        return text
    return json.dumps(value, ensure_ascii=True, **options).replace("\x7f", "\\u007f")


def traceback_text(error: _ExcInfo) -> str:
    """Format a traceback, indented so that a message with line breaks cannot look like the next log line."""
    lines = printable("".join(traceback.format_exception(*error)).rstrip("\n"), keep="\n").split("\n")
    return "\n".join(f"  {line}" for line in lines)


class _OneLine(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the message and the traceback, whichever handler then writes them."""
        record.msg, record.args = printable(record.getMessage()), None
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = traceback_text(record.exc_info)
        return True


_ONE_LINE = _OneLine()


def safe_logger(name: str) -> logging.Logger:
    """Return the logger with this name; its messages are escaped, also for the handlers of a program that embeds Treadle."""
    logger = logging.getLogger(name)
    logger.addFilter(_ONE_LINE)
    return logger
