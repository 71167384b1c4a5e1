"""How commands start: what they do not need is not loaded, and what is listed without being loaded says the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.limits import BOUND

from treadle.interfaces.cli.app import COMMANDS
from treadle.interfaces.cli.command import Leaf, make

HEAVY = [
    "anthropic",
    "asyncpg",
    "fastapi",
    "httpx",
    "jinja2",
    "lsprotocol",
    "mcp",
    "opentelemetry",
    "prometheus_client",
    "pydantic",
    "textual",
    "uvicorn",
]

_LOADED = """
import sys
from treadle.interfaces.cli.execution import execute
code = execute({arguments!r})
print(code, *sorted({{name.split(".")[0] for name in sys.modules}} & set({heavy!r})), file=sys.stderr)
print(*sorted(name for name in sys.modules if name.startswith("treadle.")), file=sys.stderr)
"""


def loaded(folder: Path, *arguments: str) -> tuple[list[str], set[str]]:
    """The exit code with the heavy packages, and the modules of Treadle, that a new process has loaded after that command."""
    code = _LOADED.format(arguments=list(arguments), heavy=HEAVY)
    ended = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=BOUND, check=True)
    packages, modules = ended.stderr.splitlines()[-2:]
    return packages.split(), set(modules.split())


def packages_after(folder: Path, *arguments: str) -> set[str]:
    """All modules that a new process has loaded after that command."""
    command = f"from treadle.interfaces.cli.execution import execute\nexecute({list(arguments)!r})"
    code = f"import sys\n{command}\nprint(*sys.modules, file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=BOUND, check=True)
    return set(ended.stderr.splitlines()[-1].split())


def test_listing_tasks_on_sqlite_loads_no_package_that_it_does_not_need(tmp_path: Path):
    assert loaded(tmp_path, "enqueue", "greet", "--list", "night", "-p", "name=Ada")[0] == ["0"]
    packages, modules = loaded(tmp_path, "tasks", "list", "--state", "pending", "--list", "night")
    assert packages == ["0"]
    assert "treadle.interfaces.cli.calls" in modules
    others = {
        "treadle.interfaces.cli.commands.runs",
        "treadle.interfaces.cli.commands.serve",
        "treadle.api.runs",
        "treadle.kernel.runs.operations",
        "treadle.agents",
        "treadle.client",
    }
    assert not modules & others


def test_listing_tasks_loads_no_service_that_it_does_not_use(tmp_path: Path):
    assert loaded(tmp_path, "enqueue", "greet")[0] == ["0"]
    _, modules = loaded(tmp_path, "tasks", "list", "--json")
    unused = {
        "treadle.api.store",
        "treadle.kernel.alerts",
        "treadle.kernel.approvals.service",
        "treadle.kernel.effects.reads",
        "treadle.kernel.external.service",
        "treadle.kernel.problems",
        "treadle.kernel.tasks.dead_letters",
        "treadle.kernel.lists",
        "treadle.kernel.recovery",
        "treadle.kernel.remote_workers",
        "treadle.kernel.runs.service",
        "treadle.kernel.search",
        "treadle.kernel.store.retention",
        "treadle.kernel.triggers",
        "treadle.lang",
        "treadle.workers.call",
        "treadle.workers.functions.context",
        "treadle.workers.specialists",
        "treadle.workers.notifications",
    }
    assert sorted(modules & unused) == []


def test_listing_tasks_as_json_loads_no_slow_module_of_others(tmp_path: Path):
    assert loaded(tmp_path, "enqueue", "greet")[0] == ["0"]
    slow = {"difflib", "email", "http", "importlib.resources", "rich", "zipfile"}
    assert not slow & packages_after(tmp_path, "tasks", "list", "--json")


def test_importing_the_package_loads_only_its_version():
    code = "import sys, treadle; print(*sorted(name for name in sys.modules if name.startswith('treadle')))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=BOUND, check=True)
    assert ended.stdout.split() == ["treadle", "treadle.version"]


def test_help_loads_no_command_and_no_engine(tmp_path: Path):
    packages, modules = loaded(tmp_path, "--help")
    assert packages == ["0"]
    assert {name for name in modules if name.startswith("treadle.interfaces.cli.")} == {
        f"treadle.interfaces.cli.{name}" for name in ("app", "command", "execution", "messages")
    }
    assert not any(name.startswith(("treadle.engine.kernel", "treadle.api", "treadle.kernel")) for name in modules)


@pytest.mark.parametrize("leaf", [each for each in COMMANDS if isinstance(each, Leaf)], ids=lambda leaf: leaf.name)
def test_the_summary_of_a_command_is_the_start_of_its_help(leaf: Leaf):
    text = make(leaf).help or ""
    assert leaf.help == " ".join(text.split("\n\n")[0].split())


def test_an_option_of_the_wrong_type_is_rejected(tmp_path: Path):
    (code, *_), _ = loaded(tmp_path, "tasks", "list", "--limit", "many")
    assert code == "2"
