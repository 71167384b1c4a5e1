"""The tests of the store contract, by feature. `treadle.testing.StoreContract` collects them into one class."""

from pkgutil import iter_modules

import pytest

pytest.register_assert_rewrite(*(f"{__name__}.{module.name}" for module in iter_modules(__path__)))
