"""The limits of a script's process: what it cannot do, also when it goes around the list of built-ins.

`random._os` is such a way around: nothing but the limits on the process is in its way.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.limits import BOUND

import treadle
from treadle.workers.scripts import ScriptError, ScriptLimits, ScriptMemory, ScriptRunner, ScriptTimeout
from treadle.workers.scripts.runner import SWITCHES
from treadle.workers.scripts.sandbox import filter_program

AROUND = "import random\nos = random._os\nsys = os.sys\nopen = sys.modules['builtins'].open\n"
OUTSIDER = 54321

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root drops to nobody; others have nothing to drop")


@pytest.fixture
async def runner() -> AsyncIterator[ScriptRunner]:
    async with ScriptRunner() as made:
        yield made


def without(*names: str, **limits) -> ScriptRunner:
    return ScriptRunner(limits=ScriptLimits(off=frozenset(names), **limits))


async def refusal(runner: ScriptRunner, code: str) -> ScriptError:
    with pytest.raises(ScriptError) as raised:
        await runner.run(AROUND + code, {})
    return raised.value


async def still_works(runner: ScriptRunner) -> dict[str, int]:
    """The result of a short script, once the machine is fast enough for it."""
    async with asyncio.timeout(BOUND):
        while True:
            with suppress(ScriptTimeout):
                return await runner.run("result['still'] = 1", {})


async def test_an_endless_loop_is_stopped_by_the_clock():
    async with ScriptRunner(limits=ScriptLimits(wall_for=0.2)) as runner:
        ends = await asyncio.gather(
            runner.run("while True: pass", {}), runner.run("import time\ntime.sleep(60)", {}), return_exceptions=True
        )
        assert [end.code for end in ends] == ["script_timeout", "script_timeout"]
        assert "0.2 s" in str(ends[0])
        assert await still_works(runner) == {"still": 1}


async def test_a_script_that_catches_everything_is_stopped_too():
    async with ScriptRunner(limits=ScriptLimits(wall_for=0.2)) as runner:
        with pytest.raises(ScriptTimeout):
            await runner.run("while True:\n    try:\n        while True: pass\n    except BaseException: pass", {})


async def test_an_endless_loop_is_stopped_by_its_use_of_the_processor():
    async with ScriptRunner(limits=ScriptLimits(cpu_for=1)) as runner:
        polite, stubborn = await asyncio.gather(
            runner.run("while True: pass", {}),
            runner.run(AROUND + "s = sys.modules['signal']\ns.signal(s.SIGXCPU, s.SIG_IGN)\nwhile True: pass", {}),
            return_exceptions=True,
        )
    assert isinstance(polite, ScriptTimeout)
    assert isinstance(stubborn, ScriptTimeout)
    assert "CPU time" in str(polite)


@pytest.mark.parametrize(
    "code",
    [
        "x = 'a' * (1 << 40)",
        "x = 'a' * params['bytes'] * 2",
        "x = []\nwhile True: x.append(bytearray(1 << 16))",
        "x = []\nwhile True: x.append([x])",
        "x = {}\nwhile True: x[len(x)] = str(len(x))",
    ],
)
async def test_a_script_that_wants_too_much_memory_is_stopped(code):
    async with ScriptRunner(limits=ScriptLimits(memory_bytes=32 << 20)) as runner:
        with pytest.raises(ScriptMemory) as raised:
            await runner.run(code, {"bytes": 32 << 20})
        assert raised.value.code == "script_memory"
        assert await runner.run("x = 'a' * (16 << 20)\nresult['n'] = len(x)", {}) == {"n": 16 << 20}


async def test_a_result_beyond_the_limit_is_refused():
    async with ScriptRunner(limits=ScriptLimits(output_bytes=100)) as runner:
        assert await runner.run("result['a'] = 'x' * 80", {}) == {"a": "x" * 80}
        with pytest.raises(ScriptError, match="limit is 100") as raised:
            await runner.run("result['a'] = 'x' * 100", {})
        assert raised.value.code == "script_result_invalid"


async def test_a_script_cannot_start_a_process(runner):
    assert (await refusal(runner, "os.fork()")).type == "PermissionError"
    assert (await refusal(runner, "os.execv('/bin/sh', ['sh'])")).type == "PermissionError"
    assert (await refusal(runner, "sys.modules['_thread'].start_new_thread(print, ())")).type == "RuntimeError"


async def test_a_fork_bomb_is_stopped_without_the_filter():
    bomb = "n = 0\ntry:\n    while True:\n        os.fork()\n        n += 1\nexcept BlockingIOError:\n    result['n'] = n"
    async with without("system_calls") as runner:
        if (await runner.describe_limits())["processes"] is True:
            assert await runner.run(AROUND + bomb, {}) == {"n": 0}


async def test_child_processes_of_a_script_end_with_it():
    """The child does not outlive the script."""
    async with without("system_calls", "processes", wall_for=5) as runner:
        started = await runner.run(AROUND + "result['pid'] = os.fork()\nif not result['pid']: os.read(3, 1)", {})
        async with asyncio.timeout(BOUND):
            while _runs(started["pid"]):  # noqa: ASYNC110 - a stranger's end gives no signal
                await asyncio.sleep(0.01)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_a_script_cannot_write_a_file(runner, tmp_path):
    tmp_path.chmod(0o777)
    target = tmp_path / "written"
    assert (await refusal(runner, f"open({str(target)!r}, 'w').write('x')")).type in {"PermissionError", "FileNotFoundError"}
    for kept in ("files", "file_size", "open_files"):
        others = {"system_calls", "files", "file_size", "open_files", "privileges", "capabilities"} - {kept}
        async with without(*others) as alone:
            if (await alone.describe_limits())[kept] is True:
                await refusal(alone, f"f = open({str(target)!r}, 'w')\nf.write('x')\nf.flush()")
    assert not target.exists() or target.read_text() == ""


async def test_a_script_reads_no_file_and_has_an_empty_working_directory(runner):
    assert (await refusal(runner, "open('/etc/passwd')")).type in {"PermissionError", "FileNotFoundError"}
    hidden = {"PermissionError", "FileNotFoundError"}
    async with without("system_calls", "open_files") as unfiltered:
        if (await unfiltered.describe_limits())["files"] is True:
            assert (await refusal(unfiltered, "open('/etc/passwd')")).type in hidden
        assert (await refusal(unfiltered, "open('new', 'w')")).type in hidden
        assert (await refusal(unfiltered, "os.mkdir('new')")).type in hidden
    async with without("system_calls", "open_files", "privileges", "capabilities") as mighty:
        if (await mighty.describe_limits())["files"] is True:
            assert await mighty.run(AROUND + "result['all'] = os.listdir('/') + os.listdir('.')", {}) == {"all": []}
        assert (await refusal(mighty, "os.mkdir('new')")).type == "FileNotFoundError"


async def test_a_script_inherits_no_environment_and_no_descriptors(monkeypatch):
    monkeypatch.setenv("TREADLE_SECRET", "s3cret")
    kept = os.open(os.devnull, os.O_RDONLY)
    os.set_inheritable(kept, True)
    # As root its own entries in /proc belong to root, so that nobody cannot read them: there it stays root to look.
    off = {"system_calls", "files", "open_files", "not_dumpable", "privileges", "capabilities"}
    code = """
result["env"] = dict(os.environ)
result["given"] = len(open("/proc/self/environ", "rb").read())
result["fds"] = [int(fd) for fd in os.listdir("/proc/self/fd")]
result["std"] = [os.readlink(f"/proc/self/fd/{n}") for n in range(3)]
"""
    try:
        async with without(*off) as runner:
            seen = await runner.run(AROUND + code, {})
    finally:
        os.close(kept)
    assert (seen["env"], seen["given"]) == ({}, 0)
    assert sorted(seen["fds"])[:4] == [0, 1, 2, 3]
    assert len(seen["fds"]) == 5  # and the one that lists them
    assert seen["std"] == ["/dev/null"] * 3


async def test_a_script_runs_in_utc(runner, monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    code = "import datetime, time\nresult['offset'] = time.localtime(0).tm_hour\nresult['zone'] = time.tzname[0]"
    assert await runner.run(code, {}) == {"offset": 0, "zone": "UTC"}


async def test_the_network_cannot_be_reached_where_that_is_reported():
    connect = "s = sys.modules['socket']\nu = s.socket(s.AF_INET, s.SOCK_DGRAM)\nu.connect(('127.0.0.1', 9))"
    for off in ((), ("system_calls", "open_files"), ("network",)):
        async with without(*off) as runner:
            if (await runner.describe_limits())["network"] is True:
                assert (await refusal(runner, connect)).type in {"OSError", "PermissionError"}
    async with without("network", "system_calls", "open_files") as connected:
        assert (await connected.describe_limits())["network"] == "switched off"
        assert await connected.run(AROUND + connect, {}) == {}


@as_root
async def test_root_runs_scripts_as_nobody_without_any_capability():
    async with without("system_calls") as runner:
        ids = await runner.run(AROUND + "result['ids'] = [*os.getresuid(), *os.getresgid(), *os.getgroups()]", {})
        assert ids == {"ids": [65534] * 6}
        assert (await refusal(runner, "os.setuid(0)")).type == "PermissionError"


async def test_every_limit_is_described_and_disabled_ones_are_marked(runner):
    described = await runner.describe_limits()
    assert set(described) >= SWITCHES | {"wall_clock", "output_size", "environment", "descriptors", "signals"}
    assert all(value is True or (isinstance(value, str) and value) for value in described.values())
    async with without(*SWITCHES) as bare:
        assert {name for name, value in (await bare.describe_limits()).items() if value == "switched off"} == SWITCHES
        assert await bare.run("result['a'] = 1", {}) == {"a": 1}


@pytest.mark.skipif(sys.platform != "linux", reason="the limits of Linux")
async def test_on_linux_the_limits_that_need_no_privilege_hold(runner):
    described = await runner.describe_limits()
    for name in ("cpu", "memory", "file_size", "open_files", "core_file", "no_new_privileges", "not_dumpable", "dies_with_parent"):
        assert described[name] is True, name


def test_the_filter_is_built_for_supported_processors_only():
    assert len(filter_program("x86_64")) == len(filter_program("aarch64"))
    with pytest.raises(OSError, match="no filter for vax"):
        filter_program("vax")


ORDINARY = """
import asyncio, json
from treadle.workers.scripts import ScriptError, ScriptRunner
AROUND = {around!r}

async def main():
    async with ScriptRunner() as runner:
        seen = await runner.describe_limits()
        parent = await runner.warm()
        seen["ran"] = await runner.run("result['n'] = params['n'] + 1", {{"n": 1}})
        for name, code in {{"kill": "os.kill(os.getppid(), 9)", "fork": "os.fork()", "read": "open('/etc/passwd')"}}.items():
            try:
                seen[name] = await runner.run(AROUND + code, {{}})
            except ScriptError as error:
                seen[name] = error.type
        seen["same"] = await runner.warm() == parent
    print(json.dumps(seen))

asyncio.run(main())
"""


@as_root
def test_an_ordinary_user_gets_the_same_protection_but_for_the_change_of_user(tmp_path):
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    if python is None or subprocess.check_output([python, "-c", version], text=True).strip() != ours:
        pytest.skip("needs an interpreter that every user can run")
    packages = [path for path in sys.path if path.endswith("site-packages")]
    done = subprocess.run(
        [python, "-c", ORDINARY.format(around=AROUND)],
        env={"PYTHONPATH": os.pathsep.join([str(Path(treadle.__file__).parents[1]), *packages])},
        user=OUTSIDER,
        group=OUTSIDER,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["ran"] == {"n": 2}
    assert str(OUTSIDER) in seen["privileges"]
    assert (seen["kill"], seen["fork"], seen["read"], seen["same"]) == (*["PermissionError"] * 3, True)
    missing = {name for name in SWITCHES if seen[name] is not True}
    assert missing <= {"privileges", "network", "files"}
