"""Connects the server's parts to a client over stdio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException, PyglsError
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, default_converter

from treadle.interfaces.lsp import actions, description, hints, navigation, outline, semantic_tokens
from treadle.interfaces.lsp.completion import complete
from treadle.interfaces.lsp.context import context_at
from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import Index, Occurrence
from treadle.interfaces.lsp.workspace import Workspace, path_of, uri_of
from treadle.lang import CannotFormat, format_source
from treadle.version import VERSION

_PAUSE = 0.02  # seconds after the last keystroke before diagnostics are computed


class _Protocol(LanguageServerProtocol):
    """Leaves texts to `Workspace`: pygls would split lines at more characters than the protocol names."""

    lsp_text_document__did_open = None  # type: ignore[assignment]
    lsp_text_document__did_change = None  # type: ignore[assignment]
    lsp_text_document__did_close = None  # type: ignore[assignment]


class Server(LanguageServer):
    """One client's workspace, and the publication of diagnostics."""

    def __init__(self) -> None:
        super().__init__("treadle", VERSION, protocol_cls=_Protocol, converter_factory=default_converter)
        self.files = Workspace()
        self._published: dict[str, types.PublishDiagnosticsParams] = {}
        self._waiting: asyncio.TimerHandle | None = None
        self._is_reporting = False

    def report_server_error(self, error: Exception, source: type[PyglsError | JsonRpcException]) -> None:
        """Show an error to the client, unless that is what failed: with a closed connection, pygls would report endlessly."""
        if not self._is_reporting:
            self._is_reporting = True
            try:
                super().report_server_error(error, source)
            finally:
                self._is_reporting = False

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
            if path in self.files.open and document is not None:
                found = [actions.diagnostic(each, document) for each in self.files.diagnostics(path)]
                news = types.PublishDiagnosticsParams(uri_of(path), found, document.version)
                if news != self._published.get(path):
                    self._published[path] = news
                    self.text_document_publish_diagnostics(news)
            elif self._published.pop(path, None):
                self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri_of(path), []))


def make_server() -> Server:
    """Return a server with all requests registered."""
    server = Server()
    _add_documents(server)
    _add_outline(server)
    _add_names(server)
    _add_writing(server)
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


def _add_names(server: Server) -> None:
    def name_at(params: Any) -> tuple[Index, str, Document, Occurrence | None]:
        path, document = server.open(params.text_document.uri)
        index = server.files.index(path)
        return index, path, document, index.at(path, document.offset(params.position))

    @server.feature(types.TEXT_DOCUMENT_HOVER)
    def hover(params: types.HoverParams) -> types.Hover | None:
        index, _, document, found = name_at(params)
        if found is None:
            return None
        text = description.hover_text(found.symbol, index)
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), document.range(found.start, found.end))

    @server.feature(types.TEXT_DOCUMENT_DEFINITION)
    def definition(params: types.DefinitionParams) -> list[types.Location]:
        index, _, _, found = name_at(params)
        return [] if found is None else list(navigation.definitions(index, found.symbol))

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(params: types.ReferenceParams) -> list[types.Location]:
        index, _, _, found = name_at(params)
        return [
            types.Location(uri_of(path), server.files.documents[path].range(each.start, each.end))
            for path, each in (navigation.everywhere(server.files, index, found.symbol) if found else ())
            if params.context.include_declaration or not each.is_declaration
        ]

    @server.feature(types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT)
    def document_highlight(params: types.DocumentHighlightParams) -> list[types.DocumentHighlight]:
        index, path, document, found = name_at(params)
        kinds = types.DocumentHighlightKind
        return [
            types.DocumentHighlight(document.range(each.start, each.end), kinds.Write if each.is_declaration else kinds.Read)
            for place, each in (index.references(found.symbol) if found else ())
            if place == path
        ]

    @server.feature(types.TEXT_DOCUMENT_PREPARE_RENAME)
    def prepare_rename(params: types.PrepareRenameParams) -> types.Range | None:
        _, _, document, found = name_at(params)
        if found is None:
            return None
        with _refused():
            navigation.check_rename(found.symbol)
        return document.range(found.start, found.end)

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        index, _, _, found = name_at(params)
        if found is None:
            return None
        with _refused():
            return types.WorkspaceEdit(navigation.rename(server.files, index, found.symbol, params.new_name))

    @server.feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, semantic_tokens.LEGEND)
    def semantic_tokens_full(params: types.SemanticTokensParams) -> types.SemanticTokens:
        path, document = server.open(params.text_document.uri)
        return types.SemanticTokens(semantic_tokens.semantic_tokens(server.files.index(path), path, document))

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    def inlay_hint(params: types.InlayHintParams) -> list[types.InlayHint]:
        path, document = server.open(params.text_document.uri)
        start, end = document.offset(params.range.start), document.offset(params.range.end)
        return hints.inlay_hints(server.files.index(path), path, document, start, end)


def _add_writing(server: Server) -> None:
    @server.feature(types.TEXT_DOCUMENT_COMPLETION, types.CompletionOptions(trigger_characters=[".", "$", "(", ",", ":", "="]))
    def completion(params: types.CompletionParams) -> list[types.CompletionItem]:
        path, document = server.open(params.text_document.uri)
        context = context_at(document.text, document.offset(params.position))
        return complete(server.files.surroundings(path), path, context)

    @server.feature(types.TEXT_DOCUMENT_SIGNATURE_HELP, types.SignatureHelpOptions(["(", ","], ["="]))
    def signature_help(params: types.SignatureHelpParams) -> types.SignatureHelp | None:
        path, document = server.open(params.text_document.uri)
        context = context_at(document.text, document.offset(params.position))
        return hints.signature_help(server.files.surroundings(path), path, context)

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions([types.CodeActionKind.QuickFix]))
    def code_action(params: types.CodeActionParams) -> list[types.CodeAction]:
        path, document = server.open(params.text_document.uri)
        start, end = document.offset(params.range.start), document.offset(params.range.end)
        found = server.files.diagnostics(path)
        return actions.code_actions(found, document, params.text_document.uri, start, end)


@contextmanager
def _refused() -> Iterator[None]:
    """Report a refused rename to the client as a failed request."""
    try:
        yield
    except navigation.CannotRename as error:
        raise JsonRpcException(str(error), types.LSPErrorCodes.RequestFailed) from None
