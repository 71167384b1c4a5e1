"""The Treadle side of docs/coming-from/celery.md."""

# --- define ---
from treadle import Engine, FunctionContext, NonRetryable, RetryPolicy

engine = Engine("sqlite:///shop.db")  # or postgresql://...; there is no broker


@engine.task("shop.add")
def add(x: int, y: int) -> int:
    return x + y


# --- retries ---
@engine.task(
    "shop.fetch",
    retry=RetryPolicy.of(5, first=1, factor=2, longest=600, jitter=0.5),
    timeout=30,
)
def fetch(url: str) -> int:
    if not url.startswith("https:"):
        raise NonRetryable(f"{url} is not encrypted", "not_https")
    return download(url)  # any other exception is retried after about 1, 2, 4, 8 and 16 s


# --- schedule ---
@engine.declare.schedule("nightly", cron="30 2 * * *", zone="Europe/Berlin")
@engine.task("shop.clean_up")
def clean_up() -> None: ...


# --- canvas ---
@engine.task("shop.total")
def total(numbers: list[int]) -> int:
    return sum(numbers)


@engine.function("shop.report")
async def report(ctx: FunctionContext, urls: list[str]) -> int:
    sizes = await ctx.gather(*(ctx.call(fetch, url) for url in urls))  # a group
    everything = await ctx.call(total, sizes)  # the body of a chord
    return await ctx.call(add, everything, 1)  # the next link of a chain


# --- progress ---
@engine.handler("shop.import", progress_every=60)
def import_rows(payload, ctx):
    for number in range(payload["rows"]):
        ctx.progress((number + 1) / payload["rows"], f"row {number + 1}")
    return {"rows": payload["rows"]}


# --- test ---
def test_the_report_adds_up(treadle_env):
    run = treadle_env.engine.start(report, ["https://a.example", "https://b.example"])
    assert treadle_env.result(run) == 35  # retries and timers are skipped, not awaited
    treadle_env.assert_enqueued("shop.fetch", {"url": "https://a.example"})


# --- rest ---
def download(url: str) -> int:
    return len(url)


def main() -> None:
    # --- enqueue ---
    with engine.blocking() as shop:
        # in production a process of its own: treadle worker --handlers shop.py
        shop.start_worker()
        task = shop.enqueue(add, 2, 3)
        assert task.result(timeout=60) == 5
        shop.enqueue(add.with_options(delay=60, priority=-1, task_list="slow"), 2, 3)
        # by name, without the code
        shop.enqueue("shop.add", {"x": 2, "y": 3}, unique_key="add-2-3")
        # --- canvas-start ---
        run = shop.start(report, ["https://a.example", "https://b.example"])
        assert run.result(timeout=60) == 35
        # --- end ---
        rows = shop.enqueue("shop.import", {"rows": 3})
        assert shop.result(rows, timeout=60) == {"rows": 3}


if __name__ == "__main__":
    main()
