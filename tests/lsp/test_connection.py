"""A server whose connection is closed."""

from __future__ import annotations

from lsprotocol import types

from treadle.interfaces.lsp.server import WorkspaceServer


class Closed:
    """A connection that the client has closed."""

    def __init__(self) -> None:
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.writes += 1
        raise ValueError("I/O operation on closed file.")

    def close(self) -> None:
        """Do nothing: it is closed."""


def test_a_message_that_cannot_be_sent_is_reported_once() -> None:
    server, closed = WorkspaceServer(), Closed()
    server.protocol.set_writer(closed)
    server.window_show_message(types.ShowMessageParams(types.MessageType.Info, "still there?"))
    assert closed.writes == 2  # the message and the report that it failed
