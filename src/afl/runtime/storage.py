"""Files of handlers: the local file system, with the calls of the reference's storage backends."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from treadle.model.errors import InvalidInput


class LocalStorageBackend:
    """Files of this machine."""

    exists = staticmethod(os.path.exists)
    isfile = staticmethod(os.path.isfile)
    isdir = staticmethod(os.path.isdir)
    getsize = staticmethod(os.path.getsize)
    getmtime = staticmethod(os.path.getmtime)
    listdir = staticmethod(os.listdir)
    walk = staticmethod(os.walk)
    join = staticmethod(os.path.join)
    dirname = staticmethod(os.path.dirname)
    basename = staticmethod(os.path.basename)
    rmtree = staticmethod(shutil.rmtree)
    open = staticmethod(open)

    def makedirs(self, path: str, exist_ok: bool = True) -> None:
        """Create the folder with its parents."""
        Path(path).mkdir(parents=True, exist_ok=exist_ok)


StorageBackend = LocalStorageBackend
_LOCAL = LocalStorageBackend()


def get_storage_backend(path: str | os.PathLike[str] | None = None) -> LocalStorageBackend:
    """Return the backend for the path; there is one, for local files."""
    localize("" if path is None else path)
    return _LOCAL


def localize(path: str | os.PathLike[str], *_: Any) -> str:
    """Return the path of a local file, which it is already; raise `InvalidInput` for a URL."""
    text = os.fspath(path)
    if "://" in text:
        raise InvalidInput(f"{text} is not a local file; handlers here read and write local files.")
    return text
