"""The DBOS side of docs/coming-from/dbos.md; checked with DBOS 3.3.0."""

# --- define ---
from dbos import DBOS, DBOSConfig, SetEnqueueOptions, SetWorkflowID

config: DBOSConfig = {"name": "shop", "system_database_url": "sqlite:///shop.sqlite"}
DBOS(config=config)


@DBOS.step(retries_allowed=True, max_attempts=4, interval_seconds=1.0, backoff_rate=2.0)
def charge(order_id: str) -> str:
    return f"receipt-{order_id}"


@DBOS.workflow()
def order(order_id: str) -> str:
    receipt = charge(order_id)
    DBOS.set_event("state", "charged")
    address = DBOS.recv("ship_to", timeout_seconds=7 * 86_400)
    DBOS.sleep(0.1)
    return f"{receipt} to {address}"


# --- gather ---
@DBOS.workflow()
def all_orders(order_ids: list[str]) -> list[str]:
    handles = [DBOS.enqueue_workflow("orders", pack, order_id) for order_id in order_ids]
    return [handle.get_result() for handle in handles]


@DBOS.workflow()
def pack(order_id: str) -> str:
    return f"packed {order_id}"


# --- schedule ---
@DBOS.workflow()
def nightly(scheduled_at, context):
    DBOS.logger.info(f"for {scheduled_at}")


# --- rest ---
def main():
    # --- start ---
    DBOS.launch()  # this process is a worker from now on
    with SetWorkflowID("order-7"):
        handle = DBOS.start_workflow(order, "7")
    DBOS.send("order-7", "Turin", topic="ship_to")
    assert DBOS.get_event("order-7", "state") == "charged"
    assert handle.get_result() == "receipt-7 to Turin"
    # --- queue ---
    DBOS.register_queue("orders", global_concurrency=10, limiter={"limit": 50, "period": 60})
    with SetEnqueueOptions(deduplication_id="pack-7", priority=1, delay_seconds=0.1):
        DBOS.enqueue_workflow("orders", pack, "7")
    # --- schedule-start ---
    DBOS.apply_schedules(
        [
            {
                "schedule_name": "nightly",
                "workflow_fn": nightly,
                "schedule": "30 2 * * *",
                "cron_timezone": "Europe/Berlin",
            }
        ]
    )
    # --- end ---
    assert DBOS.start_workflow(all_orders, ["1", "2"]).get_result() == ["packed 1", "packed 2"]
    DBOS.destroy()


if __name__ == "__main__":
    main()
