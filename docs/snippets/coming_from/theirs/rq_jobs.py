"""The RQ side of docs/coming-from/rq.md; checked with RQ 2.12.0."""

# --- define ---
from datetime import timedelta

from redis import Redis
from rq import Queue, Retry
from rq.cron import CronScheduler
from rq.job import Job

queue = Queue("default", connection=Redis())


def count_words(text):
    return len(text.split())


# --- retries ---
def notify(address):
    return f"sent to {address}"


def notify_later(address):
    return queue.enqueue(
        notify, address, retry=Retry(max=3, interval=[1, 2, 4]), job_timeout=60
    )


# --- dependencies ---
def publish(text, address):
    counted = queue.enqueue(count_words, text)
    return queue.enqueue(notify, address, depends_on=counted, at_front=True)


# --- schedule ---
def schedule():
    cron = CronScheduler(connection=Redis())
    cron.register(count_words, queue_name="default", args=("again and again",), interval=3600)
    cron.start()


# --- isolation ---
# every job runs in a forked process, the work horse, unless the worker is a SimpleWorker
def thumbnail(size):
    return size


# --- test ---
def test_the_words_are_counted(redis):
    job = Queue(is_async=False, connection=redis).enqueue(count_words, "one two")
    assert job.return_value() == 2


# --- rest ---
def main():
    # --- enqueue ---
    job = queue.enqueue(count_words, "a short text")
    queue.enqueue_in(
        timedelta(minutes=10), count_words, "a short text", job_id="page-7", unique=True
    )
    print(job.return_value())  # None until a worker has finished it
    # --- inspect ---
    kept = Job.fetch(job.id, connection=Redis())
    print(kept.get_status(), kept.number_of_retries)
