"""The Celery side of docs/coming-from/celery.md; checked with Celery 5.7.0."""

# --- define ---
from celery import Celery, chain, chord, group
from celery.schedules import crontab

app = Celery("shop", broker="redis://localhost", backend="redis://localhost")


@app.task(name="shop.add")
def add(x, y):
    return x + y


# --- retries ---
@app.task(
    name="shop.fetch",
    autoretry_for=(Exception,),
    dont_autoretry_for=(ValueError,),
    max_retries=5,
    retry_backoff=1,
    retry_backoff_max=600,
    retry_jitter=True,
    soft_time_limit=30,
    acks_late=True,
)
def fetch(url):
    if not url.startswith("https:"):
        raise ValueError(f"{url} is not encrypted")
    return download(url)


# --- schedule ---
app.conf.timezone = "Europe/Berlin"
app.conf.beat_schedule = {
    "nightly": {"task": "shop.clean_up", "schedule": crontab(hour="2", minute="30")}
}


@app.task(name="shop.clean_up")
def clean_up(): ...


# --- canvas ---
@app.task(name="shop.total")
def total(numbers):
    return sum(numbers)


def report(urls):
    return chain(chord(group(fetch.s(url) for url in urls), total.s()), add.s(1))


# --- progress ---
@app.task(name="shop.import", bind=True)
def import_rows(self, rows):
    for number in range(rows):
        self.update_state(state="PROGRESS", meta={"row": number + 1})
    return rows


# --- test ---
def test_add():
    # the function; a retry is tested with a worker (pytest-celery), or eagerly:
    assert add(2, 3) == 5
    app.conf.task_always_eager = True
    assert add.delay(2, 3).get() == 5


# --- rest ---
def download(url):
    return len(url)


def main():
    # --- enqueue ---
    result = add.delay(2, 3)
    assert result.get(timeout=60) == 5
    add.apply_async((2, 3), countdown=60, priority=9, queue="slow")
    app.send_task("shop.add", args=(2, 3))  # by name, without the code
    # --- canvas-start ---
    assert report(["https://a.example", "https://b.example"]).delay().get(timeout=60) == 35
