"""Requirements of a handler in pip's syntax, compared with the installed packages."""

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
    """Parse a requirement; raise `InvalidInput` if pip could not parse it either."""
    try:
        if not isinstance(text, str):
            raise InvalidRequirement(f"a requirement is text, not {type(text).__name__}")
        Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        raise InvalidInput(f"The requirement {text!r} is invalid: {reason}. Write it like requests>=2.31,<3.") from None
    return text


def missing_requirements(requirements: Sequence[str]) -> list[str]:
    """Return the unmet requirements, each with the reason.

    A requirement with a marker that does not apply here is met. The dependencies of its extras must be installed as well.
    """
    missing: list[str] = []
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            missing.append(f"{text} (invalid)")
            continue
        if requirement.marker is None or requirement.marker.evaluate():
            missing += [f"{text} ({problem})" for problem in _problems(requirement, set())]
    return missing


def _problems(requirement: Requirement, seen: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the problems of the installed package, then those of its extras."""
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
    """Yield the unmet dependencies of an extra of an installed package."""
    offered = {canonicalize_name(each) for each in found.metadata.get_all("Provides-Extra") or ()}
    if canonicalize_name(extra) not in offered:
        yield f"{found.version} has no extra {extra}"
        return
    for text in found.requires or ():
        needed = Requirement(text)
        if needed.marker is None or needed.marker.evaluate() or not needed.marker.evaluate({"extra": extra}):
            continue  # not a dependency of the extra
        for problem in _problems(needed, seen):
            yield f"its extra {extra} needs {needed.name}{needed.specifier}: {problem}"


def _unfit(wanted: SpecifierSet, installed: str) -> str | None:
    """Return the reason why the installed version does not match; None if it does. Pre-releases count like releases."""
    try:
        version = Version(installed)
    except InvalidVersion:
        return f"{installed} is installed, which is not a comparable version"
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
