"""The documentation for models: an index, all of it in one file, and its pages; without a token."""

from __future__ import annotations

import re
from pathlib import Path

from tests.http.conftest import Stage

from treadle.version import VERSION

DOCS = Path(__file__).parents[2] / "docs"


async def test_the_index_names_every_page_and_each_is_served(stage: Stage) -> None:
    async with stage.client() as client:
        index = await client.get("/llms.txt")
        assert index.headers["Content-Type"].startswith("text/plain")
        assert index.text.startswith("# Treadle\n\n> ")
        assert VERSION in index.text
        named = dict(re.findall(r"^- \[.+?\]\(docs/(.+?)\): (.+)$", index.text, re.M))
        assert set(named) == {str(page.relative_to(DOCS)) for page in DOCS.glob("*/**/*.md") if page.parent != DOCS / "adr"}
        page = await client.get("/docs/how-to/coding-agents.md")
        assert page.headers["Content-Type"].startswith("text/markdown")
        whole = (await client.get("/llms-full.txt")).text
        assert page.text.strip() in whole
        assert len(re.findall(r"^<!-- .+\.md -->$", whole, re.M)) == len(named)
        for missing in ("/docs/how-to/none.md", "/docs/how-to/..%2F..%2Fpyproject.toml", "/docs/adr/decisions.md"):
            assert (await client.get(missing)).status_code == 404
