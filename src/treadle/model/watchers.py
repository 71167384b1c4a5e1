"""Watchers: their sources, the changes that count, their targets, and the items seen so far. Pure.

The cursor of a watcher is the set of items it has seen, never the wall clock: a change is reported once, regardless of
delays and repeated scans.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from treadle.model.errors import InvalidWatcher
from treadle.model.names import ENGINE_LIST
from treadle.model.schedules import Target
from treadle.model.stored import Stored, words

PATTERN_LIMIT = 1000
MAX_DOUBLE_STARS = 4
"""Maximum number of `**` in a glob: each slows matching by the depth of the name."""

_ANY_PARTS = r"(?:[^./][^/]*/)*"


def compile_pattern(pattern: str, *, recursive: bool = False) -> re.Pattern[str]:
    """Compile a glob on names with `/`: `*` and `?` stay within one part, `**` matches any number of parts.

    Wildcards do not match a name that begins with a dot. With `recursive`, a pattern of one part matches at any depth.
    Raises `InvalidWatcher` for an invalid glob.
    """
    if not isinstance(pattern, str) or not pattern or pattern.startswith("/") or ".." in pattern.split("/"):
        raise InvalidWatcher(f"{pattern!r} is not a valid pattern: it must be relative to the directory, e.g. *.csv or **/*.csv.")
    parts = pattern.split("/")
    if len(pattern) > PATTERN_LIMIT or parts.count("**") > MAX_DOUBLE_STARS:
        raise InvalidWatcher(f"A pattern has at most {PATTERN_LIMIT} characters, and `**` at most {MAX_DOUBLE_STARS} times.")
    if recursive and "**" not in parts:
        parts = ["**", *parts]
    text = ""
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            text += _ANY_PARTS + (r"[^./][^/]*" if last else "")
            continue
        text += _part(part) + ("" if last else "/")
    try:
        return re.compile(text, re.DOTALL)
    except re.error as error:
        raise InvalidWatcher(f"{pattern!r} is not a valid pattern: {error}.") from None


def _part(part: str) -> str:
    """Compile one part. The text between two stars matches at its first occurrence, without backtracking."""
    text = r"(?!\.)" if part[:1] in ("*", "?", "[") else ""
    first, *others = _pieces(part)
    text += first
    for index, piece in enumerate(others):
        text += rf"[^/]*{piece}" if index == len(others) - 1 else rf"(?>[^/]*?{piece})"
    return text


def _letters(inner: str) -> str:
    """Compile the text between brackets, escaping characters that are special only in expressions."""
    if "--" in inner:
        raise InvalidWatcher(f"[{inner}] is not a valid set of letters: it has a range that ends in a dash.")
    no = "^" if inner.startswith("!") else ""
    return no + re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[len(no) :])


def _pieces(part: str) -> list[str]:
    """Split at the stars; each piece matches names of one length only."""
    pieces, index = [""], 0
    while index < len(part):
        letter = part[index]
        closing = part.find("]", index + 2) if letter == "[" else -1
        if letter == "*":
            pieces.append("")
        elif letter == "?":
            pieces[-1] += r"[^/]"
        elif closing > 0:
            pieces[-1] += rf"(?!/)[{_letters(part[index + 1 : closing])}]"
            index = closing
        else:
            pieces[-1] += re.escape(letter)
        index += 1
    return pieces


_PORTS = {"http": 80, "https": 443}
_NUMBER = re.compile(r"0x[0-9a-f]+|0[0-7]*|[1-9][0-9]*")


class Address(NamedTuple):
    """An origin and the decoded names of a path; a local path has an empty scheme."""

    scheme: str
    host: str
    port: int | None
    names: tuple[str, ...]

    @property
    def origin(self) -> tuple[str, str, int | None]:
        """Scheme, host and port."""
        return self[:3]

    def is_below(self, other: Address) -> bool:
        """Return whether this is the other address, or below its path."""
        return self.origin == other.origin and self.names[: len(other.names)] == other.names


def normalize(address: str) -> Address | None:
    """Return the normal form; None for an address that is ambiguous: with a user, or a path that climbs or hides a separator.

    Letter case, default ports, a final dot, international names, percent-encoding and all notations of an IP address are resolved.
    """
    if "://" not in address:
        return _path("", "", None, address.split("/"))
    try:
        split = urlsplit(address)
        scheme, port = split.scheme.lower(), split.port
        host = _host(split.hostname or "")
        names = [_decoded(name) for name in split.path.split("/")]
    except ValueError:
        return None
    return None if "@" in split.netloc else _path(scheme, host, port or _PORTS.get(scheme), names)


def is_allowed(address: str, allowed: Iterable[str]) -> bool:
    """Return whether the address is, or is below, an allowed one. Symbolic links and host names are not resolved."""
    place = normalize(address)
    return place is not None and any(place.is_below(other) for root in allowed if (other := normalize(root)) is not None)


def _path(scheme: str, host: str, port: int | None, names: Iterable[str]) -> Address | None:
    segments = tuple(name for name in names if name)
    if any(name in (".", "..") or "/" in name or "\\" in name for name in segments):
        return None
    return Address(scheme, host, port, segments)


def _decoded(name: str) -> str:
    """Decode percent-encoding until nothing is left to decode: servers behind proxies may decode twice."""
    while (plain := unquote(name, errors="strict")) != name:
        name = plain
    return name


def _host(host: str) -> str:
    host = host.rstrip(".").lower()
    if ":" in host:
        parsed = ipaddress.IPv6Address(host.partition("%")[0])
        return str(parsed.ipv4_mapped or parsed)
    return _ipv4(host) or host.encode("idna").decode()


def _ipv4(host: str) -> str | None:
    """Return the dotted form of any notation of an IPv4 address: `127.1`, `0x7f000001`, `0177.0.0.1`; None for a name."""
    parts = host.split(".")
    if not all(_NUMBER.fullmatch(part) for part in parts) or len(parts) > 4:
        return None
    *first, last = [int(part, 16 if part.startswith("0x") else 8 if part.startswith("0") else 10) for part in parts]
    value = last
    for place, number in enumerate(first):
        value += number << 8 * (3 - place)
    return str(ipaddress.IPv4Address(value))


SOURCES = DIRECTORY, FILE, HTTP = "directory", "file", "http"

CREATED, MODIFIED, DELETED = "created", "modified", "deleted"
CHANGES = (CREATED, MODIFIED, DELETED)

SEEN, NEW = "seen", "new"
EXISTING = (SEEN, NEW)
"""Whether items that existed when the watcher was created count as seen, or as created."""

EVERY_FOR = 30_000
SETTLE_FOR = 2_000
HASH_LIMIT = 64 * 1024 * 1024
"""Bytes of a file or a response that are read for its hash; larger ones are identified by size and time alone."""
FETCH_FOR = 30_000


class WatchSource(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The place to scan: files of a directory that match a pattern, one file, or the response of an address."""

    kind: Annotated[str, words(SOURCES)]
    place: str
    """An absolute path, or an http(s) address."""
    pattern: str = "*"
    recursive: bool = False
    hashing: bool = True
    """Whether a file with a new mtime counts as modified only if its content changed."""
    hash_limit: int = HASH_LIMIT
    timeout_for: int = FETCH_FOR


class Item(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The last seen version of one file or address."""

    size: int | None = None
    """None: it was never seen complete."""
    mtime: int | None = None
    """In nanoseconds."""
    hash: str | None = None
    etag: str | None = None
    modified: str | None = None
    """The `Last-Modified` of an address."""
    pending: tuple[int, int, int] | None = None
    """Current size and time, and since when: it is reported once they stop changing."""


class Noticed(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """A change, and the work that it started."""

    at: int
    change: str
    name: str
    kind: str | None = None
    id: str | None = None


class WatcherDocument(Stored, frozen=True, kw_only=True, omit_defaults=True):
    """The document of a watcher's record."""

    source: WatchSource
    target: Target
    changes: tuple[Annotated[str, words(CHANGES)], ...] = (CREATED, MODIFIED)
    every_for: int = EVERY_FOR
    settle_for: int = SETTLE_FOR
    existing: Annotated[str, words(EXISTING)] = SEEN
    scan_on: str = ENGINE_LIST
    """The task list whose workers scan: for a path that exists only on some machines."""
    listed: bool = False
    """Whether the existing files were listed when the watcher was created; if not, the first scan identifies them by time."""
    begun: bool = False
    """Whether the first scan has finished."""
    digest: str | None = None
    """Digest of all items of the last scan, if none was still changing: an equal digest means no change."""
    items: int = 0
    fired: int = 0
    recent: tuple[Noticed, ...] = ()
    error: dict[str, Any] | None = None
    """Why it cannot scan all or part of its source."""
    error_at: int | None = None


DEFINITION = ("source", "target", "changes", "every_for", "settle_for", "existing", "scan_on")
"""The fields that people set; the others are progress."""
