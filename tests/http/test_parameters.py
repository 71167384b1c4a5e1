"""The records in the bodies of requests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import datetime
from typing import Any, get_args, get_type_hints

import pytest

from treadle.api.facade import all_calls


def records_in(hint: Any) -> Iterator[type]:
    """The dataclasses in a type, without those inside them."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for each in get_args(hint):
        yield from records_in(each)


RECORDS = sorted(
    {record for call in all_calls() for each in call.others for record in records_in(each.hint)}, key=lambda each: each.__name__
)


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: each.__name__)
def test_a_record_inside_another_one_has_no_times(record: type):
    inside = [each for hint in get_type_hints(record).values() for each in records_in(hint)]
    while inside:
        hints = get_type_hints(inside.pop()).values()
        assert not [hint for hint in hints if datetime in (hint, *get_args(hint))]
        inside += [each for hint in hints for each in records_in(hint)]
