"""A directory into which somebody puts files, and what watchers of each process see of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.simulation.faults import Fault, FaultySimulation
from tests.simulation.submissions.submission import Submission

from treadle.kernel.watchers.decide import Content, Fetched, Scan, ScannedFile
from treadle.model.errors import ScanFailed
from treadle.model.watchers import Item, WatchSource
from treadle.testing.simulation import Process

HALF = "half of "
"""How the content of a file begins that is not written to its end."""


@dataclass(slots=True)
class File:
    """A file, and all that it ever was."""

    content: str | None = None
    mtime: int = 0
    ever: list[str] = field(default_factory=list)


class Files:
    """All directories of a history, by place and name."""

    def __init__(self, simulation: FaultySimulation) -> None:
        self.simulation = simulation
        self.places: dict[str, dict[str, File]] = {}
        self.written = True
        """Whether nobody writes any more."""

    def looks_of(self, process: Process) -> FileLooks:
        """The source reader for the watchers of that process."""
        return FileLooks(self, process)

    async def write(self, submissions: Sequence[Submission]) -> None:
        """Put all files of these submissions where they belong."""
        self.written = False
        await asyncio.gather(*(self._fill(submission) for submission in submissions))
        self.written = True

    async def _fill(self, submission: Submission) -> None:
        rng, place = self.simulation.rng, self.places.setdefault(f"/{submission.key}", {})
        for number in range(submission.options["files"]):
            await asyncio.sleep(rng.random() * rng.choice((0.1, 5)))
            name = f"{number}.csv"
            for version in range(rng.choice((1, 1, 2))):
                await self._put(place, name, f"{submission.key}/{number}/{version}")
                if rng.random() < 0.3:
                    await asyncio.sleep(6 * rng.random())
            if rng.random() < 0.2:
                place[name].content = None

    async def _put(self, place: dict[str, File], name: str, content: str) -> None:
        """First half of it, then all."""
        file = place.setdefault(name, File())
        for part in (HALF + content, content):
            file.content, file.mtime = part, int(self.simulation.loop.time() * 1e9)
            file.ever.append(part)
            await asyncio.sleep(0.5)


class FileLooks:
    """Implements `treadle.kernel.watchers.scan.SourceReader` for one process: looking takes a moment, and may fail."""

    def __init__(self, files: Files, process: Process) -> None:
        self._files = files
        self._process = process

    async def _pass(self) -> None:
        simulation = self._files.simulation
        await asyncio.sleep(simulation.rng.random() * 0.1)
        await self._process.pass_gate()
        if simulation.faults.happens(Fault.OUTSIDE):
            simulation.faults.counts[Fault.OUTSIDE] += 1
            raise ScanFailed("path_trouble", "The disk does not answer.")

    async def scan(self, source: WatchSource) -> Scan:
        """The files present now."""
        await self._pass()
        place = self._files.places.get(source.place, {})
        files = ((name, file.content, file.mtime) for name, file in sorted(place.items()))
        return Scan([ScannedFile(name, len(content), mtime, name) for name, content, mtime in files if content is not None])

    async def read(self, source: WatchSource, names: Sequence[str]) -> dict[str, Content]:
        """The content stands for its hash."""
        await self._pass()
        place = self._files.places.get(source.place, {})
        return {name: _content(place.get(name)) for name in names}

    async def fetch(self, source: WatchSource, item: Item | None) -> Fetched:
        """There are no addresses here."""
        raise ScanFailed("http_trouble", "There is no network.")


def _content(file: File | None) -> Content:
    if file is None or file.content is None:
        return Content(gone=True)
    return Content(len(file.content), file.mtime, file.content)
