"""The version in the manifests of the extension for VS Code and the grammar for tree-sitter; the rest is written by hand."""

from __future__ import annotations

import re

from build_tools.assets import ROOT
from treadle.version import VERSION

_MANIFESTS = ("vscode/package.json", "tree-sitter-afl/package.json", "tree-sitter-afl/tree-sitter.json")


def files() -> dict[str, str]:
    return {
        name: re.sub(r'"version": "[^"]*"', f'"version": "{VERSION}"', (ROOT / "editors" / name).read_text("utf-8"), count=1)
        for name in _MANIFESTS
    }
