"""Connects the server's parts to a client over stdio; diagnostics with their fixes, and requests about one name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException, PyglsError
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, default_converter

from treadle.interfaces.lsp import description, outline
from treadle.interfaces.lsp.completion import complete
from treadle.interfaces.lsp.context import context_at
from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import Index, Occurrence, Parser, Symbol, analyse
from treadle.interfaces.lsp.workspace import Workspace, path_of, uri_of
from treadle.lang import CannotFormat, format_source
from treadle.lang.declare import SOURCE
from treadle.lang.diagnostics import Diagnostic, Severity
from treadle.lang.names import Kind
from treadle.lang.tokens import KEYWORDS, TYPES
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
                found = [diagnostic(each, document) for each in self.files.diagnostics(path)]
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
        return [] if found is None else list(definitions(index, found.symbol))

    @server.feature(types.TEXT_DOCUMENT_REFERENCES)
    def references(params: types.ReferenceParams) -> list[types.Location]:
        index, _, _, found = name_at(params)
        return [
            types.Location(uri_of(path), server.files.documents[path].range(each.start, each.end))
            for path, each in (everywhere(server.files, index, found.symbol) if found else ())
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
            check_rename(found.symbol)
        return document.range(found.start, found.end)

    @server.feature(types.TEXT_DOCUMENT_RENAME, types.RenameOptions(prepare_provider=True))
    def rename(params: types.RenameParams) -> types.WorkspaceEdit | None:
        index, _, _, found = name_at(params)
        if found is None:
            return None
        with _refused():
            return types.WorkspaceEdit(rename_edits(server.files, index, found.symbol, params.new_name))

    @server.feature(types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL, outline.LEGEND)
    def semantic_tokens_full(params: types.SemanticTokensParams) -> types.SemanticTokens:
        path, document = server.open(params.text_document.uri)
        return types.SemanticTokens(outline.semantic_tokens(server.files.index(path), path, document))

    @server.feature(types.TEXT_DOCUMENT_INLAY_HINT)
    def inlay_hint(params: types.InlayHintParams) -> list[types.InlayHint]:
        path, document = server.open(params.text_document.uri)
        start, end = document.offset(params.range.start), document.offset(params.range.end)
        return description.inlay_hints(server.files.index(path), path, document, start, end)


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
        return description.signature_help(server.files.surroundings(path), path, context)

    @server.feature(types.TEXT_DOCUMENT_CODE_ACTION, types.CodeActionOptions([types.CodeActionKind.QuickFix]))
    def code_action(params: types.CodeActionParams) -> list[types.CodeAction]:
        path, document = server.open(params.text_document.uri)
        start, end = document.offset(params.range.start), document.offset(params.range.end)
        found = server.files.diagnostics(path)
        return code_actions(found, document, params.text_document.uri, start, end)


@contextmanager
def _refused() -> Iterator[None]:
    """Report a refused rename to the client as a failed request."""
    try:
        yield
    except CannotRename as error:
        raise JsonRpcException(str(error), types.LSPErrorCodes.RequestFailed) from None


# --- code actions ----------------------------------------------------------------------------------------------------

_SEVERITIES = {Severity.ERROR: types.DiagnosticSeverity.Error, Severity.WARNING: types.DiagnosticSeverity.Warning}


def diagnostic(each: Diagnostic, document: Document) -> types.Diagnostic:
    """Return a diagnostic for the protocol, with its hints below the message."""
    lines = [each.message]
    lines += [f"did you mean `{each.suggestion}`?"] if each.suggestion else []
    lines += [f"valid here: {', '.join(each.valid)}"] if each.valid else []
    lines += [f"help: {each.help}"] if each.help else []
    severity = _SEVERITIES[each.severity]
    return types.Diagnostic(document.span_range(each.span), "\n".join(lines), severity, each.rule, source="afl")


def code_actions(found: list[Diagnostic], document: Document, uri: str, start: int, end: int) -> list[types.CodeAction]:
    """Return the fixes of the diagnostics that touch a part of the text; the likeliest one is preferred."""
    actions = []
    for each in found:
        first, last = document.offsets(each.span)
        if last < start or end < first:
            continue
        for number, fix in enumerate(each.fixes):
            edits = [types.TextEdit(document.span_range(edit.span), edit.text) for edit in fix.edits]
            actions.append(
                types.CodeAction(
                    fix.title,
                    types.CodeActionKind.QuickFix,
                    [diagnostic(each, document)],
                    is_preferred=number == 0 or None,
                    edit=types.WorkspaceEdit({uri: edits}),
                )
            )
    return actions


# --- definitions, references, highlights and rename ------------------------------------------------------------------

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_QUALIFIED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_FIXED = frozenset([Kind.TYPE, Kind.MIXIN, Kind.ERROR, Kind.SCRIPT, Kind.FUNCTION])
_STEP_KEYWORDS = frozenset(
    ["after", "as", "collectErrors", "failFast", "foreach", "in", "with"]
)  # the only keywords that may name a step


class CannotRename(ValueError):
    """A name that cannot be changed, or not to this one."""


def definitions(index: Index, symbol: Symbol) -> Iterator[types.Location]:
    """Yield the place of a declaration; of a namespace, every place that opens it."""
    if symbol.span is not None and symbol.path in index.documents:
        yield types.Location(uri_of(symbol.path), index.documents[symbol.path].span_range(symbol.span))
    elif symbol.kind is Kind.NAMESPACE:
        for path, each in index.references(symbol):
            if each.is_declaration:
                yield types.Location(uri_of(path), index.documents[path].range(each.start, each.end))


def everywhere(workspace: Workspace, index: Index, symbol: Symbol) -> list[tuple[str, Occurrence]]:
    """Return all occurrences of a name, in all programs that contain its declaration."""
    found: dict[tuple[str, int], Occurrence] = {}
    for each in workspace.indexes():
        known = each is index or symbol.path in each.documents
        if known or (symbol.kind is Kind.NAMESPACE and not set(each.documents).isdisjoint(index.documents)):
            for path, occurrence in each.references(symbol):
                found[path, occurrence.start] = occurrence
    return [(path, each) for (path, _), each in sorted(found.items())]


def check_rename(symbol: Symbol) -> None:
    """Raise `CannotRename` for a name that is built in."""
    if symbol.kind in _FIXED or symbol.path == SOURCE.name:
        sort = "a value of a script" if symbol.kind is Kind.SCRIPT else "built in"
        raise CannotRename(f"`{symbol.name}` is {sort} and cannot be renamed.")


def rename_edits(workspace: Workspace, index: Index, symbol: Symbol, name: str) -> dict[str, list[types.TextEdit]]:
    """Return the edits that rename a name everywhere, by URI."""
    check_rename(symbol)
    pattern = _QUALIFIED if symbol.kind is Kind.NAMESPACE else _IDENTIFIER
    if not pattern.fullmatch(name):
        raise CannotRename(f"`{name}` is not a name: use letters, digits and `_`, and begin with a letter or `_`.")
    if symbol.kind in (Kind.STEP, Kind.VALUE) and name in KEYWORDS.keys() - _STEP_KEYWORDS:
        raise CannotRename(f"`{name}` is a keyword and cannot name a step.")
    if symbol.kind is Kind.SCHEMA and name in TYPES:
        raise CannotRename(f"`{name}` is a built-in type.")
    if symbol.kind is Kind.PARAMETER and name.startswith("_"):
        raise CannotRename("Parameters that begin with `_` belong to the runner.")
    places = everywhere(workspace, index, symbol)
    edits: dict[str, list[types.TextEdit]] = {}
    texts = {path: document.text for path, document in workspace.documents.items()}
    for path, each in reversed(places):
        document = workspace.documents[path]
        edits.setdefault(uri_of(path), []).append(types.TextEdit(document.range(each.start, each.end), name))
        texts[path] = texts[path][: each.start] + name + texts[path][each.end :]
    touched = {path for path, _ in places}
    for other in workspace.indexes():
        if touched & set(other.documents) and not _same_meaning(other, texts):
            raise CannotRename(f"`{name}` cannot be used: a name would get another meaning, or an error would appear.")
    return edits


def _same_meaning(before: Index, texts: dict[str, str]) -> bool:
    """Return whether each name of the new texts means what it meant before, and there is no new error."""
    parser = Parser()
    analysis = analyse({path: parser.parse(path, texts[path]) for path in before.documents})
    after = Index(analysis, {path: Document(texts[path]) for path in before.documents})
    pairs = set()
    for path in before.documents:
        old, new = before.occurrences(path), after.occurrences(path)
        if len(old) != len(new) or _errors(after, path) > _errors(before, path):
            return False
        pairs |= {(one.symbol.key, other.symbol.key) for one, other in zip(old, new, strict=True)}
    return len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})


def _errors(index: Index, path: str) -> int:
    return sum(each.severity is Severity.ERROR for each in index.analysis.diagnostics[path])
