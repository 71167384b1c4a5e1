"""Alert rules: each cause fires once, its message is stored with it, and it resolves when the cause is gone."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engines import url_of
from tests.errors import raises_code
from tests.functions.driver import Died, Process, Scene, function_scene
from tests.monitoring.test_problems import FAULTS
from tests.sizes import POSTGRES

from treadle.kernel.alerts import evaluate
from treadle.kernel.alerts.evaluate import CAUSES, AlertEvaluator
from treadle.kernel.alerts.service import Alerts
from treadle.kernel.store.queries import TaskFilter
from treadle.kernel.store.units import PutRun, RunTransition, Unit
from treadle.model.errors import InvalidAlert, InvalidInput
from treadle.model.names import ALERT, NOTIFY
from treadle.model.runs import Run
from treadle.model.tasks import Server
from treadle.model.values import decode, encode

URL = "https://ops.example.org/hook/s3cret?token=abc"
MINUTE = 60

Cure = Callable[[], Awaitable[Any]]


@pytest.fixture
async def scene(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with function_scene(url_of(getattr(request, "param", "sqlite"), request, tmp_path)) as scene:
        yield scene


async def pass_(scene: Scene, seconds: float) -> None:
    """Advance the clock of the process, and that of the database if it has one."""
    scene.clock.advance(seconds)
    store: Any = scene.engine.kernel.store
    if store.url.startswith("postgresql"):
        await store.set_clock_offset(round(scene.clock.monotonic() * 1000))


class Watch:
    """Evaluates the rules by hand, and takes the messages that they leave."""

    def __init__(self, scene: Scene, evaluator: AlertEvaluator | None = None) -> None:
        self.scene = scene
        self.process = scene.process()
        self.evaluator = evaluator or scene.engine.kernel.trigger_services.alert_evaluator

    async def evaluate(self, *, after: float = 0) -> list[dict[str, Any]]:
        """The messages of the evaluations that are due after so many seconds."""
        await pass_(self.scene, after)
        await self.scene.engine.kernel.store.tasks.wake(1000)
        for task in await self.process.claim(ALERT):
            await self.evaluator.run(task)
        return await self.messages()

    async def messages(self) -> list[dict[str, Any]]:
        taken = await self.process.claim(NOTIFY)
        for task in taken:
            await self.process.settle(task)
        return [decode(task.payload) for task in taken]


@pytest.fixture
def watch(scene: Scene) -> Watch:
    return Watch(scene)


async def fail_runs(scene: Scene, count: int, name: str = "import", error: str = "The file is empty.") -> list[str]:
    async def broken(payload: dict[str, Any], ctx: Any) -> None:
        raise ValueError(error)

    if f"{name}@1" not in scene.engine.kernel.function_registry.names():
        scene.engine.function(name)(broken)

    runs = [await scene.engine.start_function(name) for _ in range(count)]
    process = scene.process()
    await process.quiet()
    process.die()
    return [run.id for run in runs]


async def runs_fail(scene: Scene, folder: Path) -> Cure:
    ids = await fail_runs(scene, 2)

    assert len(ids) == 2
    return lambda: pass_(scene, 16 * MINUTE)


async def budget_is_spent(scene: Scene, folder: Path) -> Cure:
    from treadle.llm.config import LLMError

    @scene.engine.function("ask")
    async def ask(payload: dict[str, Any], ctx: Any) -> None:
        raise LLMError("budget_exhausted", "The budget of 1 dollar is spent.")

    await scene.engine.start_function("ask")
    process = scene.process()
    await process.quiet()
    process.die()

    return lambda: pass_(scene, 16 * MINUTE)


async def queue_is_old(scene: Scene, folder: Path) -> Cure:
    task = await scene.engine.enqueue("fax", {}, task_list="slow")
    await pass_(scene, 6 * MINUTE)
    return lambda: scene.engine.cancel(task.id)


async def server_is_lost(scene: Scene, folder: Path) -> Cure:
    server = Server(id=scene.engine.kernel.ids.new_id(), name="w1", host="h", pid=1, version="1", state="running")
    await scene.engine.kernel.store.servers.save(server)
    await pass_(scene, 10 * MINUTE)

    async def forget() -> None:
        await scene.engine.kernel.store.servers.save(msgspec.structs.replace(server, state="stopped"))

    return forget


RULES: dict[str, tuple[Callable[[Scene, Path], Awaitable[Cure]], dict[str, Any], str, int]] = {
    "run_failed": (runs_fail, {"workflow": "imp*"}, "import ", 2),
    "dead_letters": (FAULTS["dead_letters"], {}, "dead_letters", 1),
    "queue_age": (queue_is_old, {"task_list": "slow", "age": 300}, "slow", 1),
    "trigger_failing": (FAULTS["watcher_failing"], {}, "watcher_failing incoming", 1),
    "worker_lost": (server_is_lost, {}, "server_lost", 1),
    "budget_spent": (budget_is_spent, {}, "ask budget_exhausted", 1),
}


async def check_fires_once_and_resolves(watch: Watch, plant: Callable[[], Awaitable[Cure]], cause: str, count: int) -> None:
    alerts = watch.scene.engine.alerts
    assert await watch.evaluate() == []
    cure = await plant()
    (told,) = await watch.evaluate(after=15)
    assert (told["event"], told["rule"], told["count"], len(told["alerts"])) == ("alert.firing", "r", 1, 1)
    (alert,) = told["alerts"]
    assert alert["cause"].startswith(cause)
    assert (alert["count"], alert["state"], bool(alert["text"]), bool(alert["remedy"])) == (count, "firing", True, True)
    assert await watch.evaluate(after=15) == []  # once per cause
    (shown,) = (await alerts.list(firing=True)).alerts
    assert (shown.id, len(shown.deliveries)) == (alert["id"], 1)
    await cure()
    (over,) = await watch.evaluate(after=15) or await watch.evaluate(after=15)
    assert (over["event"], [each["id"] for each in over["alerts"]]) == ("alert.resolved", [alert["id"]])
    assert await watch.evaluate(after=15) == []
    assert (await alerts.list(firing=True)).alerts == []
    (ended,) = (await alerts.list()).alerts
    assert (ended.state, ended.resolved_at is not None, len(ended.deliveries)) == ("resolved", True, 2)
    assert (await watch.scene.engine.kernel.verify()).problems == ()


@pytest.mark.parametrize("when", RULES)
async def test_each_rule_fires_once_and_resolves(watch: Watch, tmp_path: Path, when: str) -> None:
    plant, options, cause, count = RULES[when]
    await watch.scene.engine.alerts.create("r", when=when, to=URL, **options)
    await check_fires_once_and_resolves(watch, lambda: plant(watch.scene, tmp_path), cause, count)


@pytest.mark.postgres
@pytest.mark.parametrize("scene", ["memory", POSTGRES], indirect=True)
async def test_a_rule_fires_once_on_every_store(watch: Watch, tmp_path: Path) -> None:
    await watch.scene.engine.alerts.create("r", when="run_failed", to=URL)
    await check_fires_once_and_resolves(watch, lambda: runs_fail(watch.scene, tmp_path), "import ", 2)


@pytest.mark.parametrize("code", FAULTS)
async def test_every_problem_of_status_fires_and_resolves(watch: Watch, tmp_path: Path, code: str) -> None:
    cure = await FAULTS[code](watch.scene, tmp_path)
    await watch.scene.engine.alerts.create("r", when="problem", code=code, to=URL)
    (told,) = await watch.evaluate()
    assert [each["cause"].split()[0] for each in told["alerts"]] == [code]
    await cure()
    (over,) = await watch.evaluate(after=15)
    assert (over["event"], over["count"]) == ("alert.resolved", 1)


async def test_many_failures_of_one_cause_are_one_message_with_a_count(watch: Watch) -> None:
    await watch.scene.engine.alerts.create("r", when="run_failed", to=URL, lasts=60, repeat=600)
    await watch.evaluate()
    await fail_runs(watch.scene, 40)
    assert await watch.evaluate(after=15) == []  # it has to last
    await fail_runs(watch.scene, 60)
    (told,) = await watch.evaluate(after=60)
    assert (told["count"], told["alerts"][0]["count"]) == (1, 100)
    assert "100 runs of import failed" in told["alerts"][0]["text"]
    await fail_runs(watch.scene, 1)
    assert await watch.evaluate(after=300) == []
    (again,) = await watch.evaluate(after=300)
    assert (again["event"], again["alerts"][0]["count"]) == ("alert.firing", 101)


async def test_causes_that_fire_together_share_a_message(watch: Watch) -> None:
    await watch.scene.engine.alerts.create("r", when="run_failed", to=URL)
    for name in ("a", "b", "c"):
        await fail_runs(watch.scene, 1, name)
    (told,) = await watch.evaluate()
    assert (told["count"], {each["cause"].split()[0] for each in told["alerts"]}) == (3, {"a", "b", "c"})


async def test_a_flapping_cause_neither_fires_nor_resolves(watch: Watch) -> None:
    lists, engine = watch.scene.engine.kernel.lists, watch.scene.engine
    await engine.enqueue("fax", {}, delay=36_000, task_list="slow")
    await engine.alerts.create("r", when="problem", code="list_paused", to=URL, lasts=60)
    for _ in range(5):  # never long enough
        await lists.pause("slow")
        assert await watch.evaluate(after=45) == []
        await lists.resume("slow")
        assert await watch.evaluate(after=45) == []
    await lists.pause("slow")
    await watch.evaluate(after=15)
    assert len(await watch.evaluate(after=60)) == 1
    for _ in range(5):  # never away long enough
        await lists.resume("slow")
        assert await watch.evaluate(after=45) == []
        await lists.pause("slow")
        assert await watch.evaluate(after=45) == []
    await lists.resume("slow")
    await watch.evaluate(after=15)
    assert [each["event"] for each in await watch.evaluate(after=60)] == ["alert.resolved"]


async def put_failed_runs(scene: Scene, count: int, name: str, code: str = "broken") -> None:
    store, ids, error = scene.engine.kernel.store, scene.engine.kernel.ids, encode({"code": code, "message": "no"})
    for size in [500] * (count // 500) + [count % 500] * bool(count % 500):
        runs = [Run(id=(run_id := ids.new_id()), root_id=run_id, flow_id="", workflow=name) for _ in range(size)]
        transitions = [RunTransition(run.id, "fail", "running", "failed", error=error) for run in runs]
        starts = [RunTransition(run.id, "start", "pending", "running") for run in runs]
        rows = [(PutRun(run), start, transition) for run, start, transition in zip(runs, starts, transitions, strict=True)]
        await store.commit([Unit(rows=each) for each in rows])


@pytest.mark.parametrize(
    "storm", [("broken", {"when": "run_failed", "workflow": "b"}), ("budget_exhausted", {"when": "budget_spent"})]
)
async def test_a_failure_before_many_others_fires_and_does_not_resolve(watch: Watch, storm: tuple[str, dict[str, Any]]) -> None:
    code, options = storm
    await watch.scene.engine.alerts.create("r", to=URL, **options)
    await watch.evaluate()
    await put_failed_runs(watch.scene, 1, "b", code)
    await put_failed_runs(watch.scene, 1001, "a")
    (told,) = await watch.evaluate(after=15)
    assert [(each["cause"], each["count"]) for each in told["alerts"]] == [(f"b {code}", 1)]
    assert await watch.evaluate(after=15) == []


async def test_a_cause_that_a_storm_hides_counts_as_present(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "PAGE", 5)
    monkeypatch.setattr(evaluate, "PAGES", 2)
    engine = watch.scene.engine
    await engine.alerts.create("r", when="run_failed", to=URL)
    await engine.alerts.create("later", when="run_failed", workflow="b", to=URL, lasts=60)
    await put_failed_runs(watch.scene, 1, "b")
    assert [each["count"] for each in await watch.evaluate()] == [1]
    await put_failed_runs(watch.scene, 20, "a")
    told = {each["rule"]: each for each in await watch.evaluate(after=60)}
    assert {name: [each["cause"] for each in message["alerts"]] for name, message in told.items()} == {
        "r": ["a broken"],
        "later": ["b broken"],
    }
    assert {each["event"] for each in told.values()} == {"alert.firing"}
    assert "10 or more runs of a failed" in told["r"]["alerts"][0]["text"]
    assert [each["event"] for each in await watch.evaluate(after=20 * MINUTE)] == ["alert.resolved"]


async def test_a_small_cause_stays_while_larger_ones_exceed_the_number_of_causes(watch: Watch) -> None:
    await watch.scene.engine.alerts.create("r", when="run_failed", to=URL)
    await put_failed_runs(watch.scene, 1, "b")
    await watch.evaluate()
    for number in range(CAUSES):
        await put_failed_runs(watch.scene, 2, f"a{number}")
    (told,) = await watch.evaluate(after=15)
    assert (told["event"], told["count"]) == ("alert.firing", CAUSES - 1)


@pytest.mark.parametrize("before", [0, 7, 14])
async def test_a_single_failure_fires_with_the_longest_duration_that_is_accepted(watch: Watch, before: int) -> None:
    await watch.scene.engine.alerts.create("r", when="run_failed", to=URL, lasts=60, within=90, every=15)
    await watch.evaluate()
    await pass_(watch.scene, before)
    await put_failed_runs(watch.scene, 1, "b")
    await pass_(watch.scene, -before % 15)
    assert [event["event"] for _ in range(7) for event in await watch.evaluate(after=15)][:1] == ["alert.firing"]


async def test_a_silenced_rule_reports_at_the_end_of_its_silence(watch: Watch) -> None:
    engine = watch.scene.engine
    await engine.alerts.create("r", when="run_failed", to=URL, within=86_400)
    await engine.alerts.silence("r", 3600)
    await fail_runs(watch.scene, 1)
    assert await watch.evaluate(after=15) == []
    assert len((await engine.alerts.list(firing=True)).alerts) == 1
    (told,) = await watch.evaluate(after=3600)
    assert told["event"] == "alert.firing"
    await engine.alerts.silence("r", 3600)
    await watch.evaluate(after=86_400)
    assert (await engine.alerts.list(firing=True)).alerts == []


async def test_failures_while_no_worker_ran_are_reported(watch: Watch) -> None:
    await watch.scene.engine.alerts.create("r", when="run_failed", to=URL, within=60)
    await watch.evaluate()
    await fail_runs(watch.scene, 1)
    (told,) = await watch.evaluate(after=7200)
    assert told["event"] == "alert.firing"
    assert [each["event"] for each in await watch.evaluate(after=15)] == ["alert.resolved"]


async def test_a_removed_rule_ends_its_alerts_and_frees_its_name(watch: Watch) -> None:
    alerts = watch.scene.engine.alerts
    await alerts.create("r", when="run_failed", to=URL)
    with raises_code("alert_rule_exists"):
        await alerts.create("r", when="run_failed", to=URL)
    await fail_runs(watch.scene, 1)
    await watch.evaluate()
    await alerts.remove("r")
    assert ((await alerts.list(firing=True)).alerts, (await alerts.rules()).rules) == ([], [])
    assert await watch.evaluate(after=60) == []
    with raises_code("alert_rule_not_found"):
        await alerts.silence("r", 60)
    await alerts.create("r", when="run_failed", to=URL)
    assert len(await watch.evaluate()) == 1
    assert len((await alerts.list(rule="r")).alerts) == 1
    assert len((await alerts.list()).alerts) == 2


async def test_an_alert_and_its_message_are_stored_together_or_not_at_all(scene: Scene) -> None:
    """The process dies before or after each commit of the evaluation; another evaluates again."""
    kernel = scene.engine.kernel
    await scene.engine.alerts.create("r", when="run_failed", to=URL)
    await fail_runs(scene, 1)
    total = 0
    for after in (False, True):
        doomed = Process(scene.engine, dies_at=1, after=after)
        services = kernel.trigger_services
        core = dataclasses.replace(kernel.core, committer=doomed.committer)  # type: ignore[arg-type]
        evaluator = AlertEvaluator(core, Alerts(core, services.starters), services.alert_evaluator.read_status)
        with pytest.raises(Died):
            await Watch(scene, evaluator).evaluate(after=60)
        scene.clock.advance(61)
        total += len(await Watch(scene).evaluate())
        total += len(await Watch(scene).evaluate(after=15))
        doomed.die()
    assert total == 1
    assert len((await scene.engine.alerts.list()).alerts) == 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"when": "moon", "to": URL}, InvalidAlert),
        ({"when": "run_failed"}, InvalidAlert),
        ({"when": "run_failed", "to": "slack://a/b/c"}, InvalidAlert),
        ({"when": "run_failed", "to": "https://user:s3cret@example.org"}, InvalidAlert),
        ({"when": "run_failed", "to": "HOME"}, InvalidAlert),
        ({"when": "run_failed", "to": URL, "over": 3}, InvalidAlert),
        ({"when": "dead_letters", "to": URL, "over": -1}, InvalidAlert),
        ({"when": "problem", "to": URL, "every": 0.1}, InvalidAlert),
        ({"when": "run_failed", "to": URL, "lasts": 900}, InvalidAlert),
        ({"when": "budget_spent", "to": URL, "lasts": 60, "within": 120, "every": 31}, InvalidAlert),
        ({"when": "problem", "to": URL, "color": "red"}, InvalidInput),
    ],
)
async def test_an_invalid_rule_is_refused_without_repeating_its_secrets(scene: Scene, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as refused:
        await scene.engine.alerts.create("r", **options)
    assert "s3cret" not in str(refused.value)
    assert "slack://a" not in str(refused.value)
    assert (await scene.engine.alerts.rules()).rules == []


async def test_operators_act_on_the_rule_instead_of_its_task(scene: Scene) -> None:
    rule = await scene.engine.alerts.create("r", when="problem", to=URL)
    with pytest.raises(Exception, match="`treadle alerts remove r`"):
        await scene.engine.cancel(rule.task_id or "")
    (task,) = await scene.engine.kernel.store.tasks.list_matching(TaskFilter(kind=ALERT), 10)
    assert (task.id, task.finished) == (rule.task_id, False)
