"""The recording in the README comes from real processes, one of which is killed."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from docs import recording
from treadle import Engine


async def test_the_recorded_run_is_killed_and_continues_after_its_last_step(tmp_path: Path) -> None:
    lines = await recording.record(tmp_path)
    texts = [line.text for line in lines]
    assert [text for text in texts if text.startswith(("$", "charging", "shipping", "shipped", "Killed"))] == [
        "$ python orders.py",
        "charging order 7",
        "shipping for receipt 7",
        "Killed",
        "$ python orders.py",
        "shipping for receipt 7",
        "shipped, receipt 7",
    ]
    async with Engine(f"sqlite:///{tmp_path / 'orders.db'}") as engine:
        (run,) = (await engine.runs.list()).runs
        assert run.state == "completed"
    shown = [
        "".join(node.itertext()) for node in ElementTree.fromstring(recording.picture(lines)).iter() if node.tag.endswith("}text")
    ]
    assert shown == [recording.shorten(text) for text in texts]


def test_the_committed_picture_shows_the_session_without_scripts_or_other_hosts() -> None:
    text = recording.PICTURE.read_text("utf-8")
    shown = re.findall(r'<text class="(\w+)"[^>]*>(.*?)</text>', text)
    assert [line for kind, line in shown if kind == "command"] == [f"$ {recording.COMMAND}"] * 2
    assert any(kind == "kill" and "kill -9" in line for kind, line in shown)
    assert shown[-1] == ("output", "shipped, receipt 7")
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"<script|href=|url\(", text)
