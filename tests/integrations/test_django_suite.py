"""The tests of Django's own task framework hold for our backend, except those that are named here."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tests.limits import BOUND

pytestmark = pytest.mark.xdist_group("django suite")

DJANGO = "Django==6.1.3"
"""The sources with the tests; the packages for users have none."""
_LIST = "it changes a result in the list of the dummy backend, which is not the store"
DIFFERENT = {
    "test_dummy_backend.DummyBackendTestCase.test_clear": "a store keeps its tasks until they are pruned",
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result": _LIST,
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result_async": _LIST,
}
"""Tests that do not hold for the backend, and why."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("django")
    options = ["--quiet", "--no-deps", "--no-binary", "Django", "--ignore-requires-python", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, DJANGO]
    download = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
    if download.returncode:
        pytest.skip(f"{DJANGO} cannot be downloaded: {download.stderr.strip()[-200:]}")
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        for member in opened.getmembers():
            name = member.name.partition("/")[2]
            if name.startswith("tests/tasks/"):
                member.name = name
                opened.extract(member, folder, filter="data")
    return folder


def failures(sources: Path, folder: Path, backend: str) -> set[str]:
    (folder / "tests").mkdir(parents=True)
    (folder / "tests" / "tasks").symlink_to(sources / "tests" / "tasks")
    command = [sys.executable, "-m", "tests.integrations.django_suite", str(folder), backend]
    run = subprocess.run(command, capture_output=True, text=True, timeout=BOUND)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout.splitlines()[-1]))


@pytest.mark.all_cases
def test_the_tests_of_django_hold_for_the_backend(sources: Path, tmp_path: Path) -> None:
    unsupported = failures(sources, tmp_path / "dummy", "dummy")
    assert len(unsupported) < 10, "tests of a newer version of the framework than the one that is installed"
    assert failures(sources, tmp_path / "treadle", "treadle") - unsupported == DIFFERENT.keys()
