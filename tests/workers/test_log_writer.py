"""Log lines of handlers reach the store, even if late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.workers.harness import Events

from treadle.kernel.telemetry.events import LoopError, StoreBack, StoreTrouble
from treadle.model.errors import StoreUnavailable
from treadle.model.tasks import LogLine
from treadle.workers.log_writer import LogWriter


class Paper:
    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.log = self
        self.trouble: Exception | None = None

    async def append_lines(self, lines: Sequence[LogLine]) -> None:
        if self.trouble:
            raise self.trouble
        self.batches.append([line.message for line in lines])


def line(message: str) -> LogLine:
    return LogLine(task_id="t", at=0, level="info", message=message)


async def test_lines_go_out_together_and_in_order() -> None:
    paper, events = Paper(), Events()
    writer = LogWriter(paper, events)  # type: ignore[arg-type]
    for number in range(1200):
        writer.add(line(str(number)))
    await writer.flush()
    assert [len(batch) for batch in paper.batches] == [500, 500, 200]
    assert [text for batch in paper.batches for text in batch] == [str(number) for number in range(1200)]


async def test_lines_are_kept_during_a_store_outage_and_it_is_reported_once() -> None:
    paper, events = Paper(), Events()
    writer = LogWriter(paper, events)  # type: ignore[arg-type]
    paper.trouble = StoreUnavailable("away")
    writer.add(line("a"))
    await writer.flush()
    writer.add(line("b"))
    await writer.flush()
    paper.trouble = None
    await writer.flush()
    assert paper.batches == [["a", "b"]]
    assert [type(event) for event in events] == [StoreTrouble, StoreBack]


async def test_lines_that_no_store_takes_do_not_stop_the_others() -> None:
    paper, events = Paper(), Events()
    writer = LogWriter(paper, events)  # type: ignore[arg-type]
    paper.trouble = ValueError("what is this")
    writer.add(line("a"))
    await writer.flush()
    paper.trouble = None
    writer.add(line("b"))
    await writer.flush()
    assert paper.batches == [["b"]]
    assert [type(event) for event in events] == [LoopError]


async def test_lines_that_are_being_written_when_the_worker_stops_are_stored_once() -> None:
    class Slow(Paper):
        def __init__(self) -> None:
            super().__init__()
            self.begun, self.go_on = asyncio.Event(), asyncio.Event()

        async def append_lines(self, lines: Sequence[LogLine]) -> None:
            self.begun.set()
            await self.go_on.wait()
            await super().append_lines(lines)

    paper = Slow()
    writer = LogWriter(paper, Events())  # type: ignore[arg-type]
    writer.add(line("a"))
    await paper.begun.wait()
    writer.add(line("b"))
    last = asyncio.ensure_future(writer.flush())
    await asyncio.sleep(0)
    paper.go_on.set()
    await last
    assert [text for batch in paper.batches for text in batch] == ["a", "b"]
