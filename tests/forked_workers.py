"""The processes of pytest-xdist, forked from one that has imported all tests already.

To import the tests takes longer than to run many of them. So a run starts one process that collects as a worker would, and
pytest-xdist starts this file as the Python of its workers: it hands over its standard streams, on which a worker is forked, and
stays until that ends.
"""

from __future__ import annotations

import os
import socket
import sys

if False:  # the first lines of a worker import nothing that they do not need
    from collections.abc import Callable

    import pytest


def start(arguments: list[str]) -> tuple[str, Callable[[], object]]:
    """Start the process that imports the tests; the command that has a worker forked, and what ends the process."""
    import secrets
    import shlex
    import subprocess

    name = f"treadle-tests-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        fd = listener.fileno()
        script = f"import sys; sys.path[:] = {sys.path!r}; from tests.forked_workers import serve; serve({fd}, {arguments!r})"
        # It ends when its standard input does, with this process at the latest.
        server = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[fd])
    return shlex.join([sys.executable, "-I", "-S", __file__, name]), server.communicate


def serve(fd: int, arguments: list[str]) -> None:
    """Import the tests, then fork a worker for everyone who asks, until the run has ended."""
    import select
    import signal
    import threading

    import pytest

    with socket.socket(fileno=fd) as listener:
        pytest.main([*arguments, "--collect-only", "-n", "0"], plugins=[ForgetBroken()])
        _draw()
        assert threading.active_count() == 1, threading.enumerate()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: this one ends after the run
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
            line, _ = listener.accept()
            streams = socket.recv_fds(line, 1, 3)[1]
            if os.fork() == 0:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                listener.close()
                _work(streams)
            for each in (line.detach(), *streams):
                os.close(each)


class ForgetBroken:
    """Forgets the modules that cannot be imported, so that workers import them again and report the error.

    pytest leaves such a module in `sys.modules`, where the next collection in the process would find it without its tests.
    """

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and report.nodeid:
            for name, module in list(sys.modules.items()):
                if str(getattr(module, "__file__", None)).endswith(report.nodeid):
                    del sys.modules[name]


def _draw() -> None:
    """Have Hypothesis read its tables and the constants of all modules, which takes seconds, before there are workers."""
    from hypothesis import HealthCheck, given, settings
    from hypothesis import strategies as st

    @settings(max_examples=5, database=None, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.text() | st.integers() | st.floats() | st.binary(), min_size=100, max_size=100))
    def draw(values: object) -> None:
        """Do nothing with them."""

    draw()


def _work(streams: list[int]) -> None:
    """Go on as the Python that pytest-xdist has started."""
    import atexit
    import threading
    import traceback
    import types

    code = 1
    try:
        for number, fd in enumerate(streams):
            os.dup2(fd, number)
            os.close(fd)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        sys.argv = ["-c"]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(eval(sys.stdin.readline()), main.__dict__)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        os._exit(code)


if __name__ == "__main__":
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(f"\0{sys.argv[1]}")
        socket.send_fds(line, [b"1"], [0, 1, 2])
        line.recv(1)
