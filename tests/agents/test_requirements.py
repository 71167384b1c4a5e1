"""A handler's requirements are checked against the packages installed here."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from treadle.agents.modules import check_requirement, missing_requirements
from treadle.model.errors import InvalidInput


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of known versions: `some-tool` 2.5.1 with an extra, `part` 1.4 and `early` 3.0rc1."""
    install(
        tmp_path, "some-tool", "2.5.1", "Provides-Extra: fast", 'Requires-Dist: part>=2; extra == "fast"', "Requires-Dist: gone"
    )
    install(tmp_path, "part", "1.4")
    install(tmp_path, "early", "3.0rc1")
    install(tmp_path, "odd", "version-of-the-day")
    monkeypatch.syspath_prepend(str(tmp_path))


def install(folder: Path, name: str, version_: str, *more: str) -> None:
    """The metadata of a package as installers leave it."""
    place = folder / f"{name.replace('-', '_')}-{version_.replace('-', '_')}.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version_}", *more, ""]))


@pytest.mark.parametrize(
    "requirement",
    [
        "some-tool",
        "Some_Tool",
        "some-tool>=2",
        "some-tool >= 2.5, < 3",
        "some-tool~=2.5",
        "some-tool==2.5.*",
        "some-tool==2.5.1",
        "some-tool!=2.5.0",
        "early>=3.0rc1",
        "early",
        "part; python_version >= '3.8'",
        "treadle-no-such-thing; python_version < '3'",
        "treadle-no-such-thing>=2; sys_platform == 'plan9'",
        "some-tool @ https://example.org/some-tool.whl",
    ],
)
def test_met_requirements_are_not_reported(requirement):
    assert missing_requirements([check_requirement(requirement)]) == []


@pytest.mark.parametrize(
    ("requirement", "why"),
    [
        ("treadle-no-such-thing>=2", "not installed"),
        ("treadle-no-such-thing; python_version >= '3.8'", "not installed"),
        ("some-tool>=2.6", "2.5.1 is installed, which is too old"),
        ("some-tool>2.5.1", "2.5.1 is installed"),
        ("some-tool==3.*", "2.5.1 is installed, which is too old"),
        ("some-tool~=2.6", "2.5.1 is installed, which is too old"),
        ("some-tool<2.5", "2.5.1 is installed, which is too new"),
        ("some-tool~=1.0", "2.5.1 is installed, which is too new"),
        ("some-tool>=2,<2.5", "2.5.1 is installed, which is too new"),
        ("some-tool!=2.5.1", "2.5.1 is installed"),
        ("early>=3.0", "3.0rc1 is installed, which is too old"),
        ("some-tool[fast]", "its extra fast needs part>=2: 1.4 is installed, which is too old"),
        ("some-tool[slow]", "2.5.1 has no extra slow"),
        ("odd>=1", "version-of-the-day is installed, which is not a comparable version"),
    ],
)
def test_unmet_requirements_are_reported_with_the_reason(requirement, why):
    assert missing_requirements([check_requirement(requirement), "some-tool"]) == [f"{requirement} ({why})"]


@pytest.mark.parametrize("text", ["", "???", "requests>=two", "requests>=", "two words", "a; not a marker", 7, None])
def test_requirements_pip_cannot_parse_are_rejected_with_an_example(text):
    with pytest.raises(InvalidInput, match=r"is invalid.*requests>=2\.31,<3"):
        check_requirement(text)


def test_a_stored_requirement_that_is_not_understood_is_reported():
    assert missing_requirements(["???"]) == ["??? (invalid)"]


def test_an_installed_package_meets_its_requirement():
    assert missing_requirements(["msgspec>=0.1", f"apsw=={version('apsw')}"]) == []
