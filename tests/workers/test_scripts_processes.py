"""The processes behind scripts: nothing leaks from one to the next, nothing brings the parent down, nothing stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.limits import BOUND

from treadle.workers.scripts import ScriptError, ScriptKilled, ScriptLimits, ScriptRunner, ScriptUnavailable
from treadle.workers.scripts.runner import ScriptHost

AROUND = "import random\nos = random._os\nsys = os.sys\n"
FOREVER = "import time\nwhile True: time.sleep(0.01)"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes through /proc")


@pytest.fixture
async def runner() -> AsyncIterator[ScriptRunner]:
    async with ScriptRunner() as made:
        yield made


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(BOUND):
        while not holds():  # noqa: ASYNC110 - the end of a process that is not ours gives no signal
            await asyncio.sleep(0.005)


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


async def test_scripts_share_no_state(runner):
    spoil = """
import json, math
math.pi = 3
json.dumps = None
sys.modules["builtins"].sum = lambda x: 42
sys.modules["secret"] = "secret"
os.environ["SECRET"] = "x"
leaked = params
"""
    assert await runner.run(AROUND + spoil, {"a": 1}) == {}
    look = """
import math
result["pi"] = math.pi
result["sum"] = sum([1, 1])
result["secret"] = "secret" in sys.modules or "SECRET" in os.environ
result["names"] = [name for name in ("leaked", "spoil") if hasattr(sys.modules["script"], name)]
"""
    assert await runner.run(AROUND + look, {}) == {"pi": pytest.approx(3.14159, abs=1e-4), "sum": 2, "secret": False, "names": []}


async def test_a_script_finds_no_data_of_another_in_memory(runner):
    waiting = asyncio.create_task(runner.run(FOREVER, {"password": "hunter2"}))
    parent = await runner.warm()
    await until(lambda: children(parent))
    search = AROUND + "gc = sys.modules['gc']\ngc.unfreeze()\nneedle = 'hunter' + '2'\n"
    search += "result['found'] = [1 for o in gc.get_objects() if isinstance(o, dict) and o.get('password') == needle]"
    assert await runner.run(search, {}) == {"found": []}
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_a_script_can_kill_neither_the_parent_nor_the_worker_nor_another_script(runner):
    parent = await runner.warm()
    other = asyncio.create_task(runner.run(FOREVER, {}))
    await until(lambda: children(parent))
    (alive,) = children(parent)
    for victim in (parent, os.getpid(), alive, -1, 0):
        with pytest.raises(ScriptError) as raised:
            await runner.run(AROUND + f"os.kill({victim}, 9)", {})
        assert raised.value.type == "PermissionError"
    assert (runs(alive), other.done()) == (True, False)
    assert await runner.warm() == parent
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give scripts another user")
async def test_without_the_filter_another_user_still_protects_parent_and_worker():
    async with ScriptRunner(limits=ScriptLimits(off=frozenset({"system_calls"}))) as runner:
        assert "one another" in str((await runner.describe_limits())["signals"])
        for victim in (await runner.warm(), os.getpid()):
            with pytest.raises(ScriptError) as raised:
                await runner.run(AROUND + f"os.kill({victim}, 9)", {})
            assert raised.value.type == "PermissionError"


async def test_a_script_that_kills_itself_leaves_the_others_running(runner):
    parent = await runner.warm()
    with pytest.raises(ScriptKilled, match="SIGSEGV"):
        await runner.run(AROUND + "sys.modules['ctypes'].string_at(0)", {})
    assert await runner.warm() == parent
    assert await runner.run("result['n'] = 1", {}) == {"n": 1}


async def test_the_parent_is_started_again_after_a_crash(runner):
    first = await runner.warm()
    os.kill(first, signal.SIGKILL)
    assert await runner.run("result['n'] = 1", {}) == {"n": 1}
    assert await runner.warm() != first
    await until(lambda: not runs(first))


async def test_scripts_in_progress_when_the_parent_crashes_run_again(runner):
    first = await runner.warm()
    scripts = [asyncio.create_task(runner.run("import time\ntime.sleep(3)\nresult['n'] = params['n']", {"n": n})) for n in range(4)]
    await until(lambda: len(children(first)) == 4)
    forked = children(first)
    os.kill(first, signal.SIGKILL)
    assert await asyncio.gather(*scripts) == [{"n": n} for n in range(4)]
    await until(lambda: not any(runs(pid) for pid in forked))


async def test_a_script_that_loses_the_parent_twice_fails(runner):
    script = asyncio.create_task(runner.run(FOREVER, {}))
    lost = None
    for _ in range(2):
        while (parent := await runner.warm()) == lost:  # noqa: ASYNC110 - it has not heard yet that that one is gone
            await asyncio.sleep(0.005)
        await until(lambda parent=parent: children(parent))
        os.kill(parent, signal.SIGKILL)
        await until(lambda parent=parent: not runs(parent))
        lost = parent
    with pytest.raises(ScriptKilled, match="lost twice"):
        await script
    assert await runner.run("result['n'] = 1", {}) == {"n": 1}


async def test_a_parent_that_does_not_answer_is_replaced(monkeypatch):
    async with ScriptRunner(limits=ScriptLimits(wall_for=0.05)) as runner:
        give_up = ScriptHost.give_up

        def replace(host: ScriptHost, reason: str) -> None:
            runner._limits = ScriptLimits()  # the next one may take its time
            give_up(host, reason)

        monkeypatch.setattr(ScriptHost, "give_up", replace)
        monkeypatch.setattr("treadle.workers.scripts.runner.GRACE_FOR", 0.05)
        first = await runner.warm()
        os.kill(first, signal.SIGSTOP)
        assert await runner.run("result['n'] = 1", {}) == {"n": 1}
        assert await runner.warm() != first


async def test_canceling_ends_the_scripts_process(runner):
    script = asyncio.create_task(runner.run(FOREVER, {}))
    parent = await runner.warm()
    await until(lambda: children(parent))
    (pid,) = children(parent)
    script.cancel()
    with pytest.raises(asyncio.CancelledError):
        await script
    assert not runs(pid)
    assert await runner.warm() == parent


async def test_closing_ends_all_processes_and_later_scripts_are_refused():
    runner = ScriptRunner()
    scripts = [asyncio.create_task(runner.run(FOREVER, {})) for _ in range(3)]
    parent = await runner.warm()
    await until(lambda: len(children(parent)) == 3)
    pids = [parent, *children(parent)]
    await runner.close()
    for script in scripts:
        with pytest.raises(ScriptUnavailable, match="closed"):
            await script
    await until(lambda: not any(runs(pid) for pid in pids))
    with pytest.raises(ScriptUnavailable, match="closed"):
        await runner.run("pass", {})
    await runner.close()


async def test_an_unused_script_runner_starts_no_process():
    before = children(os.getpid())
    async with ScriptRunner():
        assert children(os.getpid()) == before


WORKER = """
import asyncio, sys
from pathlib import Path
from treadle.workers.scripts import ScriptRunner

async def main():
    async with ScriptRunner() as runner:
        scripts = [asyncio.create_task(runner.run("while True: pass", {})) for _ in range(2)]
        parent = await runner.warm()
        while len(pids := Path(f"/proc/{parent}/task/{parent}/children").read_text().split()) < 2:
            await asyncio.sleep(0.01)
        print(parent, *pids, flush=True)
        await asyncio.gather(*scripts)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killing_the_worker_ends_the_parent_and_all_scripts(how):
    with subprocess.Popen([sys.executable, "-c", WORKER], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        pids = [int(pid) for pid in worker.stdout.readline().split()]
        assert len(pids) == 3
        assert all(runs(pid) for pid in pids)
        worker.send_signal(how)
    asyncio.run(until(lambda: not any(runs(pid) for pid in pids)))


def test_the_parent_process_imports_no_module_of_treadle():
    code = "import sys; sys.path.append(sys.argv[1]); import sandbox; print({'treadle', 'asyncio'} & {*sys.modules})"
    place = Path(sys.modules["treadle.workers.scripts"].__file__ or "").parent
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code, str(place)], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr
