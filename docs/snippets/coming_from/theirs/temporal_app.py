"""The Temporal side of docs/coming-from/temporal.md; checked with temporalio 1.35.0."""

# --- define ---
import asyncio
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client, Schedule, ScheduleActionStartWorkflow, ScheduleSpec
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker


@dataclass
class Order:
    id: str
    total: int


@activity.defn
async def charge(order: Order) -> str:
    if order.total <= 0:
        raise ApplicationError("nothing to charge", non_retryable=True)
    return f"receipt-{order.id}"


@workflow.defn
class OrderWorkflow:
    def __init__(self) -> None:
        self.state = "new"
        self.address: str | None = None

    @workflow.run
    async def run(self, order: Order) -> str:
        receipt = await workflow.execute_activity(
            charge,
            order,
            start_to_close_timeout=timedelta(seconds=30),
            retry_policy=RetryPolicy(
                maximum_attempts=4, initial_interval=timedelta(seconds=1), backoff_coefficient=2
            ),
        )
        self.state = "charged"
        await workflow.wait_condition(
            lambda: self.address is not None, timeout=timedelta(days=7)
        )
        await workflow.sleep(timedelta(days=1))
        self.state = "shipped"
        return f"{receipt} to {self.address}"

    @workflow.signal
    def ship_to(self, address: str) -> None:
        self.address = address

    @workflow.query
    def current(self) -> str:
        return self.state


# --- version ---
@workflow.defn
class Refund:
    @workflow.run
    async def run(self, order: Order) -> str:
        if workflow.patched("check-fraud"):
            await workflow.execute_activity(
                check_fraud, order, start_to_close_timeout=timedelta(seconds=30)
            )
        return f"refunded {order.id}"


# --- child ---
@workflow.defn
class Batch:
    @workflow.run
    async def run(self, orders: list[Order]) -> list[str]:
        return list(
            await asyncio.gather(
                *(
                    workflow.execute_child_workflow(Refund.run, order, id=f"refund-{order.id}")
                    for order in orders
                )
            )
        )


# --- test ---
async def test_an_order_is_shipped_after_a_day() -> None:
    async with (
        await WorkflowEnvironment.start_time_skipping() as env,
        Worker(env.client, task_queue="orders", workflows=[OrderWorkflow], activities=[charge]),
    ):
        handle = await env.client.start_workflow(
            OrderWorkflow.run, Order("7", 40), id="order-7", task_queue="orders"
        )
        await handle.signal(OrderWorkflow.ship_to, "Turin")
        assert await handle.result() == "receipt-7 to Turin"


# --- rest ---
@activity.defn
async def check_fraud(order: Order) -> None: ...


async def main() -> None:
    # --- start ---
    client = await Client.connect("localhost:7233")
    async with Worker(
        client, task_queue="orders", workflows=[OrderWorkflow], activities=[charge]
    ):
        handle = await client.start_workflow(
            OrderWorkflow.run, Order("7", 40), id="order-7", task_queue="orders"
        )
        await handle.signal(OrderWorkflow.ship_to, "Turin")
        print(await handle.query(OrderWorkflow.current))
        print(await handle.result())
    # --- schedule ---
    await client.create_schedule(
        "nightly",
        Schedule(
            action=ScheduleActionStartWorkflow(
                Refund.run, Order("7", 40), id="nightly-refund", task_queue="orders"
            ),
            spec=ScheduleSpec(cron_expressions=["30 2 * * *"], time_zone_name="Europe/Berlin"),
        ),
    )
