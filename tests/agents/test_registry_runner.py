"""Section 8 of the agent SDK: `RegistryRunner`, registrations, modules that are loaded, and all that can be wrong with them."""

from __future__ import annotations

import importlib
import subprocess
import threading
from dataclasses import asdict, fields
from pathlib import Path

import pytest
from tests.agents.scenes import ONE, add, one, started, until
from tests.engines import SHARED, url_of
from tests.limits import BOUND

from treadle.agents import (
    Evaluator,
    ExecutionStatus,
    HandlerRegistration,
    Persistence,
    RegistryRunner,
    RegistryRunnerConfig,
    TaskState,
    poller,
)
from treadle.agents.modules import Modules, OutsideRoots, runner_roots
from treadle.model.errors import InvalidInput, NonRetryable
from treadle.settings import Settings


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def a_runner(store: Persistence, **config: object) -> RegistryRunner:
    return RegistryRunner(store, Evaluator(store), RegistryRunnerConfig(**config))  # type: ignore[arg-type]


def error_of(store: Persistence, task_id: str) -> dict:
    task = store.get_task(task_id)
    assert task.state == TaskState.FAILED
    return task.error or {}


def test_the_configuration_has_the_defaults_of_the_specification():
    config = asdict(RegistryRunnerConfig())
    assert config.pop("server_name")
    assert config == {
        "service_name": "afl-registry-runner",
        "server_group": "default",
        "task_list": "default",
        "poll_interval_ms": 2000,
        "max_concurrent": 5,
        "heartbeat_interval_ms": 10000,
        "registry_refresh_interval_ms": 30000,
        "topics": [],
    }


def test_a_registration_has_the_fields_and_defaults_of_the_specification():
    registration = HandlerRegistration(facet_name="a.B", module_uri="m")
    names = "facet_name module_uri entrypoint version checksum timeout_ms requirements metadata created updated"
    assert [field.name for field in fields(HandlerRegistration)] == names.split()
    assert (registration.entrypoint, registration.version, registration.checksum, registration.timeout_ms) == (
        "handle",
        "1.0.0",
        "",
        30000,
    )


@pytest.mark.postgres
def test_a_registered_handler_is_loaded_and_called_with_facet_and_metadata(persistence, tmp_path):
    write(
        tmp_path,
        "reg_a/billing.py",
        "def pay(p):\n    return {'id': p['_facet_name'], 'status': p['_handler_metadata']['region']}\n",
    )
    evaluator = Evaluator(persistence)
    runner = RegistryRunner(persistence, evaluator)
    metadata = {"region": "eu"}
    runner.register_handler("billing.Pay", "reg_a.billing", "pay", metadata=metadata)
    run_id, step_id = one(evaluator)
    assert runner.poll_once() == 1
    assert persistence.get_step(step_id).returns == {"id": "billing.Pay", "status": "eu"}
    assert evaluator.resume(run_id).status is ExecutionStatus.COMPLETED
    assert runner.registered_names() == ["billing.Pay"]
    stored = persistence.get_handler_registration("billing.Pay")
    assert (stored.module_uri, stored.metadata) == ("reg_a.billing", metadata)
    assert stored.created == stored.updated > 0
    assert persistence.delete_handler_registration("billing.Pay")
    assert not persistence.delete_handler_registration("billing.Pay")
    assert runner.poll_once() == 0
    assert runner.registered_names() == []


def test_files_of_equal_names_are_kept_apart_and_async_entry_points_work(memory, tmp_path):
    one_file = write(tmp_path, "one/same.py", "async def handle(p):\n    return {'from': 'one'}\n")
    two_file = write(tmp_path, "two/same.py", "def handle(p):\n    return {'from': 'two'}\n")
    runner = a_runner(memory)
    runner.register_handler("x.One", one_file.as_uri())
    runner.register_handler("x.Two", two_file.as_uri())
    ids = [add(memory, "x.One"), add(memory, "x.Two")]
    assert runner.poll_once() == 2
    found = [memory.run(memory.engine.result(task_id)) for task_id in ids]
    assert found == [{"from": "one"}, {"from": "two"}]


def test_two_entry_points_of_one_module_are_two_handlers(memory, tmp_path):
    write(tmp_path, "reg_b.py", "def a(p):\n    return {'r': 'a'}\ndef b(p):\n    return {'r': 'b'}\n")
    runner = a_runner(memory)
    runner.register_handler("x.A", "reg_b", "a")
    runner.register_handler("x.B", "reg_b", "b")
    ids = [add(memory, "x.A"), add(memory, "x.B")]
    runner.poll_once()
    assert [memory.run(memory.engine.result(each)) for each in ids] == [{"r": "a"}, {"r": "b"}]


def test_the_module_patterns_of_the_specification_work(memory, tmp_path):
    """8.11: one facet per module, a dispatch module, and a factory that registers its own handlers."""
    write(tmp_path, "reg_p/count.py", "def handle(payload):\n    return {'count': len(payload.get('collection', ''))}\n")
    dispatch = "_D = {'cache.Africa': lambda p: {'data': 'africa'}}\ndef handle(p):\n    return _D[p['_facet_name']](p)\n"
    write(tmp_path, "reg_p/cache.py", dispatch)
    regions = (
        "REGIONS = {'Asia': 'asia'}\n\n\n"
        "def register_handlers(runner):\n"
        "    for name in REGIONS:\n"
        "        runner.register_handler(facet_name=f'geo.cache.{name}', module_uri='reg_p.regions', entrypoint='handle')\n\n\n"
        "def handle(payload):\n"
        "    return {'data': REGIONS[payload['_facet_name'].rsplit('.', 1)[-1]]}\n"
    )
    write(tmp_path, "reg_p/regions.py", regions)
    runner = a_runner(memory)
    runner.register_handler("docs.Count", "reg_p.count")
    runner.register_handler("cache.Africa", "reg_p.cache")
    runner.modules.find(HandlerRegistration("x.Y", "reg_p.regions", "register_handlers"))(runner)
    ids = [add(memory, "docs.Count", collection="abc"), add(memory, "cache.Africa"), add(memory, "geo.cache.Asia")]
    assert runner.poll_once() == 3
    found = [memory.run(memory.engine.result(each)) for each in ids]
    assert found == [{"count": 3}, {"data": "africa"}, {"data": "asia"}]


def test_a_module_is_loaded_once_per_checksum_and_reloaded_for_the_next(tmp_path):
    path = write(tmp_path, "reg_c.py", "MARK = object()\ndef handle(p):\n    return {'v': 1}\n")
    modules = Modules([tmp_path])
    old = modules.find(HandlerRegistration("x.Y", "reg_c", checksum="1"))
    path.write_text("MARK = object()\ndef handle(p):\n    return {'v': 2}\n")
    assert modules.find(HandlerRegistration("x.Y", "reg_c", checksum="1")) is old
    new = modules.find(HandlerRegistration("x.Y", "reg_c", checksum="2"))
    assert (old({}), new({})) == ({"v": 1}, {"v": 2})


def test_a_checksum_that_changes_while_tasks_run_is_for_the_next_task(memory, tmp_path):
    gate = tmp_path / "gate"
    text = "import time\nfrom pathlib import Path\nV = {v}\ndef handle(p):\n    {wait}\n    return {{'v': V}}\n"
    path = write(
        tmp_path,
        "reg_d.py",
        text.format(v=1, wait=f"Path({str(gate)!r}).touch()\n    while Path({str(gate)!r}).exists(): time.sleep(0.01)"),
    )
    runner = a_runner(memory, registry_refresh_interval_ms=20)
    runner.register_handler("x.Y", "reg_d", checksum="1")
    with started(runner):
        first = add(memory, "x.Y")
        until(gate.exists)
        path.write_text(text.format(v=2, wait="pass"))
        runner.register_handler("x.Y", "reg_d", checksum="2")
        until(lambda: [each.checksum for each in runner._registrations] == ["2"])
        second = add(memory, "x.Y")
        assert memory.run(memory.engine.result(second, timeout=BOUND)) == {"v": 2}
        gate.unlink()
        assert memory.run(memory.engine.result(first, timeout=BOUND)) == {"v": 1}


def test_registrations_are_picked_up_without_a_restart(persistence, tmp_path):
    write(tmp_path, "reg_e.py", "def handle(p):\n    return {'id': 'late', 'status': ''}\n")
    evaluator = Evaluator(persistence)
    runner = RegistryRunner(persistence, evaluator, RegistryRunnerConfig(registry_refresh_interval_ms=30))
    with started(runner):
        run_id = evaluator.execute(ONE, {"total": 1.0}).workflow_id
        runner.register_handler("billing.Pay", "reg_e")
        until(lambda: evaluator.status(run_id).status is ExecutionStatus.COMPLETED)
        until(lambda: persistence.get_server(runner.server_id).handled)
    assert persistence.get_server(runner.server_id).handlers == ["billing.Pay"]


@pytest.mark.parametrize("kind", SHARED)
def test_registrations_survive_restarts(kind, request, tmp_path):
    write(tmp_path, "reg_kept.py", "def handle(p):\n    return {'id': 'kept', 'status': ''}\n")
    url, settings = url_of(kind, request, tmp_path), Settings(handler_roots=(str(tmp_path),))
    with Persistence(url, settings=settings) as store:
        a_runner(store).register_handler("billing.Pay", "reg_kept", version="2.1", metadata={"a": 1})
    with Persistence(url, settings=settings) as store:
        runner = a_runner(store)
        run_id, _ = one(Evaluator(store))
        assert (runner.poll_once(), runner.registered_names()) == (1, ["billing.Pay"])
        assert Evaluator(store).status(run_id).outputs == {"receipt": "kept"}
        (found,) = store.list_handler_registrations()
        assert (found.version, found.metadata) == ("2.1", {"a": 1})


def test_a_registration_is_found_by_its_exact_name_first_then_by_its_short_name(memory, tmp_path):
    write(tmp_path, "reg_short.py", "def handle(p):\n    return {'id': 'short'}\ndef exact(p):\n    return {'id': 'exact'}\n")
    runner = a_runner(memory)
    runner.register_handler("Pay", "reg_short")
    runner.register_handler("shop.Pay", "reg_short", "exact")
    billing, shop = add(memory, "billing.Pay"), add(memory, "shop.Pay")
    assert runner.poll_once() == 2

    def result(task_id: str) -> str:
        return memory.run(memory.engine.kernel.reads.get_task(task_id)).result

    assert (result(billing), result(shop)) == ('{"id":"short"}', '{"id":"exact"}')


def test_topics_choose_facets_by_glob(memory, tmp_path):
    write(tmp_path, "reg_f.py", "def handle(p):\n    return {}\n")
    runner = a_runner(memory, topics=["osm.geo.*", "valid?tion.*"])
    for name in ("osm.geo.cache.Africa", "validation.Check", "billing.Pay"):
        runner.register_handler(name, "reg_f")
    mine = [add(memory, "osm.geo.cache.Africa"), add(memory, "validation.Check")]
    other = add(memory, "billing.Pay")
    assert runner.poll_once() == 2
    assert {memory.get_task(each).state for each in mine} == {TaskState.COMPLETED}
    assert memory.get_task(other).state == TaskState.PENDING


def test_start_up_reports_topics_without_matches_and_facets_without_handlers(memory, tmp_path, caplog):
    write(tmp_path, "reg_g.py", "def handle(p):\n    return {}\n")
    memory.run(memory.engine.kernel.flows.publish("pay", [("pay.afl", ONE)]))
    runner = a_runner(memory, topics=["nothing.*", "billing.*", "x.*"])
    runner.register_handler("x.Y", "reg_g")
    with caplog.at_level("WARNING", logger="treadle.agents"), started(runner):
        pass
    said = [
        "the topic pattern 'nothing.*' matches no registered handler",
        "the topic pattern 'billing.*' matches no registered handler",
    ]
    assert runner.check() == [*said, "no handler for the event facet billing.Pay"]
    assert all(message in caplog.text for message in runner.check())


@pytest.mark.parametrize("uri", ["json", "os.path", "file:///etc/hostname", "treadle.agents"])
def test_a_module_outside_the_allowed_roots_is_refused_at_registration_and_at_its_task(memory, uri):
    runner = a_runner(memory)
    with pytest.raises(OutsideRoots, match="TREADLE_HANDLER_ROOTS"):
        runner.register_handler("x.Y", uri)
    memory.save_handler_registration(HandlerRegistration("x.Y", uri))
    task_id = add(memory, "x.Y")
    assert runner.poll_once() == 1
    assert error_of(memory, task_id)["code"] == "module_outside_roots"


def test_a_link_out_of_the_roots_is_outside(memory, tmp_path):
    root, outside = tmp_path / "root", write(tmp_path, "outside.py", "def handle(p):\n    return {}\n")
    root.mkdir()
    (root / "inside.py").symlink_to(outside)
    modules = Modules([root])
    with pytest.raises(OutsideRoots):
        modules.locate("inside")
    with pytest.raises(OutsideRoots):
        modules.locate(f"file://{root}/../outside.py")


def test_a_missing_module_fails_its_tasks_until_it_exists(memory, tmp_path):
    runner = a_runner(memory)
    runner.register_handler("x.Late", "reg_late")
    early = add(memory, "x.Late")
    runner.poll_once()
    assert error_of(memory, early)["code"] == "import_failed"
    assert "There is no module reg_late below" in error_of(memory, early)["message"]
    write(tmp_path, "reg_late.py", "def handle(p):\n    return {}\n")
    late = add(memory, "x.Late")
    runner.poll_once()
    assert memory.get_task(late).state == TaskState.COMPLETED


@pytest.mark.parametrize(
    ("text", "entrypoint", "code", "said"),
    [
        ("import no_such_module_anywhere\n", "handle", "import_failed", "no_such_module_anywhere"),
        ("raise RuntimeError('boom at import')\n", "handle", "import_failed", "boom at import"),
        ("def handle(p:\n", "handle", "import_failed", "SyntaxError"),
        ("import sys; sys.exit(3)\n", "handle", "import_failed", "SystemExit"),
        ("def other(p):\n    return {}\n", "handle", "entrypoint_missing", "no function handle"),
        ("handle = 7\n", "handle", "entrypoint_missing", "no function handle"),
    ],
)
def test_an_unusable_module_fails_only_its_own_tasks_with_the_reason(memory, tmp_path, text, entrypoint, code, said):
    write(tmp_path, "reg_bad.py", text)
    write(tmp_path, "reg_good.py", "def handle(p):\n    return {'fine': True}\n")
    runner = a_runner(memory)
    runner.register_handler("x.Bad", "reg_bad", entrypoint)
    runner.register_handler("x.Good", "reg_good")
    bad, good = add(memory, "x.Bad"), add(memory, "x.Good")
    assert runner.poll_once() == 2
    error = error_of(memory, bad)
    assert error["code"] == code
    assert said in error["message"]
    assert memory.get_task(good).state == TaskState.COMPLETED
    write(tmp_path, "reg_bad.py", "def handle(p):\n    return {'repaired': True}\n")
    if code == "import_failed":
        again = add(memory, "x.Bad")
        runner.poll_once()
        assert memory.get_task(again).state == TaskState.COMPLETED


def test_an_import_that_hangs_fails_its_own_tasks_and_blocks_no_slots(memory, tmp_path, monkeypatch):
    monkeypatch.setattr(poller, "IMPORT_LIMIT", 0.2)
    gate = tmp_path / "gate"
    write(
        tmp_path,
        "reg_hang.py",
        f"import time\nfrom pathlib import Path\nwhile not Path({str(gate)!r}).exists(): time.sleep(0.01)\n",
    )
    write(tmp_path, "reg_fine.py", "def handle(p):\n    return {}\n")
    runner = a_runner(memory, max_concurrent=1)
    runner.register_handler("x.Hang", "reg_hang")
    runner.register_handler("x.Fine", "reg_fine")
    with started(runner):
        hanging = [add(memory, "x.Hang") for _ in range(2)]
        until(lambda: all(memory.get_task(each).state == TaskState.FAILED for each in hanging))
        assert {error_of(memory, each)["code"] for each in hanging} == {"import_timeout"}
        monkeypatch.setattr(poller, "IMPORT_LIMIT", BOUND)
        assert memory.run(memory.engine.result(add(memory, "x.Fine"), timeout=BOUND)) == {}
    gate.touch()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("treadle-import")])


@pytest.mark.parametrize(
    "text",
    [
        "import time\nfrom pathlib import Path\ndef handle(p):\n    while not Path('GATE').exists(): time.sleep(0.01)\n"
        "    time.sleep(0.2)\n",
        "import asyncio\nasync def handle(p):\n    await asyncio.Event().wait()\n",
    ],
)
def test_timeout_ms_is_enforced(memory, tmp_path, text):
    gate = tmp_path / "gate"
    write(tmp_path, "reg_slow.py", text.replace("GATE", str(gate)) + "def at_once(p):\n    return {}\n")
    runner = a_runner(memory)
    runner.register_handler("x.Slow", "reg_slow", timeout_ms=100)
    runner.register_handler("x.Quick", "reg_slow", entrypoint="at_once")
    add(memory, "x.Quick")
    runner.poll_once()  # imports the module, which takes its own time
    with started(runner):
        task_id = add(memory, "x.Slow")
        until(lambda: memory.get_task(task_id).state == TaskState.FAILED)
    error = error_of(memory, task_id)
    assert (error["code"], "longer than 0.1 s" in error["message"]) == ("timeout", True)
    gate.touch()
    again = add(memory, "x.Slow")
    runner.poll_once()
    assert memory.get_task(again).state == TaskState.FAILED


def test_requirements_are_checked_and_reported(memory, tmp_path, caplog):
    write(tmp_path, "reg_h.py", "def handle(p):\n    return {}\n")
    runner = a_runner(memory)
    runner.register_handler("x.Y", "reg_h", requirements=["treadle-no-such-thing"])
    with caplog.at_level("WARNING", logger="treadle.agents"):
        runner.poll_once()
        runner.poll_once()
    assert caplog.text.count("treadle-no-such-thing (not installed)") == 1


@pytest.mark.parametrize(
    "fields_",
    [
        {"facet_name": "no name"},
        {"facet_name": "afl:execute"},
        {"module_uri": ""},
        {"module_uri": "no module!"},
        {"entrypoint": "not.a.name"},
        {"timeout_ms": 0},
        {"timeout_ms": "long"},
        {"metadata": {"x": float("nan")}},
        {"requirements": [7]},
        {"requirements": ["requests>=two"]},
        {"requirements": ["apsw", "not a requirement"]},
        {"requirements": [""]},
    ],
)
def test_an_invalid_registration_is_rejected(memory, fields_):
    with pytest.raises(InvalidInput):
        a_runner(memory).register_handler(**{"facet_name": "x.Y", "module_uri": "m", **fields_})
    assert memory.list_handler_registrations() == []


def test_each_call_receives_its_own_copy_of_the_metadata(memory, tmp_path):
    write(
        tmp_path,
        "reg_i.py",
        "def handle(p):\n    p['_handler_metadata']['seen'].append(1)\n    return {'n': len(p['_handler_metadata']['seen'])}\n",
    )
    runner = a_runner(memory)
    runner.register_handler("x.Y", "reg_i", metadata={"seen": []})
    ids = [add(memory, "x.Y") for _ in range(2)]
    runner.poll_once()
    assert [memory.run(memory.engine.result(each)) for each in ids] == [{"n": 1}, {"n": 1}]


def test_update_step_shows_partial_results_while_a_handler_runs(memory, tmp_path):
    write(
        tmp_path,
        "reg_j.py",
        "import time\nfrom pathlib import Path\n"
        "async def handle(p):\n    p['_update_step']({'status': 'half'})\n"
        f"    while not Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\n"
        "    return {'id': 'x'}\n",
    )
    evaluator = Evaluator(memory)
    runner = RegistryRunner(memory, evaluator)
    runner.register_handler("billing.Pay", "reg_j")
    with started(runner):
        run_id, step_id = one(evaluator)
        until(lambda: memory.get_step(step_id).returns == {"status": "half"})
        runner.update_step(step_id, {"id": "early"})
        assert memory.get_step(step_id).returns == {"status": "half", "id": "early"}
        (tmp_path / "go").touch()
        until(lambda: evaluator.status(run_id).status is ExecutionStatus.COMPLETED)
    assert memory.get_step(step_id).returns == {"status": "half", "id": "x"}


def test_a_module_cannot_replace_another_of_the_same_name(tmp_path):
    import json

    write(tmp_path, "json.py", "def handle(p):\n    return {'mine': True}\n")
    assert Modules([tmp_path]).find(HandlerRegistration("x.Y", "json"))({}) == {"mine": True}
    assert __import__("sys").modules["json"] is json
    with pytest.raises(NonRetryable):
        Modules([tmp_path]).find(HandlerRegistration("x.Y", "not_there"))


def test_module_roots_are_read_from_the_environment_and_only_runners_have_a_default(monkeypatch, tmp_path):
    from treadle.settings import load_settings

    monkeypatch.setenv("TREADLE_HANDLER_ROOTS", f"{tmp_path}/a:{tmp_path}/b")
    assert Modules(load_settings().handler_roots).roots == (tmp_path / "a", tmp_path / "b")
    assert runner_roots(load_settings().handler_roots) == (f"{tmp_path}/a", f"{tmp_path}/b")
    monkeypatch.delenv("TREADLE_HANDLER_ROOTS")
    monkeypatch.chdir(tmp_path)
    assert Modules(load_settings().handler_roots).roots == ()
    assert runner_roots(load_settings().handler_roots) == (str(tmp_path),)


COUNTED = "import sys\ncounts = sys.__dict__.setdefault('handler_runs', [])\ncounts.append(__file__)\n"


def test_a_file_can_import_its_siblings_relatively(tmp_path):
    write(tmp_path, "pack/shared.py", "BASE = 40")
    write(tmp_path, "pack/inner/__init__.py", "TWO = 2")
    write(tmp_path, "pack/inner/near.py", "from ..shared import BASE\nfrom . import TWO\ndef total(): return BASE + TWO")
    path = write(
        tmp_path, "pack/inner/work.py", "from .near import total\nfrom . import near\ndef handle(p): return {'n': total()}"
    )
    beside = write(tmp_path, "own.py", "from .pack.shared import BASE\ndef handle(p): return {'n': BASE}")
    dotted = write(tmp_path, "v1.2/top.py", "from .low import N\ndef handle(p): return {'n': N}")
    write(tmp_path, "v1.2/low.py", "N = 7")
    modules = Modules([tmp_path])
    for file, found in ((path, 42), (beside, 40), (dotted, 7)):
        assert modules.find(HandlerRegistration("x.Y", file.as_uri()))({}) == {"n": found}


def test_equal_siblings_of_two_roots_are_kept_apart(tmp_path):
    for folder, number in (("a", 1), ("b", 2)):
        write(tmp_path, f"{folder}/low.py", f"N = {number}")
        write(tmp_path, f"{folder}/top.py", "from .low import N\ndef handle(p): return {'n': N}")
    modules = Modules([tmp_path / "a", tmp_path / "b"])
    found = [modules.find(HandlerRegistration("x.Y", (tmp_path / f / "top.py").as_uri()))({}) for f in ("a", "b")]
    assert found == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("by_file", [True, False])
def test_a_module_that_is_already_imported_is_not_executed_again_before_its_checksum_changes(tmp_path, monkeypatch, by_file):
    name = f"already_{by_file}".lower()
    path = write(tmp_path, f"{name}.py", COUNTED + "def handle(p): return {}")
    monkeypatch.syspath_prepend(str(tmp_path))
    imported = importlib.import_module(name)
    uri = path.as_uri() if by_file else name
    for _ in range(2):  # two runners of one process
        found = Modules([tmp_path]).find(HandlerRegistration("x.Y", uri, checksum="1"))
        assert found is imported.handle
    assert imported.counts.count(str(path)) == 1
    assert Modules([tmp_path]).find(HandlerRegistration("x.Y", uri, checksum="2")) is not imported.handle
    assert imported.counts.count(str(path)) == 2


def test_a_file_and_its_module_name_are_one_module(tmp_path):
    path = write(tmp_path, "both_ways.py", COUNTED + "def handle(p): return {}")
    modules = Modules([tmp_path])
    by_name = modules.find(HandlerRegistration("x.Y", "both_ways"))
    assert modules.find(HandlerRegistration("x.Z", path.as_uri())) is by_name


@pytest.mark.parametrize("by_file", [True, False])
def test_a_package_that_imports_its_handler_module_executes_it_once(tmp_path, by_file):
    pack = f"pack_{by_file}".lower()
    write(tmp_path, f"{pack}/__init__.py", "from .work import handle")
    write(tmp_path, f"{pack}/low.py", "N = 3")
    path = write(tmp_path, f"{pack}/work.py", COUNTED + "from .low import N\ndef handle(p): return {'n': N}")
    found = Modules([tmp_path]).find(HandlerRegistration("x.Y", path.as_uri() if by_file else f"{pack}.work"))
    assert found({}) == {"n": 3}
    assert found.__globals__["counts"].count(str(path)) == 1


@pytest.mark.parametrize("root", ["folder", "/"])
def test_an_installed_module_is_not_a_handler_even_below_a_root(tmp_path: Path, root: str):
    places = {
        "venv/lib/python3/site-packages/shell.py": "def handle(payload): ...",
        "env/shell.py": "def handle(payload): ...",
        "own/shell.py": "def handle(payload): ...",
    }
    for place, text in places.items():
        (tmp_path / place).parent.mkdir(parents=True)
        (tmp_path / place).write_text(text)
    (tmp_path / "env/pyvenv.cfg").touch()
    modules = Modules([tmp_path if root == "folder" else root])
    assert modules.locate((tmp_path / "own/shell.py").as_uri()) == tmp_path / "own/shell.py"
    installed = [tmp_path / "venv/lib/python3/site-packages/shell.py", tmp_path / "env/shell.py"]
    for path in [*installed, Path(subprocess.__file__), Path(pytest.__file__)]:
        with pytest.raises(OutsideRoots):
            modules.locate(path.as_uri())


def test_a_function_imported_by_a_handler_module_is_not_a_handler(tmp_path: Path):
    (tmp_path / "imported_hands.py").write_text("def ours(payload): return {}\n")
    (tmp_path / "importing_hands.py").write_text(
        "from functools import partial\nfrom os import system\nfrom subprocess import Popen, run\nfrom imported_hands import ours\n"
        "def handle(payload): return {}\nhalf = partial(handle)\n"
    )
    modules = Modules([tmp_path])
    for entrypoint in ("handle", "half", "ours"):
        assert modules.find(HandlerRegistration("x.Y", "importing_hands", entrypoint))
    for entrypoint in ("system", "run", "Popen", "partial"):
        with pytest.raises(NonRetryable, match=r"no function .* of its own"):
            modules.find(HandlerRegistration("x.Y", "importing_hands", entrypoint))


def test_the_root_folder_is_not_a_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "hands.py").write_text("def handle(payload): return {}")
    monkeypatch.chdir("/")
    with pytest.raises(OutsideRoots, match="there is none"):
        Modules(runner_roots(())).locate((tmp_path / "hands.py").as_uri())
