"""The directory: a file that places namespaces on stores, so that one installation can use several databases.

    store = "postgresql://treadle@db1/treadle"       # of namespaces that are not listed; optional

    [namespaces]
    red = "postgresql://treadle@db2/treadle"
    blue = "sqlite:////var/lib/treadle/blue.db"

A change replaces the file atomically. URLs may contain passwords, so only its owner should be able to read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from treadle.model.errors import InvalidInput, Refused
from treadle.model.names import check_name

_KEYS = ("store", "namespaces")
_HEAD = "# The directory of Treadle: the stores of namespaces. `treadle namespaces move` rewrites this file.\n"


@dataclass(frozen=True)
class Directory:
    """The stores of namespaces by name, and the store of all others."""

    namespaces: dict[str, str] = field(default_factory=dict)
    store: str | None = None

    def find(self, namespace: str) -> str | None:
        """Return the URL of the namespace's store; None if neither it nor a store for all others is listed."""
        return self.namespaces.get(namespace, self.store)

    def placed(self, namespace: str, url: str) -> Directory:
        """Return the directory with the namespace on that store."""
        return replace(self, namespaces={**self.namespaces, namespace: url})


def read_directory(path: str | Path) -> Directory:
    """Read the file; raise `InvalidInput` if it is missing or not a directory of namespaces."""
    import tomllib

    try:
        found = tomllib.loads(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidInput(f"The directory {path} cannot be read: {reason}. Correct TREADLE_DIRECTORY, or the file.") from None
    if unknown := next((key for key in found if key not in _KEYS), None):
        raise InvalidInput(f"The directory {path} has the unknown key {unknown!r}; its keys are {', '.join(_KEYS)}.")
    places, store = found.get("namespaces", {}), found.get("store")
    if not isinstance(places, dict) or not all(
        isinstance(each, str) and "://" in each for each in (*places.values(), store or "://")
    ):
        raise InvalidInput(f'In the directory {path}, stores are URLs: `red = "postgresql://..."` in the table [namespaces].')
    return Directory({check_name(name, "namespace"): url for name, url in places.items()}, store)


def write_directory(path: str | Path, directory: Directory) -> None:
    """Replace the file atomically: after a crash it is the old or the new one. It keeps its mode; a new one is private."""
    lines = [_HEAD]
    if directory.store is not None:
        lines.append(f"store = {_text(directory.store)}\n")
    lines.append("\n[namespaces]\n")
    lines += [f"{_text(name)} = {_text(url)}\n" for name, url in sorted(directory.namespaces.items())]
    write_atomically(path, "".join(lines))


def write_atomically(path: str | Path, text: str) -> None:
    """Write the file so that a crash leaves the old or the new content, durably."""
    import tempfile

    place = Path(path)
    mode = place.stat().st_mode & 0o777 if place.exists() else 0o600
    descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(temporary).replace(place)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    sync_folder(place)


def sync_folder(place: Path) -> None:
    """Make the entry of a file in its folder durable."""
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def changing(path: str | Path) -> Iterator[None]:
    """Hold the lock of the directory; raise `Refused` if another process has it. It ends with the process."""
    import fcntl

    with Path(f"{path}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(f"Another process is changing the directory {path}; try again when it has finished.") from None
        yield


def _text(value: Any) -> str:
    """A basic string of TOML, which is one of JSON."""
    return json.dumps(value, ensure_ascii=False)
