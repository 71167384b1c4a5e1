"""Options of a watcher, and the body of its record that follows from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from treadle.api.options import TargetOptions, WatcherOptions
from treadle.kernel.triggers.target import named_targets, target_from
from treadle.model.clock import milliseconds
from treadle.model.errors import InvalidInput, InvalidWatcher
from treadle.model.lists import check_count
from treadle.model.names import check_name
from treadle.model.schedules import Target
from treadle.model.watchers import CHANGES, DIRECTORY, EXISTING, FILE, HTTP, Source, WatcherBody, compile_pattern

SHORTEST_EVERY_FOR = 1000

_LONGEST_PATH = 4096


def check_options(given: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` for unknown options, and for an edit without any."""
    known = WatcherOptions.__annotations__
    if not given:
        raise InvalidInput("Give at least one option, e.g. every=60.")
    if unknown := [name for name in given if name not in known]:
        raise InvalidInput(f"A watcher has no option {unknown[0]!r}; it has {', '.join(known)}.")


def make_body(given: Mapping[str, Any]) -> WatcherBody:
    """Return the body of a new watcher; checks each option."""
    check_options(given)
    existing = given.get("existing", "seen")
    if existing not in EXISTING:
        raise InvalidWatcher(f"existing must be one of {', '.join(EXISTING)}, not {existing!r}.")
    body = WatcherBody(source=_source(given), target=Target(kind="", name=""), existing=existing)
    return edit_body(body, given)


def _source(given: Mapping[str, Any]) -> Source:
    places = [(kind, given[name]) for kind, name in ((DIRECTORY, "directory"), (FILE, "file"), (HTTP, "url")) if given.get(name)]
    if len(places) != 1:
        wrong = f", not {' and '.join(kind for kind, _ in places)} together" if places else ""
        raise InvalidWatcher(f"Name one source to watch: a directory, a file or a url{wrong}.")
    ((kind, place),) = places
    place = str(place)
    if kind == HTTP:
        _check_address(place)
    elif not place.startswith("/") or len(place) > _LONGEST_PATH or "\0" in place or ".." in place.split("/"):
        raise InvalidWatcher(f"{place!r} is not an absolute path; any worker may scan it. Use one like /srv/incoming.")
    if kind != DIRECTORY and ("pattern" in given or given.get("recursive")):
        raise InvalidWatcher("Only a directory has a pattern.")
    pattern = given.get("pattern", "*")
    compile_pattern(pattern)
    return Source(kind=kind, place=place, pattern=pattern, recursive=bool(given.get("recursive", False)))


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        known = False
    if not known or not url.isprintable() or " " in url:
        raise InvalidWatcher(
            f"{url!r} is not an address: only http and https can be watched, e.g. https://example.org/prices.json."
        )
    if parts.username is not None or parts.password is not None:
        raise InvalidWatcher("An address with a user name or password would be visible to everybody who can see the watcher.")


def edit_body(body: WatcherBody, given: Mapping[str, Any]) -> WatcherBody:
    """Return the body with the changes; checks each option."""
    changes = tuple(given.get("changes", body.changes))
    if not changes or any(change not in CHANGES for change in changes):
        raise InvalidWatcher(f"changes must be some of {', '.join(CHANGES)}, not {', '.join(map(str, changes)) or 'none'}.")
    every_for = milliseconds(given["every"], "every", positive=True) if "every" in given else body.every_for
    if every_for < SHORTEST_EVERY_FOR:
        raise InvalidWatcher(f"The shortest interval between two scans is one second, not {every_for} ms.")
    source = msgspec.structs.replace(
        body.source,
        hashing=bool(given.get("hashing", body.source.hashing)),
        hash_limit=check_count(given.get("hash_limit", body.source.hash_limit), "hash_limit"),
        timeout_for=milliseconds(given["fetch_timeout"], "fetch_timeout", positive=True)
        if "fetch_timeout" in given
        else body.source.timeout_for,
    )
    return msgspec.structs.replace(
        body,
        source=source,
        target=_target(given, body.target),
        changes=changes,
        every_for=every_for,
        settle_for=milliseconds(given["settle"], "settle") if "settle" in given else body.settle_for,
        looked_by=check_name(given.get("looked_by", body.looked_by), "task list"),
    )


def _target(given: Mapping[str, Any], old: Target) -> Target:
    if old.kind and "change_as" not in given and not any(name in given for name in TargetOptions.__annotations__):
        return old
    names = named_targets(given) or ({old.kind: old.name} if old.kind else {})
    kept = old if old.kind in names else msgspec.structs.replace(old, flow=None, version=None)
    return target_from(given, names, kept, given.get("change_as") or old.given_as or "change")
