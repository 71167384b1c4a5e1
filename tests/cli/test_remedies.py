"""Commands as messages and documents name them: workers without handlers, one name for inputs, narrow terminals, watching."""

from __future__ import annotations

import json
import signal

import pytest
from tests.commands import Treadle
from tests.goals.scene import TOPOLOGY


@pytest.mark.parametrize("role", [(), ("--role", "gate")])
def test_a_worker_plays_the_roles_of_a_topology_without_handlers(treadle: Treadle, role: tuple[str, ...]):
    (treadle.folder / "topology.yaml").write_text(TOPOLOGY)
    with treadle.started("worker", "--topology", "topology.yaml", *role, "--json") as worker:
        assert json.loads(worker.first)["handlers"] == []
        assert worker.stop(signal.SIGINT).code == 0


def test_every_command_takes_inputs_by_the_same_options(treadle: Treadle):
    (treadle.folder / "pure.afl").write_text("workflow Twice(n: Long) => (m: Long) andThen { yield Twice(m = $.n * 2) }\n")
    for name in ("-p", "--param", "-i", "--input"):  # the last two are former names
        run = treadle.json("submit", "pure.afl", "--payload", '{"n": 1}', name, "n=2")
        assert treadle.json("runs", "show", run["id"])["inputs"] == {"n": 2}
        task = treadle.json("enqueue", "greet", "--payload", '{"n": 1, "m": 1}', name, "n=2")
        assert treadle.json("tasks", "show", task["id"])["payload"] == {"n": 2, "m": 1}
        made = treadle.json("schedules", "add", name.strip("-"), "--every", "1h", "--task", "greet", name, "n=2")
        assert made["target"]["inputs"] == {"n": 2}
    for command in (("run",), ("submit",), ("enqueue",), ("functions", "start"), ("schedules", "add"), ("runs", "fork")):
        shown = treadle(*command, "--help").out
        assert "-p, --param" in shown
        assert "--input" not in shown


def test_lists_fit_a_terminal_of_80_columns(treadle: Treadle):
    (treadle.folder / "long.afl").write_text(
        "namespace a.long.name.of.a.company { workflow EveryMonth(n: Long) => (m: Long) andThen { yield EveryMonth(m = 1) } }\n"
    )
    run = treadle.json("submit", "long.afl", "-p", "n=1")
    task = treadle.json("enqueue", "a.long.name.of.a.company.billing.EveryMonth")
    treadle.json("schedules", "add", "nightly-report-of-everything", "--cron", "30 2 * * *", "--task", "billing.Report")
    for words, whole in ((("runs",), run["id"]), (("tasks",), task["id"]), (("schedules",), "30 2 * * *")):
        shown = treadle(*words, "list", COLUMNS="80", FORCE_COLOR="1", NO_COLOR="1", TERM="dumb").out
        assert whole in shown  # an id is never broken
        assert max(map(len, shown.splitlines())) <= 80, shown
        wide = treadle(*words, "list").out
        assert len(wide.splitlines()[1].split()) >= len(shown.splitlines()[1].split())


def test_a_run_is_watched_until_it_ends(treadle: Treadle):
    (treadle.folder / "pure.afl").write_text("workflow Twice(n: Long) => (m: Long) andThen { yield Twice(m = $.n * 2) }\n")
    run = treadle.json("submit", "pure.afl", "-p", "n=2")
    with treadle.started("worker", "--json"):  # flows without handlers need none
        watched = treadle("runs", "watch", run["id"])
    assert (watched.code, json.loads(watched.out)) == (0, {"m": 4})
    assert run["id"] in watched.err
    assert treadle("runs", "watch", "nowhere").code != 0
