"""Connects the server's parts to a client over stdio; diagnostics with their fixes, and requests about one name."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException, PyglsError
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, default_converter

from treadle.interfaces.lsp import description, outline
from treadle.interfaces.lsp.completion import complete
from treadle.interfaces.lsp.context import context_at
from treadle.interfaces.lsp.document import Document
from treadle.interfaces.lsp.index import Occurrence, ProgramIndex, analyse, key_of, parse_text
from treadle.interfaces.lsp.workspace import Workspace, path_of, uri_of
from treadle.lang import CannotFormat, format_source
from treadle.lang.declare import SOURCE
from treadle.lang.diagnostics import Diagnostic, Severity
from treadle.lang.names import Definition, Kind
from treadle.lang.tokens import KEYWORDS, TYPES
from treadle.version import VERSION

Handler = Callable[..., Any]
_PAUSE = 0.02  # seconds after the last keystroke before diagnostics are computed


class _Protocol(LanguageServerProtocol):
    """Leaves texts to `Workspace`: pygls would split lines at more characters than the protocol names."""

    lsp_text_document__did_open = None  # type: ignore[assignment]
    lsp_text_document__did_change = None  # type: ignore[assignment]
    lsp_text_document__did_close = None  # type: ignore[assignment]


class WorkspaceServer(LanguageServer):
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
                diagnostics = [diagnostic(problem, document) for problem in self.files.diagnostics(path)]
                news = types.PublishDiagnosticsParams(uri_of(path), diagnostics, document.version)
                if news != self._published.get(path):
                    self._published[path] = news
                    self.text_document_publish_diagnostics(news)
            elif self._published.pop(path, None):
                self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri_of(path), []))


# --- code actions ----------------------------------------------------------------------------------------------------

_SEVERITIES = {Severity.ERROR: types.DiagnosticSeverity.Error, Severity.WARNING: types.DiagnosticSeverity.Warning}


def diagnostic(each: Diagnostic, document: Document) -> types.Diagnostic:
    """Return a diagnostic for the protocol, with its hints below the message."""
    lines = [each.message]
    lines += [f"did you mean `{each.suggestion}`?"] if each.suggestion else []
    lines += [f"valid here: {', '.join(each.valid)}"] if each.valid else []
    lines += [f"help: {each.help}"] if each.help else []
    return types.Diagnostic(document.span_range(each.span), "\n".join(lines), _SEVERITIES[each.severity], each.rule, source="afl")


def code_actions(found: list[Diagnostic], document: Document, uri: str, start: int, end: int) -> list[types.CodeAction]:
    """Return the fixes of the diagnostics that touch a part of the text; the likeliest one is preferred."""
    actions = []
    for problem in found:
        first, last = document.offsets(problem.span)
        if last < start or end < first:
            continue
        for number, fix in enumerate(problem.fixes):
            edits = [types.TextEdit(document.span_range(edit.span), edit.text) for edit in fix.edits]
            actions.append(
                types.CodeAction(
                    fix.title,
                    types.CodeActionKind.QuickFix,
                    [diagnostic(problem, document)],
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


def definitions(index: ProgramIndex, symbol: Definition) -> Iterator[types.Location]:
    """Yield the place of a declaration; of a namespace, every place that opens it."""
    if symbol.source.name in index.documents:
        yield types.Location(uri_of(symbol.source.name), index.documents[symbol.source.name].span_range(symbol.name.span))
    elif symbol.kind is Kind.NAMESPACE:
        for path, occurrence in index.references(symbol):
            if occurrence.is_declaration:
                yield types.Location(uri_of(path), index.documents[path].range(occurrence.start, occurrence.end))


def everywhere(workspace: Workspace, index: ProgramIndex, symbol: Definition) -> list[tuple[str, Occurrence]]:
    """Return all occurrences of a name, in all programs that contain its declaration."""
    occurrences: dict[tuple[str, int], Occurrence] = {}
    for program in workspace.indexes():
        has_declaration = program is index or symbol.source.name in program.documents
        if has_declaration or (symbol.kind is Kind.NAMESPACE and not set(program.documents).isdisjoint(index.documents)):
            for path, occurrence in program.references(symbol):
                occurrences[path, occurrence.start] = occurrence
    return [(path, occurrence) for (path, _), occurrence in sorted(occurrences.items())]


def check_rename(symbol: Definition) -> None:
    """Raise `CannotRename` for a name that is built in."""
    if symbol.kind in _FIXED or symbol.source is SOURCE:
        sort = "a value of a script" if symbol.kind is Kind.SCRIPT else "built in"
        raise CannotRename(f"`{symbol.name.text}` is {sort} and cannot be renamed.")


def rename_edits(workspace: Workspace, index: ProgramIndex, symbol: Definition, name: str) -> dict[str, list[types.TextEdit]]:
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
    for path, occurrence in reversed(places):
        document = workspace.documents[path]
        edits.setdefault(uri_of(path), []).append(types.TextEdit(document.range(occurrence.start, occurrence.end), name))
        texts[path] = texts[path][: occurrence.start] + name + texts[path][occurrence.end :]
    touched = {path for path, _ in places}
    for other in workspace.indexes():
        if touched & set(other.documents) and not _same_meaning(other, texts):
            raise CannotRename(f"`{name}` cannot be used: a name would get another meaning, or an error would appear.")
    return edits


def _same_meaning(before: ProgramIndex, texts: dict[str, str]) -> bool:
    """Return whether each name of the new texts means what it meant before, and there is no new error."""
    documents = {path: Document(texts[path]) for path in before.documents}
    after = analyse({path: parse_text(path, texts[path]) for path in before.documents}, documents)
    pairs = set()
    for path in before.documents:
        old, new = before.occurrences(path), after.occurrences(path)
        if len(old) != len(new) or _errors(after, path) > _errors(before, path):
            return False
        pairs |= {(key_of(one.symbol), key_of(other.symbol)) for one, other in zip(old, new, strict=True)}
    return len(pairs) == len({one for one, _ in pairs}) == len({other for _, other in pairs})


def _errors(index: ProgramIndex, path: str) -> int:
    return sum(problem.severity is Severity.ERROR for problem in index.diagnostics[path])


# --- documents -------------------------------------------------------------------------------------------------------


def initialized(ls: WorkspaceServer, _: types.InitializedParams) -> None:
    """Read the sources of the folders, and ask the client to report changed files."""
    files = ls.files
    files.encoding = str(ls.workspace.position_encoding or "utf-16")
    files.folders = [path_of(uri) for uri in ls.workspace.folders]
    if not files.folders and ls.workspace.root_uri:
        files.folders = [path_of(ls.workspace.root_uri)]
    for folder in files.folders:
        files.scan(folder)
    watched = ls.client_capabilities.workspace and ls.client_capabilities.workspace.did_change_watched_files
    if watched and watched.dynamic_registration:
        options = types.DidChangeWatchedFilesRegistrationOptions([types.FileSystemWatcher("**/*.afl")])
        wanted = types.Registration("watch", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, options)
        ls.client_register_capability(types.RegistrationParams([wanted]))


def did_open(ls: WorkspaceServer, params: types.DidOpenTextDocumentParams) -> None:
    item = params.text_document
    path = path_of(item.uri)
    ls.files.open.add(path)
    ls.files.set(path, Document(item.text, item.version, ls.files.encoding))
    ls.publish_soon()


def did_change(ls: WorkspaceServer, params: types.DidChangeTextDocumentParams) -> None:
    path, document = ls.open(params.text_document.uri)
    ls.files.set(path, document.changed(list(params.content_changes), params.text_document.version))
    ls.publish_soon()


def did_close(ls: WorkspaceServer, params: types.DidCloseTextDocumentParams) -> None:
    path = path_of(params.text_document.uri)
    ls.files.open.discard(path)
    ls.files.read(path)
    ls.publish_soon()


def did_change_watched_files(ls: WorkspaceServer, params: types.DidChangeWatchedFilesParams) -> None:
    for change in params.changes:
        ls.files.read(path_of(change.uri))
    ls.publish_soon()


def workspace_symbol(ls: WorkspaceServer, params: types.WorkspaceSymbolParams) -> list[types.WorkspaceSymbol]:
    matches: list[types.WorkspaceSymbol] = []
    for path, document in sorted(ls.files.documents.items()):
        symbols = outline.document_symbols(ls.files.index(path).files[path].tree, document)
        for container, symbol in outline.flat(symbols):
            if params.query.lower() in symbol.name.lower():
                place = types.Location(uri_of(path), symbol.selection_range)
                matches.append(types.WorkspaceSymbol(place, symbol.name, symbol.kind, container_name=container or None))
    return matches


# --- requests about a document ---------------------------------------------------------------------------------------


def formatting(ls: WorkspaceServer, path: str, document: Document, params: Any) -> list[types.TextEdit] | None:
    try:
        text = format_source(document.text)
    except CannotFormat:
        return None
    return [] if text == document.text else [types.TextEdit(document.range(0, len(document.text)), text)]


def document_symbol(ls: WorkspaceServer, path: str, document: Document, params: Any) -> list[types.DocumentSymbol]:
    return outline.document_symbols(ls.files.index(path).files[path].tree, document)


def folding_range(ls: WorkspaceServer, path: str, document: Document, params: Any) -> list[types.FoldingRange]:
    return outline.folding(document)


def semantic_tokens(ls: WorkspaceServer, path: str, document: Document, params: Any) -> types.SemanticTokens:
    return types.SemanticTokens(outline.semantic_tokens(ls.files.index(path), path, document))


def inlay_hint(ls: WorkspaceServer, path: str, document: Document, params: types.InlayHintParams) -> list[types.InlayHint]:
    return description.inlay_hints(ls.files.index(path), path, document, *document.range_offsets(params.range))


def completion(ls: WorkspaceServer, path: str, document: Document, params: types.CompletionParams) -> list[types.CompletionItem]:
    context = context_at(document.text, document.offset(params.position))
    return complete(ls.files.surroundings(path), path, context)


def signature_help(
    ls: WorkspaceServer, path: str, document: Document, params: types.SignatureHelpParams
) -> types.SignatureHelp | None:
    context = context_at(document.text, document.offset(params.position))
    return description.signature_help(ls.files.surroundings(path), path, context)


def code_action(ls: WorkspaceServer, path: str, document: Document, params: types.CodeActionParams) -> list[types.CodeAction]:
    return code_actions(ls.files.diagnostics(path), document, params.text_document.uri, *document.range_offsets(params.range))


# --- requests about the name at a place ------------------------------------------------------------------------------


def hover(ls: WorkspaceServer, index: ProgramIndex, document: Document, name: Occurrence, params: Any) -> types.Hover:
    text = description.hover_text(name.symbol, index)
    return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text), document.range(name.start, name.end))


def definition(ls: WorkspaceServer, index: ProgramIndex, document: Document, name: Occurrence, params: Any) -> list[types.Location]:
    return list(definitions(index, name.symbol))


def references(
    ls: WorkspaceServer, index: ProgramIndex, document: Document, name: Occurrence, params: types.ReferenceParams
) -> list[types.Location]:
    return [
        types.Location(uri_of(path), ls.files.documents[path].range(occurrence.start, occurrence.end))
        for path, occurrence in everywhere(ls.files, index, name.symbol)
        if params.context.include_declaration or not occurrence.is_declaration
    ]


def document_highlight(
    ls: WorkspaceServer, index: ProgramIndex, document: Document, name: Occurrence, params: Any
) -> list[types.DocumentHighlight]:
    kinds = types.DocumentHighlightKind
    return [
        types.DocumentHighlight(
            document.range(occurrence.start, occurrence.end), kinds.Write if occurrence.is_declaration else kinds.Read
        )
        for path, occurrence in index.references(name.symbol)
        if index.documents[path] is document
    ]


def prepare_rename(ls: WorkspaceServer, index: ProgramIndex, document: Document, name: Occurrence, params: Any) -> types.Range:
    check_rename(name.symbol)
    return document.range(name.start, name.end)


def rename(
    ls: WorkspaceServer, index: ProgramIndex, document: Document, name: Occurrence, params: types.RenameParams
) -> types.WorkspaceEdit:
    return types.WorkspaceEdit(rename_edits(ls.files, index, name.symbol, params.new_name))


_EVENTS: dict[str, Handler] = {
    types.INITIALIZED: initialized,
    types.TEXT_DOCUMENT_DID_OPEN: did_open,
    types.TEXT_DOCUMENT_DID_CHANGE: did_change,
    types.TEXT_DOCUMENT_DID_CLOSE: did_close,
    types.WORKSPACE_DID_CHANGE_WATCHED_FILES: did_change_watched_files,
    types.WORKSPACE_SYMBOL: workspace_symbol,
}
_ABOUT_DOCUMENTS: dict[str, Handler] = {
    types.TEXT_DOCUMENT_FORMATTING: formatting,
    types.TEXT_DOCUMENT_DOCUMENT_SYMBOL: document_symbol,
    types.TEXT_DOCUMENT_FOLDING_RANGE: folding_range,
    types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL: semantic_tokens,
    types.TEXT_DOCUMENT_INLAY_HINT: inlay_hint,
    types.TEXT_DOCUMENT_COMPLETION: completion,
    types.TEXT_DOCUMENT_SIGNATURE_HELP: signature_help,
    types.TEXT_DOCUMENT_CODE_ACTION: code_action,
}
_ABOUT_NAMES: dict[str, Handler] = {
    types.TEXT_DOCUMENT_HOVER: hover,
    types.TEXT_DOCUMENT_DEFINITION: definition,
    types.TEXT_DOCUMENT_REFERENCES: references,
    types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT: document_highlight,
    types.TEXT_DOCUMENT_PREPARE_RENAME: prepare_rename,
    types.TEXT_DOCUMENT_RENAME: rename,
}
_LISTS = frozenset([types.TEXT_DOCUMENT_DEFINITION, types.TEXT_DOCUMENT_REFERENCES, types.TEXT_DOCUMENT_DOCUMENT_HIGHLIGHT])
_OPTIONS: dict[str, Any] = {
    types.TEXT_DOCUMENT_RENAME: types.RenameOptions(prepare_provider=True),
    types.TEXT_DOCUMENT_SEMANTIC_TOKENS_FULL: outline.LEGEND,
    types.TEXT_DOCUMENT_COMPLETION: types.CompletionOptions(trigger_characters=[".", "$", "(", ",", ":", "="]),
    types.TEXT_DOCUMENT_SIGNATURE_HELP: types.SignatureHelpOptions(["(", ","], ["="]),
    types.TEXT_DOCUMENT_CODE_ACTION: types.CodeActionOptions([types.CodeActionKind.QuickFix]),
}


def make_server() -> WorkspaceServer:
    """Return a server with all requests registered."""
    server = WorkspaceServer()
    handlers = dict(_EVENTS)
    handlers |= {method: partial(_about_document, handler) for method, handler in _ABOUT_DOCUMENTS.items()}
    handlers |= {method: partial(_about_name, handler, method in _LISTS) for method, handler in _ABOUT_NAMES.items()}
    for method, handler in handlers.items():
        server.feature(method, _OPTIONS.get(method))(partial(handler, server))
    return server


def _about_document(handler: Handler, ls: WorkspaceServer, params: Any) -> Any:
    path, document = ls.open(params.text_document.uri)
    return handler(ls, path, document, params)


def _about_name(handler: Handler, is_list: bool, ls: WorkspaceServer, params: Any) -> Any:
    path, document = ls.open(params.text_document.uri)
    index = ls.files.index(path)
    name = index.at(path, document.offset(params.position))
    if name is None:
        return [] if is_list else None
    try:
        return handler(ls, index, document, name, params)
    except CannotRename as error:
        raise JsonRpcException(str(error), types.LSPErrorCodes.RequestFailed) from None
