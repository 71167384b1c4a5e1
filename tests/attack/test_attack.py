"""A few seconds of `make attack`, so that it keeps working, and evidence that was falsified, so that its judge can fail."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.attack.__main__ import SECTIONS, attack, main
from tests.attack.arena import SIZES
from tests.attack.disk import fill, small_disk
from tests.attack.judge import Evidence, Execution, judge, read_ledger
from tests.attack.tally import Tally, as_markdown
from tests.sizes import left_out

pytestmark = pytest.mark.xdist_group("attack")


SMALL = [
    left_out(section) if section == "routes" else section  # tests/http/test_refusals.py: every route and caller
    for section in SECTIONS
    if section not in ("restarts", "disk")
]


@pytest.mark.parametrize("section", SMALL)
async def test_an_attack_breaks_no_promise(section: str) -> None:
    tally = await attack(section, "sqlite", SIZES["smoke"], seed=3)
    assert not tally.problems, as_markdown([tally])
    assert tally.counts


SOUND = Evidence(
    acks={"w1": {"t1"}, "w2": {"r2"}},
    ends={"t1": "completed", "r2": "completed"},
    executions={"w1": [Execution("t1", 1, 7), Execution("t1", 2, 8)], "w2.note": [Execution("t2", 1, 8)]},
    charges={"w1": ["d1", "d1"]},
    killed={7},
)


def test_sound_evidence_is_accepted() -> None:
    assert judge(SOUND) == []


@pytest.mark.parametrize(
    ("falsify", "found"),
    [
        (lambda it: it.ends.pop("t1"), "w1 was acknowledged as t1, and is lost"),
        (lambda it: it.ends.update(r2="failed"), "is failed"),
        (lambda it: it.ends.update(r2="pending"), "is pending"),
        (lambda it: it.acks["w1"].add("t9"), "several ids"),
        (lambda it: it.executions.pop("w2.note"), "never executed"),
        (lambda it: it.executions["w2.note"].append(Execution("t2", 2, 8)), "process 8 was not killed"),
        (lambda it: it.executions["w1"].append(Execution("t1", 2, 8)), "attempt 2 of w1 was executed 2 times"),
        (lambda it: it.executions["w1"].append(Execution("t9", 3, 8)), "several tasks"),
        (lambda it: it.killed.clear(), "process 7 was not killed"),
        (lambda it: it.charges["w1"].append("d2"), "several dedupe keys"),
        (lambda it: it.charges["w1"].append("d1"), "more often than its handler"),
    ],
)
def test_falsified_evidence_is_detected(falsify: Callable[[Evidence], object], found: str) -> None:
    evidence = copy.deepcopy(SOUND)
    falsify(evidence)
    assert any(found in problem for problem in judge(evidence))


def test_an_unfinished_line_of_the_ledger_does_not_count(tmp_path: Path) -> None:
    path, found = tmp_path / "ledger", Evidence()
    path.write_text('["ran", "w1", "t1", 1, 7]\n["charged", "w1", "d1", 1, 7]\n["ran", "w2", "t')
    read_ledger(path, found)
    assert (found.executions, found.charges) == ({"w1": [Execution("t1", 1, 7)]}, {"w1": ["d1"]})


def test_a_small_disk_becomes_full() -> None:
    with small_disk("1m") as place:
        if place is None:
            pytest.skip("mounting a file system needs root")
        assert fill(place / "ballast") > 900_000
        with pytest.raises(OSError, match="No space"):
            (place / "more").write_bytes(b"x" * 4096)


def test_a_problem_is_reported_and_fails_the_attack(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(section: str, *_: object) -> Tally:
        return Tally(section, "sqlite", problems=["w1 was lost"])

    monkeypatch.setattr("tests.attack.__main__.attack", broken)
    assert main(["--only", "kills", "--store", "sqlite"]) == 1
    assert "kills on sqlite: w1 was lost" in capsys.readouterr().out


@pytest.mark.parametrize("given", [["--only", "nothing"], ["--size", "huge"]])
def test_wrong_options_are_refused(given: list[str]) -> None:
    with pytest.raises(SystemExit):
        main(given)
