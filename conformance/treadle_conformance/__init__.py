"""The conformance suite of Treadle's stores, by feature. `StoreContract` collects its tests into one class to subclass."""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))

from treadle_conformance.suite import StoreContract, StoreHarness  # noqa: E402  (rewritten first)

__all__ = ["StoreContract", "StoreHarness"]
