"""The length of partitions, from the rules of retention."""

from __future__ import annotations

from treadle.kernel.store.queries import Rules
from treadle.kernel.store.retention import DAY_FOR
from treadle.stores.postgres.partitions import HOUR_FOR, WEEK_FOR, length_for


def test_a_partition_lasts_a_quarter_of_the_retention_but_failed_tasks_are_in_few():
    assert length_for(Rules("default", 30 * DAY_FOR, 90 * DAY_FOR)) == WEEK_FOR
    assert length_for(Rules("default", 365 * DAY_FOR, 365 * DAY_FOR)) == WEEK_FOR
    assert length_for(Rules("default", DAY_FOR, DAY_FOR)) == 6 * HOUR_FOR
    assert length_for(Rules("default", 0, 0)) == HOUR_FOR
    assert length_for(Rules("default", DAY_FOR, 90 * DAY_FOR)) == 90 * HOUR_FOR
