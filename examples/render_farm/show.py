"""A scenario of a few seconds: a film is rendered by a farm that is killed in the middle, and its job is submitted once.

    python examples/render_farm/show.py

Everything is in a temporary folder, and nothing is left behind.
"""

import asyncio
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from handlers import RenderFarm, publish

from treadle import Engine

HERE = Path(__file__).parent


@contextmanager
def a_farm(state, port):
    """Start the farm as a separate process; its first line of output ends with its URL."""
    command = [sys.executable, str(HERE / "farm.py"), "--state", str(state), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, process.stdout.readline().split()[-1]
        finally:
            process.kill()


async def story(folder):
    state = folder / "farm.json"
    with a_farm(state, 0) as (farm, url):
        engine = Engine(f"sqlite:///{folder / 'film.db'}")
        specialist = RenderFarm(url, interval=0.5)
        engine.specialist("film.Render", specialist)
        engine.handler("film.Publish")(publish)
        async with engine, engine.worker():
            run = await engine.start(
                [("flow.afl", (HERE / "flow.afl").read_text())], {"scene": "dawn", "frames": 6}, workflow="film.Film"
            )
            print(f"  a film is rendered at {url}; no worker is occupied meanwhile", flush=True)
            hints = []
            while len(hints) < 2:
                await asyncio.sleep(0.2)
                hints += [
                    hint
                    for job in (await engine.kernel.external_jobs.list()).jobs
                    if (hint := job.progress_hint) and hint not in hints
                ]
            print(f"  {hints[-1]}; the farm is killed", flush=True)
            farm.kill()
            farm.wait()
            with a_farm(state, int(url.rpartition(":")[2])):
                print("  the farm is restarted: the job continues", flush=True)
                outputs = await run.result(timeout=60)
                stats = specialist._ask("GET", "/stats")
    print(f"  {outputs['line']}; jobs submitted to the farm: {stats['jobs']}")
    return stats["jobs"] == 1


def main():
    print("An external service")
    with tempfile.TemporaryDirectory() as folder:
        if not asyncio.run(story(Path(folder))):
            sys.exit("the film was submitted twice")


if __name__ == "__main__":
    main()
