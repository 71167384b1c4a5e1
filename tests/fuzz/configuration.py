"""Targets about where things are and how they are set up: store URLs, topologies, settings, globs of watchers, requirements."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from unittest.mock import patch
from urllib.parse import quote

from tests.fuzz.language import text_of

from treadle.agents.modules import check_requirement, missing_requirements
from treadle.engine.status_server import parse_address
from treadle.goals.gates import Gates
from treadle.goals.topology import InvalidTopology, load_topology, with_roles
from treadle.llm.ledger import parse_prices
from treadle.model.errors import InvalidInput, InvalidStoreUrl, TreadleError
from treadle.model.watchers import compile_pattern
from treadle.settings import load_settings
from treadle.stores import make_store
from treadle.testing import ManualClock

SECRET = "hunter2"
SECRETS = ("TREADLE_STORE", "TREADLE_WEBHOOK_SECRET", "TREADLE_GITHUB_SECRET", "ANTHROPIC_API_KEY")
PLACES = ("a.csv", "a/b.csv", ".hidden", "a/.b/c", "a" * 200, "a/" * 60 + "b", "", "[x]", "é/ü")


def store_url(data: bytes) -> None:
    """A store URL, in four lines: up to the user, two halves of a password, what follows the `@`. Nobody sees the password.

    It is a URL of a store or refused with `InvalidStoreUrl`; neither the message nor what the store shows has the secret that
    stands between the halves, wherever else the URL breaks. The same with the password in the query, quoted and as it is.
    """
    account, first, second, rest = (*text_of(data).split("\n", 3), "", "", "", "")[:4]
    begins = "://" in f"{account}:{first}" and "://" not in account
    if begins or any(sign in account.partition("://")[2] for sign in ":/?#@") or SECRET in text_of(data):
        return  # then it would be no password
    password = first + SECRET + second
    quoted = quote(password, safe="", errors="replace")
    more = "&" if "?" in rest else "?"
    for url in (
        f"{account}:{password}@{rest}",
        f"{account}:{quoted}@{rest}",
        f"{account}@{rest}{more}password={quoted}",
        f"{account}@{rest}{more}sslpassword={quoted}&schema={first}",
    ):
        try:
            store = make_store(url, ManualClock())
        except InvalidStoreUrl as error:
            shown = f"{error} {error!r}"
        else:
            if url.startswith("sqlite:"):
                continue  # a file, however odd its name
            shown = f"{store.url} {store!r}"
        assert SECRET not in shown, shown


@cache
def _folder() -> Path:
    made = tempfile.TemporaryDirectory(prefix="treadle-fuzz-")
    _KEPT.append(made)
    return Path(made.name)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def topology(data: bytes) -> None:
    """A topology file: loaded, or refused with all that is wrong with it, on lines that the file has.

    What is loaded has rules for at least one type, and the same digest when it is loaded again.
    """
    place = _folder() / "topology.yaml"
    place.write_bytes(data)
    try:
        found = load_topology(place)
    except InvalidTopology as error:
        assert error.problems
        lines = data.count(b"\n") + data.count(b"\r") + text_of(data).count("\x85") + text_of(data).count("\u2028") + 1
        lines += text_of(data).count("\u2029")
        assert all(each.line is None or 1 <= each.line <= lines + 1 for each in error.problems)
        assert len(str(error)) < 10_000 + 300 * len(data)
        return
    assert found.types
    assert load_topology(place) == found
    assert with_roles(found, list(found.roles)) == found
    with suppress(InvalidTopology):  # it names a gate that somebody else may have registered
        Gates().check(found)
    for rules in found.types.values():
        assert rules.budget_for > 0


def glob(data: bytes) -> None:
    """A glob of a watcher: refused with an error of ours, or it says of every name whether it fits, and soon."""
    for recursive in (False, True):
        try:
            pattern = compile_pattern(text_of(data), recursive=recursive)
        except InvalidInput:
            continue
        for name in (*PLACES, text_of(data)):
            pattern.fullmatch(name)


def requirement(data: bytes) -> None:
    """A requirement as pip writes it: refused with `InvalidInput`, or looked up; why it is not met is one line for each."""
    try:
        text = check_requirement(text_of(data))
    except InvalidInput:
        return
    except TreadleError as error:
        raise AssertionError("another error") from error
    assert all(isinstance(each, str) for each in missing_requirements([text]))


def setting(data: bytes) -> None:
    """The name of a variable of the environment, and on the next line its value: refused with `InvalidInput`, or a setting.

    What is secret is shown neither with the settings nor in a message.
    """
    name, _, value = text_of(data).partition("\n")
    if not re.fullmatch("(TREADLE|AFL|OTEL|ANTHROPIC)_[A-Z_]+", name) or "\0" in value:
        return
    with patch.dict(os.environ, {name: value}):  # noqa: TID251
        try:
            settings = load_settings()
            parse_prices(settings.llm_prices)
            if settings.metrics_address:
                parse_address(settings.metrics_address)
        except InvalidInput as error:
            assert name in str(error) or name in ("TREADLE_NAMESPACE", "OTEL_EXPORTER_OTLP_ENDPOINT"), error
            assert name not in SECRETS
            return
    if len(value) > 8 and name in SECRETS:
        assert value not in repr(settings)
