"""A client that edits files as an editor does, with a real `treadle lsp` process behind it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls import uris
from pygls.lsp.client import LanguageClient

LIMIT = 120  # seconds; only a hang takes that long


class Client(LanguageClient):
    """Collects published diagnostics."""

    def __init__(self) -> None:
        super().__init__("tests", "1")
        self.published: dict[str, types.PublishDiagnosticsParams] = {}
        self.news = asyncio.Condition()
        self.messages: list[str] = []

        @self.feature(types.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
        async def publish(params: types.PublishDiagnosticsParams) -> None:
            async with self.news:
                self.published[params.uri] = params
                self.news.notify_all()

        @self.feature(types.WINDOW_SHOW_MESSAGE)
        def show(params: types.ShowMessageParams) -> None:
            self.messages.append(params.message)


@dataclass
class Editor:
    """A session with a server on one folder."""

    client: Client
    folder: Path
    capabilities: types.ServerCapabilities
    versions: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def uri(self, name: str) -> str:
        return uris.from_fs_path(str(self.folder / name)) or ""

    def document(self, name: str) -> types.TextDocumentIdentifier:
        return types.TextDocumentIdentifier(self.uri(name))

    async def open(self, name: str, text: str | None = None) -> list[types.Diagnostic]:
        """Open a file with its own or another text; return its diagnostics."""
        if text is None:
            text = (self.folder / name).read_bytes().decode()
        if name in self.versions:
            return await self.change(name, text)
        self.versions[name], self.texts[name] = 1, text
        item = types.TextDocumentItem(self.uri(name), "afl", 1, text)
        self.client.text_document_did_open(types.DidOpenTextDocumentParams(item))
        return await self.diagnostics(name)

    async def close(self, name: str) -> None:
        self.client.text_document_did_close(types.DidCloseTextDocumentParams(self.document(name)))
        del self.versions[name]

    async def change(self, name: str, *changes: str | tuple[types.Range, str]) -> list[types.Diagnostic]:
        """Send changes of one notification, whole texts or parts; return the diagnostics of the result."""
        self.versions[name] += 1
        events: list[Any] = []
        for change in changes:
            if isinstance(change, str):
                self.texts[name] = change
                events.append(types.TextDocumentContentChangeWholeDocument(change))
            else:
                events.append(types.TextDocumentContentChangePartial(*change))
        version = types.VersionedTextDocumentIdentifier(self.versions[name], self.uri(name))
        self.client.text_document_did_change(types.DidChangeTextDocumentParams(version, events))
        return await self.diagnostics(name)

    async def diagnostics(self, name: str) -> list[types.Diagnostic]:
        """Return the diagnostics of the current version, when they arrive."""

        def current() -> bool:
            seen = self.client.published.get(self.uri(name))
            return seen is not None and seen.version == self.versions[name]

        async with asyncio.timeout(LIMIT), self.client.news:
            await self.client.news.wait_for(current)
        return list(self.client.published[self.uri(name)].diagnostics)

    def at(self, name: str, marker: str, offset: int = 0, *, occurrence: int = 0) -> types.Position:
        """Return the position of a piece of text, plus an offset in characters."""
        text, start = self.texts[name], -1
        for _ in range(occurrence + 1):
            start = text.index(marker, start + 1)
        return position_of(text, start + offset)

    def place(self, name: str, marker: str, offset: int = 0, *, occurrence: int = 0) -> dict[str, Any]:
        """Return the parameters of a request at a place."""
        return {"text_document": self.document(name), "position": self.at(name, marker, offset, occurrence=occurrence)}

    def text_of(self, name: str, place: types.Range) -> str:
        """Return the text of a range, read as the protocol defines it."""
        text = self.texts.get(name) or (self.folder / name).read_bytes().decode()
        return text[offset_of(text, place.start) : offset_of(text, place.end)]


def position_of(text: str, offset: int) -> types.Position:
    """Return a position in UTF-16 units; written apart from the server's own conversion."""
    before = text[:offset].replace("\r\n", "\n\n").replace("\r", "\n")
    line = text[:offset].replace("\r\n", "\n").replace("\r", "\n").count("\n")
    return types.Position(line, len(before[before.rfind("\n") + 1 :].encode("utf-16-le")) // 2)


def offset_of(text: str, position: types.Position) -> int:
    for offset in range(len(text) + 1):
        if position_of(text, offset) == position:
            return offset
    raise AssertionError(f"{position} is not a position of the text")


@asynccontextmanager
async def edited(folder: Path, **general: Any) -> AsyncIterator[Editor]:
    """Start a server on a folder; at the end it must stop by itself, without having shown an error."""
    client = Client()
    await client.start_io(sys.executable, "-m", "treadle", "lsp", "--stdio")
    uri = uris.from_fs_path(str(folder)) or ""
    asked = types.InitializeParams(
        types.ClientCapabilities(**general), root_uri=uri, workspace_folders=[types.WorkspaceFolder(uri, folder.name)]
    )
    async with asyncio.timeout(LIMIT):
        answer = await client.initialize_async(asked)
    client.initialized(types.InitializedParams())
    yield Editor(client, folder, answer.capabilities)
    async with asyncio.timeout(LIMIT):
        await client.shutdown_async(None)
        client.exit(None)
        await client._server.wait()
        await client.stop()
    assert client._server.returncode == 0
    assert client.messages == []
