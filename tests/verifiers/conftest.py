"""Everything here needs verifiers; without it the tests are skipped, with the reason."""

import importlib.util

import pytest


def pytest_collection_modifyitems(items):
    missing = importlib.util.find_spec("verifiers") is None
    for item in items:
        if "tests/verifiers" in item.path.as_posix():
            item.add_marker(pytest.mark.verifiers)
            if missing:
                item.add_marker(pytest.mark.skip(reason="verifiers is not installed: make test-verifiers"))
