"""The language server of AFL: `treadle lsp`, for every editor that speaks the Language Server Protocol.

`document` holds texts and converts positions; `workspace` decides which files form one program; `index` is the only module
that calls the compiler, and resolves names; the other modules answer one kind of request each, without the
protocol's transport; `server` connects them to a client.
"""
