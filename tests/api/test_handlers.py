"""Calls about handler registrations, on an engine and over HTTP."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.api.conftest import Scene
from tests.errors import raises_code

from treadle.agents.modules import OutsideRoots
from treadle.engine.operations import Operations
from treadle.model.access import Access, Scope
from treadle.model.errors import Forbidden, InvalidInput

MODULE = """
import os, time

def pay(payload):
    print("paying", payload["amount"])
    return {"paid": payload["amount"], "pid": os.getpid()}

def fail(payload):
    raise ValueError("no money")

def hang(payload):
    time.sleep(1000)

def die(payload):
    os._exit(3)
"""


@pytest.fixture
def here(scene: Scene, tmp_path: Path) -> Path:
    """A folder with a module, from which modules may be loaded."""
    (tmp_path / "billing.py").write_text(MODULE)
    scene.engine.kernel.settings = replace(scene.engine.kernel.settings, handler_roots=(str(tmp_path),))
    return tmp_path


async def test_without_configured_roots_no_module_is_loaded(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder in which a server happens to run was chosen by nobody."""
    (tmp_path / "billing.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert (await scene.api.handlers.register("billing.Pay", "billing", entrypoint="pay")).missing_module is None
    tried = await scene.api.handlers.test("billing.Pay", {"amount": 5})
    assert (tried.result, tried.error_code) == (None, "import_failed")
    assert "none on this machine" in (tried.error or "")
    for outside in ("json", (tmp_path / "billing.py").as_uri()):
        with pytest.raises((OutsideRoots, InvalidInput)) as refused:
            await scene.api.handlers.register("x.Y", outside)
        assert refused.value.code == "module_outside_roots"


@pytest.mark.parametrize("uri", ["x" * 20_000, "file:///" + "x" * 5_000, "a\x1b[2J", "a\nb"])
async def test_a_module_with_a_name_that_is_too_long_or_not_printable_is_rejected(scene: Scene, here: Path, uri: str):
    with pytest.raises(InvalidInput, match="1000 printable"):
        await scene.api.handlers.register("x.Y", uri)
    with pytest.raises(InvalidInput, match="200 printable"):
        await scene.api.handlers.register("x.Y", "a", version=uri)


@pytest.mark.parametrize("uri", ["x" * 900, f"file:///{'x' * 900}", "file:///a%00b.py", "file://["])
async def test_a_module_that_cannot_be_a_file_is_missing(scene: Scene, here: Path, uri: str):
    """The file system refuses such names with errors of its own."""
    with suppress(InvalidInput):  # it is outside the roots
        assert (await scene.api.handlers.register("x.Y", uri)).missing_module is not None


async def test_a_handler_is_registered_edited_listed_and_removed(scene: Scene, here: Path):
    handlers = scene.api.handlers
    made = await handlers.register("billing.Pay", "billing", entrypoint="pay", timeout=5, metadata={"fee": 2})
    assert (made.timeout_ms, made.metadata, made.missing_module, made.missing_requirements) == (5000, {"fee": 2}, None, [])
    edited = await handlers.edit("billing.Pay", version="2.0.0", requirements=["treadle-no-such-thing"])
    assert (edited.version, edited.entrypoint, edited.timeout_ms) == ("2.0.0", "pay", 5000)
    assert edited.missing_requirements == ["treadle-no-such-thing (not installed)"]
    assert (await handlers.list()).handlers == [await handlers.get("billing.Pay")] == [edited]
    assert (await handlers.remove("billing.Pay")).removed == "billing.Pay"
    for refused in (handlers.get, handlers.edit, handlers.remove, handlers.test):
        with raises_code("handler_not_found"):
            await refused("billing.Pay")


async def test_a_missing_module_can_be_registered_but_not_one_outside_the_roots(scene: Scene, here: Path):
    made = await scene.api.handlers.register("x.Y", "not.there.yet")
    assert "There is no module not.there.yet" in (made.missing_module or "")
    with pytest.raises((OutsideRoots, InvalidInput)) as refused:
        await scene.api.handlers.register("x.Z", "file:///etc/hostname")
    assert refused.value.code == "module_outside_roots"
    with pytest.raises(InvalidInput):
        await scene.api.handlers.register("x.Z", "billing", entrypoint="not a name")


async def test_a_handler_dry_run_uses_a_separate_process(scene: Scene, here: Path):
    import os

    await scene.api.handlers.register("billing.Pay", "billing", entrypoint="pay")
    tried = await scene.api.handlers.test("billing.Pay", {"amount": 5})
    assert tried.result is not None
    assert (tried.result["paid"], tried.error_code, tried.output) == (5, None, "paying 5\n")
    assert tried.result["pid"] != os.getpid()


async def test_a_failing_dry_run_is_reported_and_leaves_the_server_running(scene: Scene, here: Path):
    told = {}
    for name in ("fail", "die", "nobody"):
        await scene.api.handlers.register(f"billing.{name}", "billing", entrypoint=name)
        tried = await scene.api.handlers.test(f"billing.{name}", {})
        assert tried.result is None
        told[name] = (tried.error_code, tried.error)
    assert told["fail"] == ("handler_error", "The handler failed: ValueError: no money")
    assert told["die"] == ("handler_error", "The process of the handler ended with 3 before it returned.")
    assert told["nobody"][0] == "entrypoint_missing"


async def test_a_handler_test_that_hangs_is_stopped(scene: Scene, here: Path):
    await scene.api.handlers.register("billing.Hang", "billing", entrypoint="hang")
    tried = await scene.api.handlers.test("billing.Hang", {}, wait_for=0.1)
    assert tried.error_code == "timeout"
    with pytest.raises(InvalidInput, match="wait_for"):
        await scene.api.handlers.test("billing.Hang", {}, wait_for=1000)


async def test_operations_that_load_code_need_the_register_scope(scene: Scene, here: Path):
    handlers = Operations(scene.engine, Access("ada", frozenset(Scope) - {Scope.ADMIN, Scope.REGISTER})).handlers
    assert (await handlers.list()).handlers == []
    for refused in (handlers.register("x.Y", "billing"), handlers.edit("x.Y"), handlers.remove("x.Y"), handlers.test("x.Y")):
        with pytest.raises(Forbidden):
            await refused
