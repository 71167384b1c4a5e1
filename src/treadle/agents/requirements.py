"""What a handler needs beside Python: requirements as pip writes them, looked up among the packages that are installed here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from treadle.model.errors import InvalidInput

_AT_LEAST = (">=", ">", "~=", "==", "===")
_AT_MOST = ("<=", "<", "~=", "==", "===")


def check_requirement(text: object) -> str:
    """The requirement itself; `InvalidInput` for what pip would not understand either."""
    try:
        if not isinstance(text, str):
            raise InvalidRequirement(f"a requirement is text, not {type(text).__name__}")
        Requirement(text)
    except InvalidRequirement as error:
        said = str(error).partition("\n")[0]
        raise InvalidInput(f"The requirement {text!r} is not understood: {said}. It looks like requests>=2.31,<3.") from None
    return text


def missing_requirements(requirements: Sequence[str]) -> list[str]:
    """Those of the requirements that are not met here, each with why.

    Those whose marker does not hold here are not needed. Of extras, what they bring must be there as well.
    """
    missing: list[str] = []
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            missing.append(f"{text} (not understood)")
            continue
        if requirement.marker is None or requirement.marker.evaluate():
            missing += [f"{text} ({problem})" for problem in _problems(requirement, set())]
    return missing


def _problems(requirement: Requirement, seen: set[tuple[str, str]]) -> Iterator[str]:
    """What is wrong with what is installed; first of the package itself, then of what its extras need."""
    try:
        found = distribution(requirement.name)
    except PackageNotFoundError:
        yield "not installed"
        return
    if (unfit := _unfit(requirement.specifier, found.version)) is not None:
        yield unfit
    for extra in sorted(requirement.extras):
        if (key := (canonicalize_name(requirement.name), canonicalize_name(extra))) not in seen:
            seen.add(key)
            yield from _lacks(found, extra, seen)


def _lacks(found: Distribution, extra: str, seen: set[tuple[str, str]]) -> Iterator[str]:
    """What an extra of an installed package needs and does not have."""
    offered = {canonicalize_name(each) for each in found.metadata.get_all("Provides-Extra") or ()}
    if canonicalize_name(extra) not in offered:
        yield f"{found.version} has no extra {extra}"
        return
    for text in found.requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate() or not needed.marker.evaluate({"extra": extra}):
            continue  # not the extra's doing
        for problem in _problems(needed, seen):
            yield f"its extra {extra} needs {needed.name}{needed.specifier}: {problem}"


def _unfit(wanted: SpecifierSet, installed: str) -> str | None:
    """Why the installed version is not one of those wanted; None if it is. One that is out early counts like any other."""
    try:
        version = Version(installed)
    except InvalidVersion:
        return f"{installed} is installed, which is no version to compare"
    failed = [each for each in wanted if not each.contains(version, prereleases=True)]
    if not failed:
        return None
    for each in failed:
        try:
            bound = Version(each.version.removesuffix(".*"))
        except InvalidVersion:
            continue
        if each.operator in _AT_LEAST and version < bound:
            return f"{installed} is installed, which is too old"
        if each.operator in _AT_MOST and version > bound:
            return f"{installed} is installed, which is too new"
    return f"{installed} is installed"
