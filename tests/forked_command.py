"""A module in a process that `tests.fork_server` forks, for those who start processes themselves.

`python -I -S tests/forked_command.py ADDRESS MODULE ARGUMENT...` hands over its standard streams, and ends as the module does; when
it is killed, so is the module.
"""

from __future__ import annotations

import json
import os
import socket
import sys


def main(address: str, module: str, *arguments: str) -> int:
    """Have the module run in a process of its own; its exit code."""
    wish = json.dumps([module, arguments, os.getcwd(), dict(os.environ), True]).encode()  # noqa: PTH109, TID251
    ours, theirs = socket.socketpair()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as line:
        line.connect(f"\0{address}")
        socket.send_fds(line, [wish], [0, 1, 2, theirs.fileno()])
        theirs.close()
        line.recv(64)
        for fd in (0, 1):  # whoever is at their other ends sees the module alone
            os.close(fd)
        return int(ours.recv(64) or 1)


if __name__ == "__main__":
    os._exit(main(*sys.argv[1:]) & 0xFF)
