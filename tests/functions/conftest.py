"""The kinds of functions: tests with the fixture `kind` hold for async and for sync functions."""

from __future__ import annotations

from typing import Any

import pytest
from tests.functions.blocking import as_sync

from treadle.engine.registration import Registration
from treadle.workers.functions import registry
from treadle.workers.functions.registry import may_clean_up
from treadle.workers.signatures import is_async


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kind of the functions that the test registers; `sync` makes them sync."""
    if request.param == "sync":
        add = Registration._add_function

        def add_sync(self: Any, name: str, fn: Any, options: Any) -> Any:
            return add(self, name, as_sync(fn) if is_async(fn) else fn, options)

        monkeypatch.setattr(Registration, "_add_function", add_sync)
        monkeypatch.setattr(registry, "may_clean_up", lambda call: may_clean_up(getattr(call, "__wrapped__", call)))
    return str(request.param)
