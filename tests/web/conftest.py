"""The dashboard in process: an engine with a worker's handlers, and a browser that does not run scripts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import httpx
import pytest

from treadle.engine import Engine
from treadle.interfaces.http.app import make_app
from treadle.interfaces.web.site import add_pages


@dataclass
class Visit:
    """An engine, and somebody who looks at its pages."""

    engine: Engine
    browser: httpx.AsyncClient

    def anew(self) -> AbstractAsyncContextManager[Visit]:
        """The same engine under a new server, which looks for tokens at once."""
        return visiting(self.engine)

    async def page(self, path: str) -> str:
        """The text of a page that must be there."""
        answer = await self.browser.get(path)
        assert answer.status_code == 200, answer.text
        return answer.text

    async def do(self, path: str, **fields: str) -> str:
        """Send a form, and the text of the page that it leads to."""
        answer = await self.browser.post(path, data=fields, follow_redirects=True)
        assert answer.status_code == 200, answer.text
        return answer.text


@asynccontextmanager
async def visiting(engine: Engine) -> AsyncIterator[Visit]:
    """Somebody who looks at the pages of that engine; the server is open if there are no tokens."""
    transport = httpx.ASGITransport(make_app(engine, open_access=not await engine.kernel.tokens.any_live(), more=(add_pages,)))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as browser:
        yield Visit(engine, browser)


@pytest.fixture
async def visit() -> AsyncIterator[Visit]:
    """A dashboard on a store in memory, open on loopback."""
    engine = Engine("memory://")

    @engine.handler("greet")
    async def greet(payload: dict[str, str]) -> dict[str, str]:
        return {"hello": payload["name"]}

    async with engine, visiting(engine) as visit:
        yield visit
