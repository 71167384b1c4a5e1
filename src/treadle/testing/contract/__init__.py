"""The tests of the store contract, by feature. `treadle.testing.StoreContract` collects them into one class."""

import pytest

pytest.register_assert_rewrite(__name__)
