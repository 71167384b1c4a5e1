"""Scans of files and URLs for watchers, in threads. Nothing durable happens here."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request

from treadle.kernel.watchers.decide import Content, Fetched, Scan, ScannedFile, key_of
from treadle.model.clock import Clock
from treadle.model.errors import ScanFailed
from treadle.model.watchers import DIRECTORY, Item, WatchSource, compile_pattern, is_allowed, normalize
from treadle.workers.call import Executor
from treadle.workers.context import RegisteredHandler, make_handler

_FETCH_CHUNK = 64 * 1024
_NOT_FOUND = (404, 410)
_NOT_MODIFIED = 304


def fetch(source: WatchSource, item: Item | None, monotonic: Callable[[], float], allowed: Sequence[str] = ()) -> Fetched:
    """Request the URL with the validators of the last response; takes no more than about twice the timeout.

    A redirect stays on the same origin; from an address that `allowed` lists, it leads to another one that `allowed` lists.
    """
    until = monotonic() + source.timeout_for / 1000
    headers = {"User-Agent": "treadle", "Accept-Encoding": "identity"}
    if item is not None and item.etag:
        headers["If-None-Match"] = item.etag
    if item is not None and item.modified:
        headers["If-Modified-Since"] = item.modified
    request = Request(source.place, headers=headers)  # noqa: S310 - only http and https, which `_opener` alone can do
    try:
        with _opener(allowed).open(request, timeout=source.timeout_for / 1000) as answer:
            return _read_body(source, answer, lambda: monotonic() > until)
    except HTTPError as error:
        with error:
            if error.code == _NOT_MODIFIED:
                return Fetched(same=True)
            if error.code in _NOT_FOUND:
                return Fetched(gone=True)
            raise ScanFailed("http_error", f"{source.place} answers {error.code} {error.reason}.") from None
    except ScanFailed:
        raise
    except TimeoutError:
        raise ScanFailed("http_timeout", f"{source.place} has not answered within {source.timeout_for / 1000:g} s.") from None
    except URLError as error:
        late = isinstance(error.reason, TimeoutError)
        code = "http_timeout" if late else "http_unreachable"
        raise ScanFailed(code, f"{source.place} cannot be reached: {error.reason}.") from None
    except (OSError, http.client.HTTPException) as error:
        raise ScanFailed("http_unreachable", f"{source.place} cannot be reached: {error!r}.") from None


def _read_body(source: WatchSource, answer: Any, is_late: Callable[[], bool]) -> Fetched:
    etag, modified = answer.headers.get("ETag"), answer.headers.get("Last-Modified")
    digest, size = hashlib.sha256(), 0
    while chunk := answer.read1(_FETCH_CHUNK):
        size += len(chunk)
        if is_late():
            raise TimeoutError
        if size > source.hash_limit:
            if etag or modified:
                return Fetched(etag=etag, modified=modified)
            raise ScanFailed(
                "http_too_large",
                f"{source.place} answers more than {source.hash_limit} bytes, and no ETag or Last-Modified to know it by.",
            )
        digest.update(chunk)
    expected = answer.headers.get("Content-Length")
    if expected is not None and expected.isdecimal() and int(expected) != size:
        raise ScanFailed("http_incomplete", f"{source.place} broke off after {size} of {expected} bytes.")
    return Fetched(etag=etag, modified=modified, hash=f"sha256:{digest.hexdigest()}", size=size)


class _AllowedRedirects(HTTPRedirectHandler):
    """Follows redirects within an origin and within the allowed addresses."""

    def __init__(self, allowed: Sequence[str]) -> None:
        self._allowed = allowed

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """Return the next request; raise `ScanFailed` if it leaves them."""
        before, after = normalize(req.full_url), normalize(newurl)
        stays = before is not None and after is not None and before.origin == after.origin
        if not stays or (is_allowed(req.full_url, self._allowed) and not is_allowed(newurl, self._allowed)):
            raise ScanFailed("http_redirect", f"{req.full_url} redirects to {newurl}; watch that address if it is right.")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(allowed: Sequence[str]) -> OpenerDirector:
    from urllib.request import HTTPDefaultErrorHandler, HTTPErrorProcessor

    opener = OpenerDirector()
    for handler in (HTTPHandler(), HTTPSHandler(), HTTPDefaultErrorHandler(), HTTPErrorProcessor(), _AllowedRedirects(allowed)):
        opener.add_handler(handler)
    return opener


_CHUNK = 1024 * 1024
_SHOWN = 3


class Scanner:
    """Scans in threads of an executor, so that a slow disk or service blocks no other work."""

    def __init__(self, executor: Executor, clock: Clock, allowed: Sequence[str] = ()) -> None:
        self._executor = executor
        self._clock = clock
        self._allowed = allowed

    async def scan(self, source: WatchSource) -> Scan:
        """Return the matching files of a directory, or the single file; raises `ScanFailed` if it cannot be read."""
        return await self._executor.in_thread(_SCAN, (source,))  # type: ignore[no-any-return]

    async def read(self, source: WatchSource, names: Sequence[str]) -> dict[str, Content]:
        """Return size, time and hash of those files."""
        return await self._executor.in_thread(_READ, (source, list(names)))  # type: ignore[no-any-return]

    async def fetch(self, source: WatchSource, item: Item | None) -> Fetched:
        """Return the response of the URL; raises `ScanFailed` without a usable one."""
        arguments = (source, item, self._clock.monotonic, self._allowed)
        return await self._executor.in_thread(_FETCH, arguments)  # type: ignore[no-any-return]


def scan(source: WatchSource, *_: Any) -> Scan:
    """Do the work of `Scanner.scan`."""
    return _scan_directory(source) if source.kind == DIRECTORY else _scan_file(source)


def _scan_file(source: WatchSource) -> Scan:
    path = Path(source.place)
    try:
        state = path.stat()
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise ScanFailed("path_not_found", f"There is no directory {path.parent}.") from None
        return Scan((), problem=f"There is no file {path} yet.")
    except OSError as error:
        raise _failed(path, error) from None
    if not stat.S_ISREG(state.st_mode):
        raise ScanFailed("path_not_a_file", f"{path} is not a file.")
    return Scan((_found(path.name, state),))


def _scan_directory(source: WatchSource) -> Scan:
    root = Path(source.place)
    matches = compile_pattern(source.pattern, recursive=source.recursive)
    depth = None if source.recursive or "**" in source.pattern else source.pattern.count("/")
    unreadable: list[str] = []
    files = [_found(name, state) for name, state in _walk(root, "", depth, unreadable) if matches.fullmatch(name)]
    files.sort()
    problem = None
    if unreadable:
        names = ", ".join(unreadable[:_SHOWN]) + (", ..." if len(unreadable) > _SHOWN else "")
        problem = f"{len(unreadable)} of its directories cannot be read: {names}."
    return Scan(files, tuple(unreadable), problem)


def _found(name: str, state: os.stat_result) -> ScannedFile:
    arrived_at = max(state.st_mtime_ns, state.st_ctime_ns) // 1_000_000
    return ScannedFile(key_of(name), state.st_size, state.st_mtime_ns, name, arrived_at)


def _walk(root: Path, below: str, depth: int | None, unreadable: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the regular files by name below the root; links out of the root and links to directories are not followed."""
    try:
        entries = os.scandir(root / below)
    except OSError as error:
        if not below:
            raise _failed(root, error) from None
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            unreadable.append(_text(below))
        return
    deeper: list[str] = []
    with entries:
        for entry in entries:
            name = _text(f"{below}/{entry.name}" if below else entry.name)
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile: the next scan reports it
                if entry.is_dir(follow_symlinks=False):
                    deeper.append(f"{below}/{entry.name}" if below else entry.name)
                elif (state := _state(root, entry)) is not None:
                    yield name, state
    if depth is None or depth > 0:
        for subdirectory in deeper:
            yield from _walk(root, subdirectory, None if depth is None else depth - 1, unreadable)


def _state(root: Path, entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the state of a regular file inside the root, also through a link."""
    if entry.is_symlink() and not Path(entry.path).resolve().is_relative_to(root.resolve()):
        return None
    state = entry.stat()
    return state if stat.S_ISREG(state.st_mode) else None


def _text(name: str) -> str:
    """Return the name as text that every store accepts: bytes that are not UTF-8 are escaped."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def read(source: WatchSource, names: list[str], *_: Any) -> dict[str, Content]:
    """Do the work of `Scanner.read`."""
    place = Path(source.place)
    return {name: _read(_path(place, name) if source.kind == DIRECTORY else place, source) for name in names}


def _path(root: Path, name: str) -> Path:
    """Return the path of a name, also if `_text` escaped some of its bytes."""
    path = root / name
    if "\\x" in name and not path.exists():
        raw = re.sub(rb"\\x([0-9a-f]{2})", lambda match: bytes.fromhex(match[1].decode()), name.encode())
        return root / os.fsdecode(raw)
    return path


def _read(path: Path, source: WatchSource) -> Content:
    try:
        state = path.stat()
        digest = _hash(path) if source.hashing and state.st_size <= source.hash_limit else None
        after = path.stat()
    except FileNotFoundError:
        return Content(gone=True)
    except OSError as error:
        return Content(problem=str(_failed(path, error)))
    return Content(after.st_size, after.st_mtime_ns, digest)


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _failed(path: Path, error: OSError) -> ScanFailed:
    match error:
        case FileNotFoundError():
            return ScanFailed("path_not_found", f"There is no {path} on this machine.")
        case NotADirectoryError():
            return ScanFailed("path_not_a_directory", f"{path} is not a directory.")
        case PermissionError():
            return ScanFailed("path_unreadable", f"{path} cannot be read: {error.strerror}.")
        case _:
            return ScanFailed("path_trouble", f"{path} cannot be scanned: {error.strerror or error}.")


_SCAN = make_handler("watcher.scan", scan, isolation="thread")
_READ = make_handler("watcher.read", read, isolation="thread")
_FETCH = RegisteredHandler("watcher.fetch", fetch, 2, "thread")
