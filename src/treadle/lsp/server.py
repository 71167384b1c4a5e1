"""Connects the server's parts to a client over stdio."""

from __future__ import annotations

import asyncio

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, default_converter

from treadle.lang import CannotFormat, Severity, format_source
from treadle.lang.diagnostics import Diagnostic
from treadle.lang.tree import Span
from treadle.lsp import outline
from treadle.lsp.document import Document
from treadle.lsp.workspace import Workspace, path_of, uri_of
from treadle.version import package_version

_PAUSE = 0.02  # seconds after the last keystroke before diagnostics are computed
_SEVERITIES = {Severity.ERROR: types.DiagnosticSeverity.Error, Severity.WARNING: types.DiagnosticSeverity.Warning}


class _Protocol(LanguageServerProtocol):
    """Leaves texts to `Workspace`: pygls would split lines at more characters than the protocol names."""

    lsp_text_document__did_open = None  # type: ignore[assignment]
    lsp_text_document__did_change = None  # type: ignore[assignment]
    lsp_text_document__did_close = None  # type: ignore[assignment]


class Server(LanguageServer):
    """One client's workspace, and the publication of diagnostics."""

    def __init__(self) -> None:
        super().__init__("treadle", package_version(), protocol_cls=_Protocol, converter_factory=default_converter)
        self.files = Workspace()
        self._published: dict[str, list[types.Diagnostic]] = {}
        self._waiting: asyncio.TimerHandle | None = None

    def open(self, uri: str) -> tuple[str, Document]:
        """Return the path and the text that a request is about."""
        path = path_of(uri)
        if path not in self.files.documents:
            self.files.read(path)
        if path not in self.files.documents:
            raise JsonRpcException(f"{path} is not open and cannot be read.", types.LSPErrorCodes.RequestFailed)
        return path, self.files.documents[path]

    def publish_soon(self) -> None:
        """Publish diagnostics when the client has paused; a burst of edits is checked once."""
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = asyncio.get_running_loop().call_later(_PAUSE, self.publish)

    def publish(self) -> None:
        """Publish the diagnostics of open files that changed, and clear those of closed ones."""
        self._waiting = None
        for path in sorted(self.files.open | set(self._published)):
            document = self.files.documents.get(path)
            if path not in self.files.open or document is None:
                if self._published.pop(path, None):
                    self._publish(path, [], None)
                continue
            found = [self._diagnostic(each, document) for each in self.files.diagnostics(path)]
            self._published[path] = found
            self._publish(path, found, document.version)

    def _publish(self, path: str, found: list[types.Diagnostic], version: int | None) -> None:
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri_of(path), found, version))

    def _diagnostic(self, each: Diagnostic, document: Document) -> types.Diagnostic:
        lines = [each.message]
        lines += [f"did you mean `{each.suggestion}`?"] if each.suggestion else []
        lines += [f"valid here: {', '.join(each.valid)}"] if each.valid else []
        lines += [f"help: {each.help}"] if each.help else []
        span = Span(each.line, each.column, each.end_line, each.end_column)
        return types.Diagnostic(document.span_range(span), "\n".join(lines), _SEVERITIES[each.severity], each.rule, source="afl")


def make_server() -> Server:
    """Return a server with all requests registered."""
    server = Server()
    _add_documents(server)
    _add_outline(server)
    return server


def _add_documents(server: Server) -> None:
    files = server.files

    @server.feature(types.INITIALIZED)
    def initialized(_: types.InitializedParams) -> None:
        files.encoding = str(server.workspace.position_encoding or "utf-16")
        folders = [path_of(uri) for uri in server.workspace.folders]
        if not folders and server.workspace.root_uri:
            folders = [path_of(server.workspace.root_uri)]
        files.folders = folders
        for folder in folders:
            files.scan(folder)
        watched = server.client_capabilities.workspace and server.client_capabilities.workspace.did_change_watched_files
        if watched and watched.dynamic_registration:
            options = types.DidChangeWatchedFilesRegistrationOptions([types.FileSystemWatcher("**/*.afl")])
            wanted = types.Registration("watch", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
            server.client_register_capability(types.RegistrationParams([wanted]))

    @server.feature(types.TEXT_DOCUMENT_DID_OPEN)
    def did_open(params: types.DidOpenTextDocumentParams) -> None:
        item = params.text_document
        path = path_of(item.uri)
        files.open.add(path)
        files.set(path, Document(item.text, item.version, files.encoding))
        server.publish_soon()

    @server.feature(types.TEXT_DOCUMENT_DID_CHANGE)
    def did_change(params: types.DidChangeTextDocumentParams) -> None:
        path, document = server.open(params.text_document.uri)
        files.set(path, document.changed(list(params.content_changes), params.text_document.version))
        server.publish_soon()

    @server.feature(types.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: types.DidCloseTextDocumentParams) -> None:
        path = path_of(params.text_document.uri)
        files.open.discard(path)
        files.read(path)
        server.publish_soon()

    @server.feature(types.WORKSPACE_DID_CHANGE_WATCHED_FILES)
    def did_change_watched_files(params: types.DidChangeWatchedFilesParams) -> None:
        for change in params.changes:
            files.read(path_of(change.uri))
        server.publish_soon()

    @server.feature(types.TEXT_DOCUMENT_FORMATTING)
    def formatting(params: types.DocumentFormattingParams) -> list[types.TextEdit] | None:
        _, document = server.open(params.text_document.uri)
        try:
            text = format_source(document.text)
        except CannotFormat:
            return None
        return [] if text == document.text else [types.TextEdit(document.range(0, len(document.text)), text)]


def _add_outline(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_SYMBOL)
    def document_symbol(params: types.DocumentSymbolParams) -> list[types.DocumentSymbol]:
        path, document = server.open(params.text_document.uri)
        return outline.document_symbols(server.files.analysis(path).files[path].tree, document)

    @server.feature(types.WORKSPACE_SYMBOL)
    def workspace_symbol(params: types.WorkspaceSymbolParams) -> list[types.WorkspaceSymbol]:
        found: list[types.WorkspaceSymbol] = []
        for path, document in sorted(server.files.documents.items()):
            symbols = outline.document_symbols(server.files.analysis(path).files[path].tree, document)
            for container, symbol in outline.flat(symbols):
                if params.query.lower() in symbol.name.lower():
                    place = types.Location(uri_of(path), symbol.selection_range)
                    found.append(types.WorkspaceSymbol(place, symbol.name, symbol.kind, container_name=container or None))
        return found

    @server.feature(types.TEXT_DOCUMENT_FOLDING_RANGE)
    def folding_range(params: types.FoldingRangeParams) -> list[types.FoldingRange]:
        return outline.folding(server.open(params.text_document.uri)[1])
