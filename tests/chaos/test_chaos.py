"""Twenty pilots under random kills. `make chaos` is two hundred."""

import json
import sys

import pytest

from chaos import WRONG, storm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc to see what a killed controller leaves behind")
def test_killed_at_random_nothing_is_lost_and_nothing_is_left():
    found = storm(20, at_once=2)
    print(f"\n{json.dumps({name: value for name, value in found.items() if name != 'wrong'})}")
    assert {name: found[name] for name in WRONG} == dict.fromkeys(WRONG, 0), found["wrong"]
    assert found["controller_kills"] >= 10
    assert found["results"] == 20 * 8
