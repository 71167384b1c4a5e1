"""The Airflow side of coming-from/airflow.md; checked with Airflow 3.3.2 (task SDK 1.3.2)."""

# --- define ---
from datetime import datetime, timedelta

from airflow.sdk import PokeReturnValue, dag, task


@dag(
    dag_id="sales",
    schedule="30 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={
        "retries": 3,
        "retry_delay": timedelta(seconds=1),
        "retry_exponential_backoff": True,
    },
)
def sales():
    @task
    def extract(day: str) -> list[int]:
        return [3, 4, 5]

    @task(execution_timeout=timedelta(minutes=5))
    def convert(amount: int) -> int:
        return amount * 100

    @task
    def load(amounts: list[int]) -> int:
        return sum(amounts)

    load(convert.expand(amount=extract("{{ ds }}")))


sales()


# --- branch ---
@dag(dag_id="quality", schedule=None)
def quality():
    @task.branch
    def check(rows: int) -> str:
        return "publish" if rows > 100 else "reject"

    @task
    def publish(): ...

    @task
    def reject(): ...

    check(5) >> [publish(), reject()]


quality()


# --- sensor ---
@dag(dag_id="arrival", schedule=None)
def arrival():
    @task.sensor(poke_interval=30, timeout=86_400, mode="reschedule")
    def file_is_there() -> PokeReturnValue:
        return PokeReturnValue(is_done=True, xcom_value="sales.csv")

    @task
    def read(path: str) -> str:
        return path

    read(file_is_there())


arrival()


# --- test ---
def test_the_dag_has_its_tasks():
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(dag_folder=__file__)
    assert bag.import_errors == {}
    assert [each.task_id for each in bag.dags["sales"].tasks] == ["extract", "convert", "load"]
