"""A release states one version everywhere, carries the licences of what it contains, and names the extra that is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from build_tools.assets import dependencies
from build_tools.release import build, contents, matrix, sbom, smoke

import treadle
from treadle.version import VERSION

ROOT = Path(__file__).parents[2]


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert (citation["version"], treadle.__version__) == (VERSION, VERSION)


def test_the_changelog_has_a_section_for_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    _, heading, released = (ROOT / "CHANGELOG.md").read_text("utf-8").partition(f"## [{VERSION}] - {citation['date-released']}\n")
    assert heading
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", released, re.MULTILINE)) <= kinds


def test_the_changelog_names_no_unreleased_change_twice() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8").partition("## [Unreleased]\n")[2].partition("\n## [")[0]
    starts = Counter(line[:32] for line in text.splitlines() if line.startswith("- "))
    assert [start for start, count in starts.items() if count > 1] == []


def test_the_licences_are_those_of_the_locked_npm_packages() -> None:
    locked = json.loads((ROOT / "package-lock.json").read_text("utf-8"))["packages"]
    shipped = {name: version for name, version, _ in sbom.shipped()}
    assert {name: locked[f"node_modules/{name}"]["version"] for name in shipped} == shipped, "run `make assets`"
    assert dependencies() < set(shipped)
    assert {license_ for _, _, license_ in sbom.shipped()} == {"MIT", "0BSD"}, "adapt `license` in pyproject.toml"


def test_a_release_refuses_another_tag() -> None:
    assert f"The tag is v9.9.9, the version {VERSION}" in "\n".join(contents.unpublishable("v9.9.9"))


def test_interpreters_can_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_PYTHONS", "/opt/a/python:/opt/b/python")
    assert matrix.pythons() == ["/opt/a/python", "/opt/b/python"]


HIDE = """
import importlib, sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
for name in {names}:
    try:
        importlib.import_module(f"treadle.integrations.{{name}}")
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_an_integration_without_its_framework_names_the_extra() -> None:
    names = [extra.replace("-", "_") for extra in smoke.FRAMEWORKS]
    hidden = {*names, "agents", "langchain_core"}
    program = HIDE.format(hidden=hidden, names=names)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    for extra, line in zip(smoke.FRAMEWORKS, done.stdout.splitlines(), strict=True):
        assert line.startswith("MissingDependency ")
        assert f"pip install 'treadle[{extra}]'" in line


@pytest.mark.soak
def test_two_builds_give_the_same_bytes_and_the_wheel_works_on_every_python(tmp_path: Path) -> None:
    first, second = build.build(tmp_path / "first"), build.build(tmp_path / "second")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    sdist, wheel = first
    assert contents.problems(sdist, wheel) == []
    bom = json.loads(sbom.write(wheel, tmp_path).read_text("utf-8"))
    assert {"apsw", "idiomorph"} <= {each["name"] for each in bom["components"] if each["scope"] == "required"}
    assert matrix.problems(wheel) == []


@pytest.mark.soak
def test_an_sdist_builds_the_same_wheel_without_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sdist, wheel = build.build(tmp_path / "dist")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", build.epoch())  # asks git, which is not on the PATH below
    monkeypatch.setenv("PIP_CONSTRAINT", str(build.CONSTRAINTS))
    monkeypatch.setenv("PATH", "/nonexistent")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path / "again"), str(sdist)]
    subprocess.run(command, check=True)
    assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()
