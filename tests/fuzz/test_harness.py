"""Would it find a bug? Planted ones are found, told apart, bounded in time and made small; and the corpus is where they go."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fuzz import harness
from tests.fuzz.__main__ import told
from tests.fuzz.harness import Finds, TookTooLong, bounded, keep, play, smallest

pytestmark = pytest.mark.xdist_group("fuzz")


def buggy(data: bytes) -> None:
    """Fails in two ways."""
    if b"<" in data and b">" in data[data.index(b"<") :]:
        raise KeyError(data)
    assert b"!" not in data, "no exclamations"


def endless(data: bytes) -> None:
    """Never returns for some, and would hide it if it could."""
    while data == b"for ever":
        try:
            sum(range(10_000))
        except Exception:
            continue


def test_only_a_failing_input_is_a_finding_and_it_names_its_location() -> None:
    assert play("buggy", buggy, b"well") is None
    found, other = play("buggy", buggy, b"a <b> c"), play("buggy", buggy, b"oh!")
    assert found is not None
    assert other is not None
    assert isinstance(found.error, KeyError)
    assert "test-harness-buggy" in found.sign
    assert found.sign != other.sign
    assert "oh!" in other.text()
    assert "no exclamations" in other.text()


def test_a_finding_is_minimized_and_keeps_its_signature() -> None:
    found = play("buggy", buggy, b"much before it <and in between> and after it !" * 50)
    assert found is not None
    small = smallest(found, buggy)
    assert (small.data, small.sign) == (b"<>", found.sign)


def test_an_endless_target_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "INPUT_TIMEOUT", 0.05)
    found = play("endless", endless, b"for ever")
    assert found is not None
    assert isinstance(found.error, TookTooLong)
    with bounded(0.05):
        pass  # what is done in time is not stopped later
    assert sum(range(2_000_000)) > 0


def test_the_first_input_of_each_signature_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finds = Finds("buggy", buggy, tmp_path / "finds")
    for data in (b"well", b"<1>", b"<2>", b"!"):
        finds.play(data)
    assert sorted(path.read_bytes() for path in (tmp_path / "finds").iterdir()) == [b"!", b"<1>"]
    monkeypatch.setattr(harness, "CORPUS", tmp_path)
    found = play("buggy", buggy, b"!")
    assert found is not None
    assert keep(found).parent == tmp_path / "buggy"
    assert [path.read_bytes() for path in harness.corpus_of("buggy")] == [b"!"]


def test_fuzzer_output_is_reduced_to_one_line() -> None:
    said = "#2\tINITED cov: 5 ft: 6 corp: 1/1b\n#90\tDONE   cov: 31 ft: 93 corp: 12/3b\nstat::average_exec_per_sec: 45\n"
    assert told(said) == "90 inputs by coverage, 45/s; places reached 5 -> 31, 12 inputs worth keeping"
    assert told("drawn: 7\n") == "7 inputs drawn"
    assert "Traceback" in told("Traceback\nValueError")
