"""The Prefect side of docs/coming-from/prefect.md; checked with Prefect 3.8.8."""

# --- define ---
from prefect import flow, get_run_logger, task
from prefect.cache_policies import INPUTS
from prefect.futures import wait


@task(retries=3, retry_delay_seconds=[1, 2, 4], timeout_seconds=60)
def fetch(url: str) -> int:
    return len(url)


@flow(name="report", log_prints=True)
def report(urls: list[str]) -> int:
    sizes = [fetch.submit(url) for url in urls]
    wait(sizes)
    return sum(future.result() for future in sizes)


# --- mapped ---
@flow(name="mapped")
def mapped(urls: list[str]) -> list[int]:
    return fetch.map(urls).result()


# --- cached ---
@task(cache_policy=INPUTS, persist_result=True)
def expensive(number: int) -> int:
    get_run_logger().info("computing")
    return number * number


# --- approval ---
@flow(name="release")
def release(version: str) -> str:
    from prefect.flow_runs import pause_flow_run

    answer = pause_flow_run(wait_for_input=str, timeout=86_400)
    return f"{version} released by {answer}"


# --- state ---
def inspect() -> str:
    state = report(["https://a.example"], return_state=True)
    return state.name


# --- test ---
def test_the_report_adds_up():
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness():
        assert report(["https://a.example", "https://b.example"]) == 34


# --- serve ---
if __name__ == "__main__":
    report.serve(name="nightly", cron="30 2 * * *", parameters={"urls": ["https://a.example"]})
