"""One-time setup: register the handler of `billing.ProcessPayment` in the store of TREADLE_STORE."""

from __future__ import annotations

from treadle.agents import Evaluator, RegistryRunner, open_persistence

with open_persistence() as store:
    runner = RegistryRunner(persistence=store, evaluator=Evaluator(store))
    runner.register_handler(
        facet_name="billing.ProcessPayment",
        module_uri="handlers.billing",
        entrypoint="process_payment",
    )
    print("registered:", ", ".join(each.facet_name for each in store.list_handler_registrations()))
