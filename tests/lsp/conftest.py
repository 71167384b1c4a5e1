from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.lsp.editor import Editor, edited


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def editor(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Editor]:
    """A server for all tests of a module, on an empty folder."""
    folder: Path = tmp_path_factory.mktemp("workspace")
    async with edited(folder) as session:
        yield session
