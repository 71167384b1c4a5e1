"""The Procrastinate side of coming-from/pgqueuer-procrastinate.md;
checked with Procrastinate 3.10.0."""

# --- define ---
from procrastinate import App, JobContext, PsycopgConnector, RetryStrategy
from procrastinate.testing import InMemoryConnector

app = App(connector=PsycopgConnector(conninfo="postgresql://localhost/shop"))


@app.task(
    name="resize",
    queue="images",
    retry=RetryStrategy(max_attempts=5, exponential_wait=2),
    pass_context=True,
)
async def resize(context: JobContext, image: str, width: int) -> None:
    print(f"{image} at {width}, attempt {context.job.attempts + 1}")


# --- schedule ---
@app.periodic(cron="*/10 * * * *")
@app.task(name="clean_up", queueing_lock="clean_up")
async def clean_up(timestamp: int) -> None: ...


# --- test ---
async def test_an_image_is_resized() -> None:
    with app.replace_connector(InMemoryConnector()) as testing:
        await testing.configure_task("resize", queue="images").defer_async(
            image="a.png", width=100
        )
        await testing.run_worker_async(wait=False)


# --- rest ---
async def main(connection) -> None:
    # --- enqueue ---
    async with app.open_async():
        await resize.defer_async(image="a.png", width=100)
        later = resize.configure(
            lock="a.png", queueing_lock="a.png", priority=5, schedule_in={"minutes": 10}
        )
        await later.defer_async(image="a.png", width=200)
    # --- transaction ---
    async with connection.transaction():
        await connection.execute("insert into images values ('b.png')")
        await resize.configure(connection=connection).defer_async(image="b.png", width=100)
