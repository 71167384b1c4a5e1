"""One input played against one target, within a time limit; a failure is a `Find`.

The bound counts the time that this process computed, not the time that passed: no test depends on how busy the machine is.
"""

from __future__ import annotations

import hashlib
import re
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

Target = Callable[[bytes], None]

CORPUS = Path(__file__).parent / "corpus"
INPUT_TIMEOUT = 5.0
"""Seconds of computing that one input may take; all but a few take milliseconds."""
LARGEST = 64 * 1024
"""Maximum bytes of an input; generators truncate longer ones."""


class TookTooLong(BaseException):
    """The input took longer than `INPUT_TIMEOUT`. No `except Exception` in the target can hide it."""


@dataclass(frozen=True, slots=True)
class Find:
    """An input for which something does not hold."""

    target: str
    data: bytes
    error: BaseException

    @property
    def sign(self) -> str:
        """The signature of the failure: the error and its location, without the message."""
        frames = traceback.extract_tb(self.error.__traceback__)
        ours = [each for each in frames if "/treadle/" in each.filename] or frames[-1:]
        where = "-".join(f"{Path(each.filename).stem}-{each.name}" for each in ours[-1:])
        broken = frames[-1].line if isinstance(self.error, AssertionError) and frames else ""
        if isinstance(self.error, TookTooLong | RecursionError | MemoryError):
            where = "-".join(f"{Path(each.filename).stem}-{each.name}" for each in ours[:1])  # the innermost is any place
        digest = hashlib.sha256(f"{where}{broken}".encode()).hexdigest()[:6]
        return re.sub(r"[^a-z0-9]+", "-", f"{type(self.error).__name__}-{where}-{digest}".lower())

    def text(self) -> str:
        """For people: the end of the traceback, and the input."""
        lines = traceback.format_exception(self.error)
        shown = "".join(lines if len(lines) < 12 else [*lines[:2], "  ...\n", *lines[-8:]])
        return f"{self.target}: {self.sign}\n{shown}input ({len(self.data)} bytes): {self.data[:400]!r}"


def play(name: str, target: Target, data: bytes) -> Find | None:
    """The failure that the input causes, if any."""
    try:
        with bounded(INPUT_TIMEOUT):
            target(data)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        return Find(name, data, error)
    return None


@contextmanager
def bounded(seconds: float) -> Iterator[None]:
    """Raise `TookTooLong` in a computation that takes longer."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLong(f"it computes for more than {seconds:g} s")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def smallest(find: Find, target: Target, tries: int = 3000) -> Find:
    """The same trouble with as little input as can be found: pieces are cut out, then bytes made plain."""
    best = find
    left = tries

    def better(data: bytes) -> bool:
        nonlocal best, left
        left -= 1
        found = play(find.target, target, data)
        if found is None or found.sign != find.sign:
            return False
        best = found
        return True

    size = max(1, len(best.data) // 2)
    while left > 0:
        at = cut = 0
        while at < len(best.data) and left > 0:
            if better(best.data[:at] + best.data[at + size :]):
                cut += 1
            else:
                at += size
        if size == 1 and not cut:
            break
        size = max(1, size // 2)
    for plain in (b"a", b"0", b" "):
        for at in range(len(best.data)):
            if left > 0 and best.data[at : at + 1] not in b"a0 \n":
                better(best.data[:at] + plain + best.data[at + 1 :])
    return best


def corpus_of(name: str) -> list[Path]:
    """The inputs that are kept for the target, by name."""
    return sorted(path for path in (CORPUS / name).glob("*") if path.is_file())


def keep(find: Find) -> Path:
    """Write the input into the corpus, where it is a test from now on."""
    folder = CORPUS / find.target
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"crash-{find.sign}"
    path.write_bytes(find.data)
    return path


class Finds:
    """Failures of one target, the first of each signature, stored as files in a folder."""

    def __init__(self, name: str, target: Target, folder: Path) -> None:
        self._name, self._target, self._folder = name, target, folder
        self._known: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)

    def play(self, data: bytes) -> None:
        """Play it, and continue after any failure."""
        find = play(self._name, self._target, data)
        if find is not None and find.sign not in self._known:
            self._known.add(find.sign)
            (self._folder / find.sign).write_bytes(data)
