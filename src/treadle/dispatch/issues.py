"""GitHub issues: typed, checked, and the same in Python and in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from treadle.model.errors import InvalidInput
from treadle.model.values import Json

_Id = Annotated[int, msgspec.Meta(ge=1)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_FullName = Annotated[str, msgspec.Meta(pattern=r"^[^/\s]+/[^/\s]+$")]


class InvalidIssue(InvalidInput):
    """The enqueued object is not a GitHub issue; the message names the field."""

    code = "invalid_issue"


class Label(msgspec.Struct, frozen=True):
    """A label of an issue."""

    name: _Text


class Owner(msgspec.Struct, frozen=True):
    """The owner of a repository."""

    login: _Text


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    """The repository of an issue."""

    id: _Id
    name: _Text
    full_name: _FullName
    owner: Owner
    clone_url: _Text
    default_branch: _Text


class Installation(msgspec.Struct, frozen=True):
    """The installation of the GitHub app that sent the issue."""

    id: _Id


class GitHubIssue(msgspec.Struct, frozen=True, kw_only=True):
    """An issue; other fields of GitHub are dropped."""

    id: _Id
    number: _Id
    title: _Text
    body: str | None = None
    labels: list[Label] = []
    repository: Repository
    installation: Installation | None = None


def make_issue(given: GitHubIssue | Mapping[str, Any]) -> GitHubIssue:
    """Check an issue from a JSON object (or a Python object); raise `InvalidIssue`, which names the invalid field."""
    if not isinstance(given, GitHubIssue | Mapping):
        raise InvalidIssue(f"A GitHub issue is a JSON object, not {type(given).__name__}.")
    try:
        return msgspec.convert(msgspec.to_builtins(given), GitHubIssue)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise InvalidIssue(f"This is not a GitHub issue: {str(error).replace('`$', '`issue')}.") from None


def issue_json(issue: GitHubIssue) -> dict[str, Json]:
    """Return the issue as JSON, without an absent installation."""
    made: dict[str, Json] = msgspec.to_builtins(issue)
    if issue.installation is None:
        del made["installation"]
    return made
