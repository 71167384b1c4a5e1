"""AFL sources as arguments: files, folders, stdin, or a flow published in the store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from treadle.interfaces.cli.command import argument, option
from treadle.interfaces.cli.messages import tell_diagnostic
from treadle.model.errors import InvalidInput
from treadle.model.names import check_name

if TYPE_CHECKING:
    from treadle.engine import Engine
    from treadle.interfaces.cli.session import Session
    from treadle.kernel.runs.flows import Source
    from treadle.lang.program import Program

_SUFFIX = ".afl"

Files = Annotated[list[str], argument(metavar="FILE...", help="AFL files or folders, compiled together; - is stdin")]
Places = Annotated[
    list[str],
    argument(metavar="FILE...|FLOW", help="AFL files, compiled together, or the name or digest of a flow in the store"),
]
StrictOption = Annotated[
    bool, option("--strict", help="Treat warnings about AFL as errors; default: TREADLE_STRICT, or `strict` of the project")
]


class SourceNotFound(InvalidInput):
    """A source that cannot be read."""

    code = "source_not_found"


def read_sources(places: Sequence[str]) -> list[Source]:
    """Read the (name, text) pairs of files, of all `.afl` files in folders, or of stdin."""
    if not places:
        raise InvalidInput("Name at least one AFL file.")
    return [(name, _read(name)) for place in dict.fromkeys(places) for name in _files(place)]


def compile_here(session: Session, engine: Engine, sources: Sequence[Source], *, strict: bool) -> Program:
    """Compile sources before a command uses them; print warnings for people, and raise `InvalidFlow` for errors."""
    _, program, compiled = engine.kernel.flows.compile(sources, strict=strict or session.strict)
    if not session.json:
        for each in compiled.warnings:
            tell_diagnostic(each)
    return program


def is_file(place: str) -> bool:
    """Whether the argument is a file or folder rather than a published flow."""
    return place == "-" or place.endswith(_SUFFIX) or Path(place).exists()


def flow_name(places: Sequence[str]) -> str | None:
    """The published flow that the arguments name; None if they are files."""
    if len(places) == 1 and not is_file(places[0]):
        return check_name(places[0], "flow name") if not _is_digest(places[0]) else places[0]
    return None


def _is_digest(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


def _files(place: str) -> list[str]:
    folder = Path(place)
    if place == "-" or not folder.is_dir():
        return [place]
    found = sorted(str(path) for path in folder.rglob(f"*{_SUFFIX}"))
    if not found:
        raise SourceNotFound(f"There is no {_SUFFIX} file in the folder {place}.")
    return found


def _read(name: str) -> str:
    try:
        raw = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        return raw.decode("utf-8")
    except OSError as error:
        raise SourceNotFound(f"{name} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise SourceNotFound(f"{name} is not UTF-8 text (byte {error.start}).") from None
