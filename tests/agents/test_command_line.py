"""`treadle runner`, `treadle handlers` and the example of section 8.10, in real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from tests.commands import Treadle
from tests.engines import SHARED, url_of
from tests.limits import BOUND

EXAMPLE = Path(__file__).parents[2] / "examples" / "billing"


@pytest.fixture
def treadle(tmp_path: Path) -> Treadle:
    """The command in a copy of the example."""
    folder = tmp_path / "billing"
    shutil.copytree(EXAMPLE, folder)
    return Treadle(folder)


def run_file(treadle: Treadle, name: str) -> str:
    environment = {**os.environ, "TREADLE_STORE": treadle.store}  # noqa: TID251
    command = [sys.executable, name]
    return subprocess.run(
        command, cwd=treadle.folder, env=environment, check=True, capture_output=True, text=True, timeout=BOUND
    ).stdout


def runners(treadle: Treadle) -> list[dict[str, str]]:
    """The servers that have the handler; `treadle run` is one too, while it runs."""
    return [server for server in treadle.json("workers")["servers"] if server["handlers"] == ["billing.ProcessPayment"]]


@pytest.mark.postgres
@pytest.mark.parametrize("kind", SHARED)
def test_the_complete_example_of_the_specification_runs(kind, request, tmp_path, treadle):
    """8.10: the flow, the handler module, its registration, a runner in another process, and the output."""
    treadle.store = url_of(kind, request, tmp_path)
    assert run_file(treadle, "register.py") == "registered: billing.ProcessPayment\n"
    environment = {**os.environ, "TREADLE_STORE": treadle.store}  # noqa: TID251
    command = [sys.executable, "serve.py"]
    runner = subprocess.Popen(command, cwd=treadle.folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert runner.stdout.readline() == "serving billing.ProcessPayment; Ctrl-C stops\n"
        ended = treadle("run", "flow.afl", "--input", "total=12.5", "--json")
        assert (ended.code, json.loads(ended.out)["outputs"]) == (0, {"receipt": "txn-USD-12.50"})
        assert [server["state"] for server in runners(treadle)] == ["running"]
    finally:
        runner.send_signal(signal.SIGTERM)
        assert runner.wait(BOUND) == 0
        runner.stdout.close()
    assert [server["state"] for server in runners(treadle)] == ["stopped"]


def test_handlers_are_registered_listed_tried_and_removed(treadle):
    registered = treadle.json(
        "handlers", "register", "billing.ProcessPayment", "handlers.billing", "--entrypoint", "process_payment", "--timeout", "5s"
    )
    assert (registered["timeout_ms"], registered["missing_requirements"]) == (5000, [])
    (found,) = treadle.json("handlers", "list")["handlers"]
    assert (found["facet_name"], found["entrypoint"]) == ("billing.ProcessPayment", "process_payment")
    assert "billing.ProcessPayment" in treadle("handlers", "list").out
    tried = treadle.json("handlers", "test", "billing.ProcessPayment", "-p", "amount=5")
    assert tried == {"transaction_id": "txn-USD-5.00", "status": "approved"}
    failed = treadle("handlers", "test", "billing.ProcessPayment", "-p", "amount=much", "--json")
    assert (failed.code, failed.error["code"]) == (1, "handler_error")
    assert treadle.json("handlers", "remove", "billing.ProcessPayment") == {"removed": "billing.ProcessPayment"}
    for command in ("remove", "test"):
        gone = treadle("handlers", command, "billing.ProcessPayment", "--json")
        assert (gone.code, gone.error["code"]) == (3, "handler_not_found")
    outside = treadle("handlers", "register", "x.Y", "file:///etc/hostname", "--json")
    assert (outside.code, outside.error["code"]) == (2, "module_outside_roots")
    missing = treadle("handlers", "register", "x.Y", "not.there.yet", "--requires", "treadle-no-such-thing")
    assert missing.code == 0
    assert "not.there.yet" in missing.err
    assert "treadle-no-such-thing (not installed)" in missing.err
    untried = treadle("handlers", "test", "x.Y", "--json")
    assert (untried.code, untried.error["code"]) == (1, "import_failed")
    assert "There is no module not.there.yet" in untried.error["message"]
    assert "the handler needs treadle-no-such-thing (not installed)" in untried.err
    unheard = treadle("handlers", "register", "x.Z", "not.there.yet", "--requires", "requests>=two", "--json")
    assert (unheard.code, unheard.error["code"]) == (2, "invalid_input")
    treadle("handlers", "register", "x.W", "handlers.billing", "--entrypoint", "nobody")
    nobody = treadle("handlers", "test", "x.W", "--json")
    assert (nobody.code, nobody.error["code"]) == (1, "entrypoint_missing")


def test_a_runner_with_tools_serves_a_status_page_and_stops_at_sigterm(treadle):
    (treadle.folder / "mytools.py").write_text(
        "from treadle.agents import ToolRegistry\ntools = ToolRegistry()\n"
        "tools.register('ProcessPayment', lambda p: {'transaction_id': 'by-tool', 'status': ''})\n"
    )
    serve = ("runner", "--tools", "mytools:tools", "--port", "18431", "--poll-interval", "0.5", "--json")
    with treadle.started(*serve, AFL_MAX_CONCURRENT="3", AFL_POLL_INTERVAL_MS="9000") as runner:
        said = json.loads(runner.first)
        assert said["handlers"] == ["ProcessPayment", "afl:execute", "afl:resume"]
        with urllib.request.urlopen(f"http://127.0.0.1:{said['port']}/health", timeout=BOUND) as answer:
            assert json.load(answer) == {"ok": True}
        with urllib.request.urlopen(f"http://127.0.0.1:{said['port']}/status", timeout=BOUND) as answer:
            config = json.load(answer)["config"]
        assert (config["max_concurrent"], config["poll_interval_ms"]) == (3, 500), "options win over the environment"
        ended = treadle("run", "flow.afl", "--input", "total=1.0", "--json")
        assert json.loads(ended.out)["outputs"] == {"receipt": "by-tool"}
        stopped = runner.stop()
    assert stopped.code == 0
    assert json.loads(stopped.out.splitlines()[-1])["event"] == "stopped"
    wrong = treadle("runner", "--tools", "mytools:nothing", "--json")
    assert (wrong.code, wrong.error["code"]) == (2, "invalid_input")


def test_python_m_treadle_runner_is_the_same_command(treadle):
    treadle.json("handlers", "register", "billing.ProcessPayment", "handlers.billing", "--entrypoint", "process_payment")
    shown = subprocess.run(
        [sys.executable, "-m", "afl.runtime.runner", "--help"], capture_output=True, text=True, timeout=BOUND, check=True
    )
    assert "treadle runner" in shown.stdout
    with treadle.started("runner", "--topic", "billing.*", "--topic", "nothing.*", "--json") as runner:
        ended = treadle("run", "flow.afl", "--input", "total=2.0", "--json")
        assert json.loads(ended.out)["outputs"] == {"receipt": "txn-USD-2.00"}
        stopped = runner.stop(signal.SIGINT)
    assert stopped.code == 0
    assert "'nothing.*' matches no registered handler" in stopped.err
