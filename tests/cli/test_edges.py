"""Every text option of every command with values that no program of ours would send: an error with a code, never a bug."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from treadle.interfaces.cli.app import COMMANDS
from treadle.interfaces.cli.command import leaves, make
from treadle.interfaces.cli.execution import execute
from treadle.interfaces.cli.messages import BUG

ENDLESS = {"demo", "dev", "up", "serve", "mcp", "lsp", "worker", "runner", "top", "completion"}
VALUES = {"long": "a" * 5_000, "hostile": "x\x1b[31m\ny\u202e", "undecodable": "a\udcff"}


def cases() -> Iterator[tuple[str, list[str]]]:
    """Yield each command with one value for all of its arguments, and for each option in turn."""
    for name, leaf in leaves(COMMANDS):
        if name.split()[0] in ENDLESS:
            continue
        params = make(leaf).params
        count = sum(isinstance(each, click.Argument) and each.required for each in params)
        options = [each for each in params if isinstance(each, click.Option) and not each.is_flag and each.name != "wait_for"]
        texts = [each for each in options if not isinstance(each.type, click.IntRange | click.FloatRange | click.Choice)]
        for label, value in VALUES.items():
            yield f"{name}-{label}", [*name.split(), *[value] * count, *_options(options, value)]
            for chosen in texts if label == "long" else ():
                if not (chosen.name or "").startswith("common_"):
                    rest = _options([each for each in options if each is not chosen], "a")
                    yield f"{name}{chosen.opts[0]}-{label}", [*name.split(), *["a"] * count, *rest, chosen.opts[0], value]


def _options(options: list[click.Option], value: str) -> list[str]:
    return [text for each in options if each.required for text in (each.opts[0], value)]


def test_no_value_of_any_option_is_reported_as_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREADLE_STORE", "memory://")
    wrong = []
    for name, arguments in cases():
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = execute(arguments)
        text = out.getvalue()
        if code == BUG or not text.replace("\n", "").isprintable():
            wrong.append((name, code, text[-200:]))
    assert wrong == []


def test_new_store_files_belong_to_their_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_STORE", f"sqlite:///{tmp_path}/x.db")
    with contextlib.redirect_stdout(io.StringIO()):
        assert execute(["enqueue", "a"]) == 0
        assert execute(["store", "backup", f"{tmp_path}/copy.db"]) == 0
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir() if path.is_file()}.items() >= {
        ("x.db", 0o600),
        ("copy.db", 0o600),
    }
    assert not [path for path in tmp_path.iterdir() if path.stat().st_mode & 0o077 and path.is_file()]
