"""`treadle lsp`: the language server of AFL."""

from __future__ import annotations

import gc
import sys
from importlib.util import find_spec
from typing import Annotated

from treadle.interfaces.cli.command import option
from treadle.interfaces.cli.messages import tell_note
from treadle.interfaces.cli.session import Session
from treadle.model.errors import MissingDependency


def lsp(
    session: Session,
    stdio: Annotated[bool, option("--stdio", help="Use stdin and stdout; this is the default, and some editors pass it")] = False,
) -> None:
    """Serve the Language Server Protocol for AFL to one editor over stdio, until it disconnects."""
    if find_spec("pygls") is None:
        raise MissingDependency("The language server needs the package pygls: pip install 'treadle[lsp]'.")
    from treadle.interfaces.lsp.server import make_server

    if sys.stdin.isatty():
        tell_note("Waiting for an editor to speak the Language Server Protocol on stdin; Ctrl-C stops.")
    server = make_server()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # a check makes many objects that live on; collecting in the middle of it doubles its time
    server.start_io()
