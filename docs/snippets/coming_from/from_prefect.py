"""The Treadle side of docs/coming-from/prefect.md."""

# --- define ---
import asyncio

from treadle import Engine, FunctionContext

engine = Engine("sqlite:///flows.db")


@engine.task("fetch", retry=3, timeout=60)
def fetch(url: str) -> int:
    return len(url)


@engine.function("report")
async def report(ctx: FunctionContext, urls: list[str]) -> int:
    sizes = await ctx.gather(*(ctx.call(fetch, url) for url in urls))
    return sum(sizes)


# --- cached ---
@engine.task("expensive")
def expensive(number: int) -> int:
    return number * number


# --- approval ---
@engine.function("release")
async def release(ctx: FunctionContext, version: str) -> str:
    decision = await ctx.approval(f"Release {version}?", deciders=["ada"], expires=86_400)
    return f"{version} released by {decision['by']}"


# --- serve ---
engine.declare.schedule(
    "nightly", cron="30 2 * * *", function="report", inputs={"urls": ["https://a.example"]}
)


# --- test ---
def test_the_report_adds_up(treadle_env):
    run = treadle_env.engine.start(report, ["https://a.example", "https://b.example"])
    assert treadle_env.result(run) == 34


# --- rest ---
async def main() -> None:
    # --- start ---
    async with engine, engine.worker():
        run = await engine.start(report, ["https://a.example", "https://b.example"])
        assert await run.result(timeout=60) == 34
        # --- mapped ---
        assert await engine.map(
            fetch, ["https://a.example", "https://b.example"]
        ).results() == [17, 17]
        # --- cached-start ---
        once = expensive.with_options(idempotency_key="expensive-12")
        assert await (await engine.enqueue(once, 12)).result(timeout=60) == 144
        # the stored result
        assert await (await engine.enqueue(once, 12)).result(timeout=60) == 144
        # --- state ---
        shown = await engine.kernel.run_reads.get_run(run.id)
        assert shown.state == "completed"
        # --- approval-start ---
        run = await engine.start(release, "2.0")
        while not (waiting := (await engine.approvals.list()).approvals):
            await asyncio.sleep(0.02)
        await engine.approvals.decide(waiting[0].id, "approve", actor="ada")
        assert await run.result(timeout=60) == "2.0 released by ada"


if __name__ == "__main__":
    asyncio.run(main())
