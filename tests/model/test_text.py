"""Text from outside cannot start a line in a log, control a terminal or break JSON output."""

from __future__ import annotations

import inspect
import io
import json
import logging
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.kernel.telemetry import events
from treadle.kernel.telemetry.log_format import JsonLines, TextLines
from treadle.model.text import json_text, printable, safe_logger

HOSTILE = "x\n2026-01-01T00:00:00.000Z error treadle: forged\r\x1b[2J\x9b31m\x7f\u2028\u202e\x00\ud800 [bold]y"


def logged(formatter: logging.Formatter | None, write: Any) -> str:
    """Return everything that `write(logger)` makes a handler with this formatter print."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logger = safe_logger("treadle.tests.text")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        write(logger)
    finally:
        logger.removeHandler(handler)
    return out.getvalue()


def is_safe(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


@given(st.text(st.characters(codec=None)))
def test_printable_text_is_one_harmless_line_and_ordinary_text_stays(text: str) -> None:
    shown = printable(text)
    assert not set(shown) & {"\n", "\r", "\x1b", "\x9b", "\x7f", "\u2028", "\u202e"}
    shown.encode()  # fails for lone surrogates
    assert printable(shown) == shown


@settings(max_examples=40)
@given(
    st.lists(st.text(st.characters(codec=None)) | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2), max_size=3)
)
def test_json_output_is_safe_and_means_the_same(value: Any) -> None:
    text = json_text(value)
    assert is_safe(text)
    assert json.loads(text) == value


@pytest.mark.parametrize("formatter", [TextLines(), JsonLines(), None], ids=["text", "json", "the program's own"])
def test_a_message_and_a_traceback_cannot_forge_a_line(formatter: logging.Formatter | None) -> None:
    def write(logger: logging.Logger) -> None:
        logger.warning("a %s", HOSTILE)
        try:
            raise RuntimeError(HOSTILE)
        except RuntimeError:
            logger.exception("failed")

    text = logged(formatter, write)
    lines = text.splitlines()
    assert is_safe(text)
    assert not [line for line in lines if line.startswith("2026-01-01")]
    assert len([line for line in lines if not line.startswith("  ")]) == 2


KINDS = list(typing.get_args(events.TelemetryEvent))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_no_event_with_hostile_fields_writes_more_than_one_line(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    values: dict[str, Any] = {}
    for name, parameter in inspect.signature(kind).parameters.items():
        hint = str(parameter.annotation)
        if name == "error" and "bytes" in hint:
            values[name] = json.dumps({"code": "odd", "message": HOSTILE.replace("\ud800", "")}).encode()
        elif "tuple" in hint or "list" in hint or "Sequence" in hint:
            values[name] = (HOSTILE,)
        elif "int" in hint or "float" in hint:
            values[name] = 1
        else:
            values[name] = HOSTILE
    with caplog.at_level(logging.DEBUG, "treadle"):
        events.log_event(kind(**values))
    [record] = caplog.records
    assert is_safe(record.getMessage())
    assert "\n" not in record.getMessage()
