"""The Treadle side of docs/coming-from/airflow.md."""

# --- define ---
import asyncio
from datetime import UTC, date, datetime

from treadle import Engine, FunctionContext, Waiting

engine = Engine("sqlite:///sales.db", program="sales", release=1)


@engine.task("sales.Extract", retry=3)
def extract(day: date) -> list[int]:
    return [3, 4, 5]


@engine.task("sales.Convert", retry=3, timeout=300)
def convert(amount: int) -> int:
    return amount * 100


@engine.task("sales.Load", retry=3)
def load(amounts: list[int]) -> int:
    return sum(amounts)


@engine.declare.schedule(
    "sales", cron="30 2 * * *", catch_up="skip", overlap="skip", tick_as="tick"
)
@engine.function("sales")
async def sales(ctx: FunctionContext, tick: str) -> int:
    amounts = await ctx.call(extract, date.fromisoformat(tick[:10]))
    converted = await ctx.gather(*(ctx.call(convert, amount) for amount in amounts))
    return await ctx.call(load, list(converted))


# --- workflow ---
DAILY = """
namespace sales {
    event facet Extract(day: String) => (result: [Long])
    event facet Convert(amount: Long) => (result: Long)
    event facet Load(amounts: [Long]) => (result: Long)

    facet ConvertAll(amounts: [Long]) => (cents: [Long] = [])
    andThen foreach amount in $.amounts {
        converted = Convert(amount = amount)
        yield ConvertAll(cents = [converted.result])
    }

    workflow Daily(day: String) => (total: Long) andThen {
        extracted = Extract(day = $.day)
        all = ConvertAll(amounts = extracted.result)
        loaded = Load(amounts = all.cents)
        yield Daily(total = loaded.result)
    }
}
"""


# --- branch ---
@engine.function("quality")
async def quality(ctx: FunctionContext, rows: int) -> str:
    if rows > 100:  # any Python, as long as it decides the same in a replay
        return await ctx.call(publish)
    return await ctx.call(reject)


@engine.task("publish")
def publish() -> str:
    return "published"


@engine.task("reject")
def reject() -> str:
    return "rejected"


# --- sensor ---
@engine.handler("file_is_there")
def file_is_there(payload, ctx):
    polls = (ctx.checkpoint or {"polls": 0})["polls"]
    if polls < 2:
        # in 30 s; no worker waits meanwhile
        return Waiting(30_000, checkpoint={"polls": polls + 1})
    return {"path": "sales.csv"}


# --- test ---
def test_the_sales_of_a_day_are_loaded(treadle_env):
    run = treadle_env.engine.start(sales, "2026-11-16T02:30:00Z")
    assert treadle_env.result(run) == 1200
    found = treadle_env.engine.enqueue("file_is_there")
    assert treadle_env.result(found) == {"path": "sales.csv"}


# --- rest ---
async def main() -> None:
    # --- start ---
    async with engine, engine.worker():
        run = await engine.start(sales, "2026-11-16T02:30:00Z")
        assert await run.result(timeout=60) == 1200
        # --- backfill ---
        first, last = datetime(2024, 9, 1, tzinfo=UTC), datetime(2024, 9, 3, tzinfo=UTC)
        planned = await engine.schedules.backfill("sales", first, last, dry_run=True)
        assert len(planned.ticks) == 2
        # --- workflow-start ---
        run = await engine.start(
            [("sales.afl", DAILY)], {"day": "2026-11-16"}, workflow="sales.Daily"
        )
        assert await run.result(timeout=60) == {"total": 1200}
        # --- end ---
        assert await (await engine.start(quality, 5)).result(timeout=60) == "rejected"


if __name__ == "__main__":
    asyncio.run(main())
