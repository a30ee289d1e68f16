"""Sixteen processes, ten thousand leases each, one queue."""

import pytest
from claims import contend

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def test_no_hand_out_is_told_to_two_and_none_is_lost(tmp_path):
    found = contend(tmp_path / "queue.sqlite", processes=16, leases=10_000)
    print(f"\n{found}")
    assert (found["leases"], found["double_claims"], found["lost"]) == (160_000, 0, 0)
