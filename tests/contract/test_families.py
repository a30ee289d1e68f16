"""Every built-in family keeps the contract, at both scales."""

import pytest

from nested_rl import tasks
from nested_rl.testing import FamilySuite


class TestNanoFamilies(FamilySuite):
    @pytest.fixture(params=tasks.names())
    def family(self, request):
        return tasks.load(request.param, scale="nano")[0]

    def right(self, item):
        return f"1>{item.answer}."


class TestFullFamilies(FamilySuite):
    @pytest.fixture(params=tasks.names())
    def family(self, request):
        return tasks.load(request.param, scale="full")[0]
