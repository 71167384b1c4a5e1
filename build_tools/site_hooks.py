"""MkDocs hooks: pages written for the repository (GitHub's Markdown, relative links) become pages of the site.

- Links to files outside `docs/` (`../../examples/...`) lead to the repository, `repo_url` of `mkdocs.yml`.
- A list needs no empty line before it, as on GitHub.
- Blocks that `docs.generate` fills from docstrings become directives of mkdocstrings.
- Marks of code blocks for tests (`python fragment`, `afl wrong`) are removed.
"""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))  # the commands `mkdocs` and `mike` do not
from build_tools import mermaid

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

_LOG = logging.getLogger("mkdocs.hooks.treadle")
_MERMAID = "assets/javascripts/mermaid.js"
_FENCE = re.compile(r"^ *(?P<marks>```+|~~~+)")
_MARK = re.compile(r" (?:fragment|wrong)\b")
_LINK = re.compile(r"(?P<before>\]\()(?P<target>\.\.?/[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
_ITEM = re.compile(r"^(?:[-*+]|1\.) ")
_PYTHON = re.compile(r"<!-- python: (?P<path>\S+)(?P<flags>[^>]*?) -->\n.*?<!-- /python -->\n?", re.S)
_BRANCH = "main"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Called by MkDocs with the text of each page."""
    if page.file.src_uri.startswith("reference/"):
        page.meta.setdefault("search", {"boost": 0.5})  # guides come first
    markdown = _PYTHON.sub(_directive, markdown)
    docs = Path(config.docs_dir)
    place = docs / page.file.src_uri
    return "\n".join(
        line if in_code else links_to_repository(line, place, docs, str(config.repo_url))
        for line, in_code in with_blank_lines(markdown.split("\n"))
    )


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs with the files of the site: adds the script for diagrams."""
    from mkdocs.structure.files import File

    if script := mermaid.fetch():
        files.append(File.generated(config, _MERMAID, abs_src_path=str(script)))
    else:
        _LOG.info("Mermaid could not be fetched from npm: diagrams are shown as text.")
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Called by MkDocs with the content of each page: pages with a diagram load its script."""
    from mkdocs.utils import get_relative_url

    if 'class="mermaid"' not in html or files.get_file_from_path(_MERMAID) is None:
        return html
    return f'{html}\n<script src="{get_relative_url(_MERMAID, page.url)}"></script>'


def _directive(match: re.Match[str]) -> str:
    """The directive of mkdocstrings for a name; the page keeps the anchor that its heading has in the repository."""
    flags, name = match["flags"].split(), match["path"].rpartition(".")[2]
    hidden = [f"!^{each[1:]}$" for each in flags if each.startswith("-")]
    options = [f"      filters: {json.dumps(['!^_', *hidden])}"] if hidden else []
    options += ["      merge_init_into_class: false"] * ("-__init__" in flags)
    only = [each[1:] for each in flags if each.startswith("+")]
    options += [f"      members: {json.dumps(only)}"] if only else []
    options += ["      show_if_no_docstring: true"] * ("fields" in flags) + ["      members: false"] * ("brief" in flags)
    head = f'<a id="{name.lower()}"></a>\n\n::: {match["path"]}\n'
    return head + "".join(f"{line}\n" for line in (["    options:", *options] if options else []))


def links_to_repository(line: str, page: Path, docs: Path, repository: str) -> str:
    """Replace links to existing files and folders outside `docs` by their address in the repository."""

    def replaced(match: re.Match[str]) -> str:
        place = (page.parent / match["target"]).resolve()
        root = docs.resolve().parent
        if place.is_relative_to(docs.resolve()) or not place.is_relative_to(root) or not place.exists():
            return match[0]
        kind = "tree" if place.is_dir() else "blob"
        return f"{match['before']}{repository.rstrip('/')}/{kind}/{_BRANCH}/{place.relative_to(root)}{match['anchor'] or ''}"

    return _LINK.sub(replaced, line)


def with_blank_lines(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """Yield each line and whether it is code; an empty line precedes every list that follows a paragraph."""
    fence, before, in_list = "", "", False
    for line in lines:
        found = _FENCE.match(line)
        if fence:
            yield line, True
            if found and found["marks"].startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
        elif found:
            fence = found["marks"]
            yield _MARK.sub("", line), True
        else:
            item = _ITEM.match(line) is not None
            if item and before.strip() and not in_list:
                yield "", False
            in_list = item or (in_list and bool(line.strip()))
            yield line, False
        before = line
