"""Each lesson of the tutorial, performed as its page says: the code of the page, a real kill -9, and the work that goes on.

Pauses that let a reader type are replaced: endless before the kill, none after it.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.commands import Lines, Running, Treadle
from tests.fork_server import ForkedProcess, start

ROOT = Path(__file__).parents[2]
SNIPPETS = ROOT / "docs" / "snippets" / "tutorial"
LESSONS = ROOT / "docs" / "tutorial"
HANGS = "asyncio.sleep(3600)"
_SLEEP = re.compile(r"asyncio\.sleep\(\d+\)")


def copy(treadle: Treadle, name: str, *pauses: str) -> Path:
    """Save the page's file in the reader's folder, with these pauses in its order instead of its own."""
    path = treadle.folder / name
    code = (SNIPPETS / name).read_text("utf-8")
    assert len(_SLEEP.findall(code)) == len(pauses)
    left = iter(pauses)
    path.write_text(_SLEEP.sub(lambda _: next(left), code), "utf-8")
    shutil.rmtree(path.parent / "__pycache__", ignore_errors=True)  # Python cannot tell files of one second and size apart
    return path


def kill(running: Running) -> None:
    """`kill -9` the process and wait until it is gone."""
    running.process.kill()
    assert running.process.wait() == -9


def worker(name: str, *options: str) -> tuple[str, ...]:
    return ("worker", "--handlers", name, *(options or ("--name", "w1")))


def ended(treadle: Treadle, run: str, code: int = 0) -> Any:
    """The result of the run, or the error that it printed, once it has ended."""
    watched = treadle("runs", "watch", run)
    assert watched.code == code, watched
    return watched.value if code == 0 else watched.err


@contextmanager
def program(folder: Path) -> Iterator[tuple[ForkedProcess, Lines]]:
    """`python first.py` in the folder."""
    process = start("first", [], cwd=folder, environment={})
    out, err = Lines(process.stdout), Lines(process.stderr)
    try:
        yield process, out
    finally:
        process.kill()
        process.wait()
        out.close()
        err.close()


def test_two_minutes_a_program_continues_after_its_last_step(treadle: Treadle):
    copy(treadle, "first.py", "asyncio.sleep(0)", HANGS)
    with program(treadle.folder) as (process, out):
        assert out.wait_for("brewing")
        process.kill()
        assert process.wait() == -9
    copy(treadle, "first.py", HANGS, "asyncio.sleep(0)")
    for printed in ("brewing tea with 2 cups of hot water\ntea from 2 cups of hot water\n", "tea from 2 cups of hot water\n"):
        with program(treadle.folder) as (process, out):
            assert process.wait() == 0
            assert out.rest(0) == printed


def test_lesson_1_a_task_survives_its_worker(treadle: Treadle):
    copy(treadle, "jobs.py", HANGS)
    task = treadle.json("enqueue", "report", "-p", "month=May")["id"]
    assert "no live worker serves report" in treadle("why", task).out
    with treadle.started(*worker("jobs.py")) as first:
        assert first.out.wait_for("attempt 1: writing the report for May")
        kill(first)
    copy(treadle, "jobs.py", "asyncio.sleep(0)")
    with treadle.started(*worker("jobs.py")) as second:
        assert second.out.wait_for("attempt 2: writing the report for May")
        assert treadle.json("enqueue", "report", "-p", "month=June", "--wait")["result"] == {"report": "June: 42 orders"}
        second.stop()
    shown = treadle.json("tasks", "show", task)
    assert (shown["state"], shown["attempt"], shown["result"]) == ("completed", 2, {"report": "May: 42 orders"})


def test_lesson_2_a_function_continues_after_its_last_recorded_step(treadle: Treadle):
    copy(treadle, "orders.py", HANGS)
    with treadle.started(*worker("orders.py")) as first:
        run = treadle.json("functions", "start", "order", "-p", "item=teapot")["id"]
        assert first.out.wait_for("packing teapot")
        kill(first)
    copy(treadle, "orders.py", "asyncio.sleep(0)")
    with treadle.started(*worker("orders.py")):
        assert ended(treadle, run) == {"receipt": "receipt 1", "parcel": "parcel 1"}
    lines = (treadle.folder / "steps.log").read_text().splitlines()
    assert lines == ["charging the card for teapot", "packing teapot", "packing teapot", "shipping box 1"]


def test_lesson_3_a_workflow_is_repaired_and_keeps_its_finished_steps(treadle: Treadle):
    shutil.copy(SNIPPETS / "trip.afl", treadle.folder)
    handlers = copy(treadle, "trip.py", HANGS)
    run = treadle.json("submit", "trip.afl", "-p", "city=Oslo")["id"]
    with treadle.started(*worker("trip.py")) as first:
        assert first.out.wait_for("weather of Oslo")
        assert first.err.wait_for("KeyError: 'Oslo'")
        kill(first)
    copy(treadle, "trip.py", "asyncio.sleep(0)")
    with treadle.started(*worker("trip.py")) as second:
        assert "Trip.hotel: handler failed: KeyError: 'Oslo'" in ended(treadle, run, 1)
        second.stop()
    page = (LESSONS / "3-workflow.md").read_text("utf-8")
    repaired = 'PRICES = {"Rome": 120, "Oslo": 90}'
    assert repaired in page
    handlers.write_text(handlers.read_text("utf-8").replace('PRICES = {"Rome": 120}', repaired), "utf-8")
    repeated = treadle("runs", "retry", run, "--handlers", "trip.py")
    assert (repeated.code, "weather of" in repeated.out) == (0, False)
    assert '"plan": "Oslo: a museum, 90 a night"' in repeated.out


def test_lesson_4_waiting_needs_no_process(treadle: Treadle):
    path = treadle.folder / "purchase.py"
    path.write_text((SNIPPETS / "purchase.py").read_text("utf-8").replace("ctx.sleep(30)", "ctx.sleep(1)"), "utf-8")
    with treadle.started(*worker("purchase.py")) as first:
        run = treadle.json("functions", "start", "purchase", "-p", "item=lamp", "-p", "price=40")["id"]
        while not (asked := treadle.json("approvals", "list")["approvals"]):
            assert first.process.poll() is None
        kill(first)
    assert "treadle approvals approve" in treadle("why", run).out
    assert treadle("approvals", "approve", asked[0]["id"], "--reason", "we need light").code == 0
    with treadle.started(*worker("purchase.py")) as second:
        while not (steps := treadle.json("runs", "steps", run)["steps"]) or steps[-1]["facet"] not in ("sleep", "wait"):
            assert second.process.poll() is None
        kill(second)
    assert treadle("signal", run, "delivered", "--payload", '{"by": "Grace"}').code == 0
    with treadle.started(*worker("purchase.py")):
        result = ended(treadle, run)
    assert (result["item"], result["received_by"]) == ("lamp", "Grace")


def test_lesson_5_another_worker_takes_an_agent_over(treadle: Treadle):
    copy(treadle, "agent.py", "asyncio.sleep(3600 if len(messages) == 2 else 0)")
    options = ("worker", "--handlers", "agent.py")
    with treadle.started(*options) as first:
        run = treadle.json("functions", "start", "support", "-p", "question=Where is my teapot?")["id"]
        assert first.out.wait_for("model request 2")
        copy(treadle, "agent.py", "asyncio.sleep(0)")
        with treadle.started(*options) as second:
            kill(first)
            assert second.out.wait_for("model request 2")
            while not (asked := treadle.json("approvals", "list")["approvals"]):
                assert second.process.poll() is None
            kill(second)
    assert treadle("approvals", "approve", asked[0]["id"], "--edit", '{"amount": 35}').code == 0
    with treadle.started(*options):
        assert ended(treadle, run) == "Your teapot is out of stock. You get your money back."
    lines = [line.partition(",")[0] for line in (treadle.folder / "agent.log").read_text().splitlines()]
    assert lines == [
        "model request 1",
        "find order 7",
        "model request 2",
        "model request 2",  # it was in progress
        "refund 35 for order 7",
        "model request 3",
    ]


def test_the_code_of_every_lesson_is_performed_here():
    pages = [page.read_text("utf-8") for page in sorted(LESSONS.glob("*.md")) if page.stem != "tour"]  # no lesson: pieces to read
    shown = {name for page in pages for name in re.findall(r"<!-- snippet: docs/snippets/tutorial/(\S+) -->", page)}
    assert shown == {path.name for path in SNIPPETS.iterdir() if path.is_file()}
    assert sum(page.count("```python") for page in pages) == sum(name.endswith(".py") for name in shown)
    here = Path(__file__).read_text("utf-8")
    assert [name for name in shown if f'"{name}"' not in here] == []
    assert all("kill -9" in page for page in pages)
