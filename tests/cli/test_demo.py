"""The demo tells the truth, ends by itself, and leaves nothing behind."""

from __future__ import annotations

import re

from tests.commands import Treadle


def test_the_demo_runs_to_its_end(treadle: Treadle):
    temporary = treadle.folder / "tmp"
    temporary.mkdir()
    said = treadle("demo", TMPDIR=str(temporary), TREADLE_STORE="postgresql://127.0.0.1:1/never-used")
    assert said.code == 0, said
    assert said.out.count("✔") == 8
    for word in (
        "SIGKILL",
        "expire, succeed",
        "the lamp is off",
        "bolt 4, 15 m",
        "sleeps for 1.5 s",
        "asks 'Deliver to the castle?'",
    ):
        assert word in said.out
    assert re.search(r"the dye .*retry, (expire, )?succeed", said.out)  # its second attempt may be on the worker that is killed
    assert list(temporary.iterdir()) == []
