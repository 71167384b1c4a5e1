"""Checks the files that others read against their schemas: the workflows and forms of GitHub, Dependabot's, and the citation."""

from __future__ import annotations

from build_tools.assets import ROOT

GITHUB = ROOT / ".github"
FORMS = sorted(set(GITHUB.glob("ISSUE_TEMPLATE/*.yml")) - {GITHUB / "ISSUE_TEMPLATE/config.yml"})
SCHEMAS = {
    "vendor.github-workflows": [*sorted(GITHUB.glob("workflows/*.yml")), ROOT / "docs/snippets/ci.yml"],
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}


def check() -> None:
    """Report each invalid file and exit with 1."""
    from check_jsonschema import main  # slow to import

    for schema, files in SCHEMAS.items():
        main(["--quiet", "--builtin-schema", schema, *map(str, files)], standalone_mode=False)
