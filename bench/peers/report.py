"""Write the figures of a session as the section `peers` of RESULTS.md."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures import LABELS, spread
from bench.peers.catalog import Subject
from bench.peers.figures import DRAIN_1, DRAIN_2, ENQUEUE_1, ENQUEUE_32, FUNCTIONS, IDLE, LATENCY, LIMIT, Figures, percentile
from bench.peers.session import Sizes
from bench.peers.targets import Target, targets
from bench.results import shown, table

STORES = LABELS | {"redis": "Redis"}
NOT = "–"


def body(figures: Figures, subjects: Sequence[Subject], sizes: Sizes, versions: dict[str, str], servers: Sequence[str]) -> str:
    """All tables, the targets first."""
    parts = [
        _about(sizes, servers, subjects),
        "### Targets\n\n" + target_table(targets(figures, subjects)),
        "### Engines\n\n" + _who(subjects, versions),
        "### Drain, tasks per second\n\n" + _rates(figures, subjects, (DRAIN_1, DRAIN_2)) + "\n\n" + _limits(figures),
        "### Enqueue, tasks per second\n\n" + _rates(figures, subjects, (ENQUEUE_1, ENQUEUE_32)),
        "### A durable function of ten steps, runs per second\n\n"
        + _rates(figures, [each for each in subjects if each.functions], (FUNCTIONS,)),
        "### An idle worker\n\n" + _waiting(figures, [each for each in subjects if each.waits]),
    ]
    return "\n\n".join(part for part in parts if part)


def target_table(found: Sequence[Target]) -> str:
    """Each target with its ratio and verdict."""
    rows = [
        (
            target.title,
            target.against,
            *(
                NOT if each is None else shown(each)
                for each in (target.median(target.ours), target.median(target.theirs), target.ratio)
            ),
            f"{'at least' if target.at_least else 'at most'} {target.wanted:g}",
            target.verdict,
        )
        for target in found
    ]
    return table(("measure", "compared with", "Treadle", "other", "ratio", "target", "result"), rows)


ABOUT = """\
The same work with each engine, in one session of {rounds} round(s) that measures all of them alternately: medians (minimum to
maximum). {servers}SQLite on disk. PostgreSQL is private, with its default durability (fsync and synchronous_commit on); each
measurement has a new database. {redis} `bench/peers/subjects` shows and explains the configuration of each engine.

Drain: {tasks:,} no-op tasks (fewer for engines that would take minutes), from the time when loaded and connected workers start
working until the database reports all tasks done; an engine that is not done after {drain_for:g} s counts with the tasks done by
then. Latency: from before an enqueue in one process to the start of the handler in another, idle worker process. Idle:
transactions of one idle worker, counted by the server. A dash: the engine has no such feature, or it was not measured."""

REDIS = "Redis is private, too; it syncs its log every second (appendfsync everysec), so a crash may lose the last second."
NO_REDIS = "Celery and Dramatiq were not measured, because `redis-server` was not on PATH or they were not selected."


def _about(sizes: Sizes, servers: Sequence[str], subjects: Sequence[Subject]) -> str:
    redis = REDIS if any(each.store == "redis" for each in subjects) else NO_REDIS
    named = "".join(f"{server}, " for server in servers)
    return ABOUT.format(rounds=sizes.rounds, tasks=sizes.tasks, drain_for=sizes.drain_for, servers=named, redis=redis)


def _who(subjects: Sequence[Subject], versions: dict[str, str]) -> str:
    rows = [(each.title, versions.get(each.package, ""), STORES[each.store], each.keeps, each.fences) for each in subjects]
    return table(("engine", "version", "store", "kept of a finished task", "fences"), rows)


def _rates(figures: Figures, subjects: Sequence[Subject], measures: Sequence[str]) -> str:
    head = ("engine", "store", *(measure.partition(", ")[2] or measure for measure in measures))
    rows = [(each.title, STORES[each.store], *(_spread(figures, measure, each.name) for measure in measures)) for each in subjects]
    return table(head, rows)


def _limits(figures: Figures) -> str:
    said = [f"{STORES[store]} {_spread(figures, LIMIT, store)}" for store in figures.values.get(LIMIT, {})]
    return f"The bare set-based loop of `bench/limits.py`, measured in each round: {'; '.join(said)}." if said else ""


def _waiting(figures: Figures, subjects: Sequence[Subject]) -> str:
    rows = []
    for each in subjects:
        samples = figures.found(LATENCY, each.name)
        p50, p99 = (shown(percentile(samples, part)) if samples else NOT for part in (0.5, 0.99))
        if not samples:
            p50 = _failed(figures, LATENCY, each.name)
        rows.append((each.title, STORES[each.store], p50, p99, len(samples), _spread(figures, IDLE, each.name)))
    return table(("engine", "store", "latency p50, ms", "p99, ms", "samples", "idle transactions/s"), rows)


def _spread(figures: Figures, measure: str, name: str) -> str:
    """The median with the least and the greatest; what went wrong if nothing was found."""
    values = figures.found(measure, name)
    return spread(values) if values else _failed(figures, measure, name)


def _failed(figures: Figures, measure: str, name: str) -> str:
    error = figures.errors.get(measure, {}).get(name)
    return NOT if error is None else f"failed: {error.replace('|', '/')}"
