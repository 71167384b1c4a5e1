"""A runner without code for any facet: it loads the registered handlers. Ctrl-C stops it."""

from __future__ import annotations

import signal

from treadle.agents import Evaluator, RegistryRunner, RegistryRunnerConfig, open_persistence

with open_persistence() as store:
    runner = RegistryRunner(
        persistence=store,
        evaluator=Evaluator(persistence=store),
        config=RegistryRunnerConfig(service_name="billing-runner"),
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: runner.stop())
    runner.on_started = lambda: print(f"serving {', '.join(runner.registered_names()) or 'nothing yet'}; Ctrl-C stops", flush=True)
    runner.start()  # blocks; auto-loads handlers from the store
