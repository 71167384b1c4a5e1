"""The worker of examples/curl_worker, for real, against a server process: tasks that it does, fails and loses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.commands import Treadle
from tests.limits import BOUND

pytestmark = pytest.mark.xdist_group("http curl worker")

WORKER = Path(__file__).parents[2] / "examples" / "curl_worker" / "worker.sh"

COMMAND = r"""
payload=$(cat)
case $payload in
    *gate*) echo started >started; read -r line <go; echo "{\"by\":\"$WHO\"}" ;;
    *bad*) echo 'the "paper" is torn \ here' >&2; exit 65 ;;
    *again*) [ -e tried ] && { echo '{"tries":2}'; exit; }; touch tried; echo 'not yet' >&2; exit 1 ;;
    *text*) echo "this is no JSON" ;;
    *) printf '{"got":%s,"task":"%s"}' "$payload" "$TREADLE_TASK_ID" ;;
esac
"""


@dataclass
class Yard:
    """A server, and workers of its."""

    folder: Path
    url: str
    secret: str

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"{self.url}/v1{path}", json=body, headers={"Authorization": f"Bearer {self.secret}"}, timeout=BOUND)
        answer.raise_for_status()
        return answer.json()

    def enqueue(self, payload: dict[str, Any], **options: Any) -> str:
        return self.post("/tasks", {"name": "shell.Do", "payload": payload, **options})["id"]

    def show(self, task_id: str) -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/v1/tasks/{task_id}", headers={"Authorization": f"Bearer {self.secret}"}, timeout=BOUND)
        return answer.json()

    def worker(self, who: str, *command: str, **environment: str) -> subprocess.Popen[str]:
        inherited = {name: os.environ[name] for name in ("PATH", "TMPDIR") if name in os.environ}  # noqa: TID251
        return subprocess.Popen(
            ["sh", str(WORKER), "shell.*", *(command or ("sh", "-c", COMMAND))],
            cwd=self.folder,
            env={
                **inherited,
                "TREADLE_SERVER": self.url,
                "TREADLE_TOKEN": self.secret,
                "WHO": who,
                "WORKER_NAME": who,
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    folder = tmp_path_factory.mktemp("yard")
    treadle = Treadle(folder)
    secret = treadle.json("token", "create", "shell", "--scope", "work", "--scope", "read")["secret"]
    with treadle.started("serve", "--json") as serving:
        yield Yard(folder, json.loads(serving.first)["url"], secret)
        assert serving.stop().code == 0


def ended(worker: subprocess.Popen[str]) -> str:
    """All that it said, once it has ended."""
    try:
        said, _ = worker.communicate(timeout=BOUND)
    finally:
        if worker.poll() is None:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.communicate()
    return said


def test_tasks_are_done_tried_again_and_failed(yard: Yard):
    payloads = [{"n": 1, "task_id": '}\\" evil, '}, {"nested": {"a": [1, {"b": "c"}]}}, {"text": 1}, {"bad": 1}, {"again": 1}]
    ids = [yard.enqueue(payload, retry=1) for payload in payloads]
    said = ended(yard.worker("ann", MOST="6"))
    assert said.count("completed") == 3, said
    first, second, no_json, bad, again = (yard.show(task_id) for task_id in ids)
    assert first["result"] == {"got": payloads[0], "task": first["id"]}
    assert second["result"] == {"got": payloads[1], "task": second["id"]}
    assert (no_json["state"], no_json["error"]["code"]) == ("failed", "bad_result")
    assert (bad["state"], bad["error"]["code"], bad["error"]["message"]) == ("failed", "exit_65", 'the "paper" is torn \\ here')
    assert (again["state"], again["result"], again["attempt"]) == ("completed", {"tries": 2}, 2)


@pytest.mark.parametrize("notices", ["with its result", "with a heartbeat"])
def test_a_worker_slower_than_its_lease_loses_its_task_to_another(yard: Yard, notices: str):
    for name in ("started", "go"):
        (yard.folder / name).unlink(missing_ok=True)
        os.mkfifo(yard.folder / name)
    task_id = yard.enqueue({"gate": 1})
    slow = yard.worker("slow", LEASE="1", BEAT_EVERY="1000" if notices == "with its result" else "0.3", MOST="1")
    try:
        (yard.folder / "started").read_text()
        if notices == "with a heartbeat":
            os.killpg(slow.pid, signal.SIGSTOP)  # as when its machine is suspended
        quick = ended(yard.worker("quick", "echo", '{"by": "quick"}', MOST="1"))
        assert "claimed, version 2" in quick
        assert "completed" in quick
        if notices == "with a heartbeat":
            os.killpg(slow.pid, signal.SIGCONT)
        else:
            (yard.folder / "go").write_text("go on\n")
    finally:
        said = ended(slow)
    assert "claim_lost: the work is dropped" in said
    assert "completed" not in said
    shown = yard.show(task_id)
    assert (shown["state"], shown["result"], shown["claim_version"]) == ("completed", {"by": "quick"}, 2)


def test_a_stopped_worker_releases_its_task_immediately(yard: Yard):
    (yard.folder / "started").unlink(missing_ok=True)
    os.mkfifo(yard.folder / "started")
    task_id = yard.enqueue({"gate": 1})
    leaving = yard.worker("leaving", "sh", "-c", "echo started >started; exec sleep 1000", MOST="1")
    (yard.folder / "started").read_text()
    leaving.terminate()
    assert "given back" in ended(leaving)
    assert "completed" in ended(yard.worker("next", "echo", '{"by": "next"}', MOST="1"))
    assert yard.show(task_id)["result"] == {"by": "next"}


def test_a_worker_without_access_exits_with_an_error(yard: Yard):
    stranger = Yard(yard.folder, yard.url, "tr_wrong")
    assert "cannot register: 401" in ended(stranger.worker("stranger"))
