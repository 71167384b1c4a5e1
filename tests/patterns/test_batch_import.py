"""Batch import: good rows are imported, bad ones are listed with reasons, and repaired ones can be imported."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.patterns.programs import load

from treadle.testing import Environment


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    loaded = load("batch_import")
    loaded.CHUNK = 3
    Path("in.csv").write_text("sku,price\n" + "".join(f"s{n},{'x' if n in (2, 5) else n}\n" for n in range(8)) + ",1\n")
    return loaded


def products() -> dict[str, int]:
    with closing(sqlite3.connect("products.db")) as database:
        return dict(database.execute("select sku, cents from products"))


def rows_of(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="") as file:
        return list(csv.DictReader(file))


def repair(path: str) -> None:
    Path(path).write_text(Path(path).read_text().replace("s2,x", "s2,2").replace("\n,1", "\ns9,1"))


async def test_bad_rows_are_listed_with_reasons_and_can_be_repaired_and_imported(program: Any):
    async with Environment(program.engine) as env:
        run = await program.engine.start(program.import_file, {"path": "in.csv"})
        assert await env.result(run) == {"imported": 6, "rejected": 3, "file": "in.rejected.csv"}
        assert products() == {f"s{n}": 100 * n for n in range(8) if n not in (2, 5)}
        rejected = rows_of("in.rejected.csv")
        assert [row["sku"] for row in rejected] == ["s2", "s5", ""]
        assert rejected[0]["reason"] == "could not convert string to float: 'x'"
        assert rejected[2]["reason"] == "the sku is missing"
        repair("in.rejected.csv")
        run = await program.engine.start(program.import_file, {"path": "in.rejected.csv"})
        assert await env.result(run) == {"imported": 2, "rejected": 1, "file": "in.rejected.rejected.csv"}
    assert products() == {f"s{n}": 100 * n for n in range(8) if n != 5} | {"s9": 100}


async def test_a_repeated_chunk_imports_no_row_twice(program: Any):
    first = program.import_chunk({"path": "in.csv", "first": 0})
    assert program.import_chunk({"path": "in.csv", "first": 0}) == first
    assert (first["imported"], products()) == (2, {"s0": 0, "s1": 100})
